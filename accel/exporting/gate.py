"""The quality gate: what a policy has to hold to be exported."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accel.errors import ConfigError, ExportError
from accel.exporting.measuring import Agreement, Returns


@dataclass(frozen=True)
class Gate:
    """What a policy has to hold to be exported.

    Attributes:
        max_return_loss: greatest loss of mean return, as a share of the magnitude of full precision's; None for any.
        max_mismatch: greatest relative difference of its parameters from the trained policy's, on real inputs; None
            for any.
    """

    max_return_loss: float | None = None
    max_mismatch: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError: a bound that no policy or every policy holds."""
        for name, value in (("max_return_loss", self.max_return_loss), ("max_mismatch", self.max_mismatch)):
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value}: give a share of at least 0, such as 0.05, or leave it out")

    def check(self, mismatch: Agreement, returns: Returns | None) -> None:
        """Raise ExportError unless the policy holds it."""
        failures = []
        if self.max_mismatch is not None and not mismatch.relative <= self.max_mismatch:
            failures.append(
                f"its parameters differ from the trained policy's by {mismatch.relative:.4g} of their spread, over "
                f"max-mismatch {self.max_mismatch:g}"
            )
        if self.max_return_loss is not None and returns is not None and not returns.loss <= self.max_return_loss:
            failures.append(f"it loses {_played(returns)}, over max-return-loss {self.max_return_loss:.2%}")
        if failures:
            remedy = "Choose a milder scheme, or a greater bound"
            raise ExportError(f"the policy is not exported: {'; '.join(failures)}. {remedy}")


def _played(returns: Returns) -> str:
    """The loss of mean return, the means, and what chance leaves open."""
    difference = returns.difference
    ends = "one episode each" if difference is None else f"difference {difference} (95 %)"
    means = f"mean {returns.episodes.returns.mean():.5g} against {returns.full.returns.mean():.5g}"
    caveat = "" if returns.caveat is None else f"; {returns.caveat}"
    return f"{returns.loss:.2%} of the return ({means}, {ends}{caveat})"
