"""Affine quantisation: formulae, weight codes, activation ranges, and a simulated study of bit widths."""
