"""Compiled kernels that act with chains of dense layers, without a graph runtime's fixed cost of a call."""
