"""Chooses the compression level while training runs: measurements in, decisions out; no clock, no I/O.

from monitor.tuner.stages import Tuner
"""
