"""Finished and running runs: directory, summary, loading, playing, evaluation, video."""
