"""Stores: when experience may be used, used again, or dropped. Imports torch."""
