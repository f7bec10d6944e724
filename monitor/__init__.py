"""Measures training runs and decides: timers, metrics, mismatch, the bottleneck, what levels are worth, statistics."""
