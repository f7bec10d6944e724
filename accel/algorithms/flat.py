"""All parameters as one vector, and their gradients as another: one call a step instead of one for each."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class FlatParameters:
    """Moves the parameters' values and gradients into two vectors, of which they are views from then on.

    Args:
        parameters: of one dtype on one device. They may be written and read, but no other tensor put in their place.
    Attributes:
        values: [n] the vector that an optimiser steps, with its gradient. gradient: [n], zeros at first.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        reference = parameters[0].data
        self.values = nn.Parameter(reference.new_empty(sum(parameter.numel() for parameter in parameters)))
        self.gradient = reference.new_zeros(self.values.shape)  # on "meta" zeros_like imports sympy, for a second
        self.values.grad = self.gradient
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            view = self.values.data[start:stop].view(parameter.shape)
            parameter.data = view.copy_(parameter.data)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop

    def part(self, start: int, stop: int) -> nn.Parameter:
        """A piece of both vectors, for an optimiser of its own."""
        part = nn.Parameter(self.values.data[start:stop])
        part.grad = self.gradient[start:stop]
        return part
