"""Measures, records and reports training runs: phase timers, metrics, mismatch, the tuner, statistics, reports."""
