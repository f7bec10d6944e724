"""One life cycle of supervised processes: start, messages, deadlines, restarts, the end of the whole tree."""
