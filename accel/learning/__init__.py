"""The learner's process: the loop, the session, checkpoints."""
