"""Policies that somebody else trained: read from their files, and played, compressed, measured and exported as ours."""
