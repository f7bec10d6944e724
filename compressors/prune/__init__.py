"""Structured pruning of units and channels, with least-squares compensation."""
