"""Policies on their way to the actors: levels, their validation, and background work on them. Imports torch."""
