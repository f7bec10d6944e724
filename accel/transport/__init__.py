"""Unrolls from actors to the learner and policies back, in one process or over MPI. No torch; MPI only when joined."""
