"""The Pareto front of a study: feasible candidates that no other feasible one dominates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from accel.sweep.objectives import Constraint, Metric, Values


@dataclass(frozen=True)
class Candidate:
    """One measured trial.

    Attributes:
        label: the scheme, or the parameters.
        values: all measurements by metric. references: fp32's.
        unmet: the sweep's own bounds that the trial misses, and by which share.
    """

    number: int
    label: str
    values: Values
    parameters: Mapping[str, object] = field(default_factory=dict)
    references: Values = field(default_factory=dict)
    unmet: Values = field(default_factory=dict)

    def violation(self, constraints: Sequence[Constraint]) -> float:
        """Sum of the shares by which constraints and the sweep's own bounds are missed, 0 if feasible."""
        known = [constraint for constraint in constraints if constraint.metric in self.values]
        missed = sum(max(c.violation(self.values[c.metric], self.references), 0.0) for c in known)
        return missed + sum(self.unmet.values())


def front(
    rows: Iterable[Candidate], objectives: Sequence[Metric], constraints: Sequence[Constraint], slack: float = 0.0
) -> list[Candidate]:
    """Feasible candidates that no feasible one dominates, best in the first objective first; one per label.

    Args:
        slack: share by which a candidate may miss a constraint, or be worse than another in every objective, and still
            be kept, for noisy values. One that misses a constraint dominates no other.
    """
    near = [row for row in rows if row.violation(constraints) <= slack]
    unique = list({row.label: row for row in near[::-1]}.values())
    feasible = [row for row in unique if row.violation(constraints) <= 0.0]
    best = [row for row in unique if not any(_dominates(other, row, objectives, slack) for other in feasible)]
    return sorted(best, key=lambda row: _signed(row, objectives))


def _dominates(one: Candidate, other: Candidate, objectives: Sequence[Metric], slack: float = 0.0) -> bool:
    """Whether one candidate is no worse in any objective, and in some better by more than a share ``slack``."""
    a, b = _signed(one, objectives), _signed(other, objectives)
    clear = any(y - x > slack * abs(y) for x, y in zip(a, b, strict=True))
    return all(x <= y for x, y in zip(a, b, strict=True)) and clear


def _signed(row: Candidate, objectives: Sequence[Metric]) -> tuple[float, ...]:
    return tuple(objective.sign * row.values[objective.name] for objective in objectives)
