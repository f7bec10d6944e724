"""Measures training runs and decides: phase timers, metrics, mismatch, the bottleneck, the tuner, statistics."""
