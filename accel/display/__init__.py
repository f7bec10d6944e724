"""How a run progresses, on a terminal or in a log."""
