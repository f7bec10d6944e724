"""Benchmarks behind ``accel bench``: each measures one budget and returns flat rows."""
