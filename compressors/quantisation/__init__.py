"""Affine quantisation: formulae, weight codes, activation ranges."""
