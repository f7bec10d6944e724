"""Compiled kernels that act with policies of dense layers, without a graph runtime's fixed cost of a call."""
