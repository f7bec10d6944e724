"""Whether the steps of an update were made: kept on the device, read a turn late, so that nothing waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from accel.errors import DivergenceError
from accel.experience.transfer import HostCopy


class StepHealth:
    """Notes in place, at the same addresses in every step, whether loss and gradient are finite.

    Attributes:
        skip: () float32, 0 as long as they are; 1 from the first step on where they are not, which is not made.
    """

    def __init__(self, device: torch.device) -> None:
        self._state = torch.zeros(3, device=device)
        self.skip, self._numbers = self._state[0], self._state[1:]
        self._arriving: HostCopy | None = None

    def note(self, loss: Tensor, norm: Tensor) -> None:
        """Before a step: its loss and its gradient's norm; those of the first bad step are kept."""
        numbers = torch.stack((loss, norm)).float()
        bad = torch.logical_not(torch.isfinite(numbers).all()).float()
        self._numbers.copy_(torch.where(self.skip > 0.0, self._numbers, numbers))
        self.skip.copy_(torch.maximum(self.skip, bad))

    def turn(self) -> None:
        """At the end of an update. Raises DivergenceError: the update before it was not made, nor was this one."""
        before, self._arriving = self._arriving, HostCopy(self._state)
        if before is None:
            return
        skipped, loss, norm = before.numpy().tolist()
        if skipped:
            self._state.zero_()
            self._arriving = None
            raise DivergenceError(f"loss {loss}, gradient norm {norm}", updates_ago=1)
