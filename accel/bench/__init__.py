"""Benchmarks behind ``accel bench``: each measures one part of training on this machine and returns flat rows."""
