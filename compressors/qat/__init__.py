"""Quantisation-aware training: the learner's forward pass computes as the int8 graph does (fake quantisation)."""
