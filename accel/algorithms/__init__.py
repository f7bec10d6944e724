"""Algorithms: what is trained and what one update does. Imports torch."""
