"""The best trade-offs of a study: feasible trials that no other one beats in every objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from accel.sweep.quantities import Constraint, Quantity, Values


@dataclass(frozen=True)
class Row:
    """One measured trial.

    Attributes:
        number: the trial's.
        label: what it tried: a scheme, or the parameters.
        values: everything measured, by quantity.
        parameters: the trial's.
        references: what fp32 has.
        unmet: bounds of the sweep's own that the trial misses, and by which share.
    """

    number: int
    label: str
    values: Values
    parameters: Mapping[str, object] = field(default_factory=dict)
    references: Values = field(default_factory=dict)
    unmet: Values = field(default_factory=dict)

    def with_values(self, **values: float) -> Self:
        """The row with some values measured anew."""
        return replace(self, values={**self.values, **values})

    def violation(self, constraints: Sequence[Constraint]) -> float:
        """Sum of the shares by which constraints and the sweep's own bounds are missed, 0 for a feasible trial."""
        known = [constraint for constraint in constraints if constraint.quantity in self.values]
        missed = sum(max(c.violation(self.values[c.quantity], self.references), 0.0) for c in known)
        return missed + sum(self.unmet.values())


def front(
    rows: Sequence[Row], objectives: Sequence[Quantity], constraints: Sequence[Constraint], slack: float = 0.0
) -> list[Row]:
    """Feasible rows that no feasible row dominates, best in the first objective first; one of each label.

    Args:
        rows, objectives, constraints: what was measured, and what counts.
        slack: share by which a row may miss a constraint, or be worse than another everywhere, and still be kept, for
            noisy values. A row that misses one takes nobody's place.
    """
    near = [row for row in rows if row.violation(constraints) <= slack]
    unique = list({row.label: row for row in reversed(near)}.values())
    feasible = [row for row in unique if row.violation(constraints) <= 0.0]
    best = [row for row in unique if not any(dominates(other, row, objectives, slack) for other in feasible)]
    return sorted(best, key=lambda row: _signed(row, objectives))


def dominates(one: Row, other: Row, objectives: Sequence[Quantity], slack: float = 0.0) -> bool:
    """Whether one row is no worse in any objective and better in some, by more than a share ``slack`` somewhere."""
    a, b = _signed(one, objectives), _signed(other, objectives)
    clear = any(y - x > slack * abs(y) for x, y in zip(a, b, strict=True))
    return all(x <= y for x, y in zip(a, b, strict=True)) and clear


def nearest_miss(rows: Sequence[Row], constraints: Sequence[Constraint]) -> Row | None:
    """The row that misses the constraints by least; None without rows."""
    return min(rows, key=lambda row: row.violation(constraints), default=None)


def balanced(rows: Sequence[Row], objectives: Sequence[Quantity]) -> Row | None:
    """The row of a front nearest to the best of every objective, each scaled to its range on the front."""
    if not rows:
        return None
    points = [_signed(row, objectives) for row in rows]
    lows = [min(column) for column in zip(*points, strict=True)]
    spans = [max(column) - low or 1.0 for column, low in zip(zip(*points, strict=True), lows, strict=True)]
    distances = [
        sum(((x - low) / span) ** 2 for x, low, span in zip(point, lows, spans, strict=True)) for point in points
    ]
    return rows[distances.index(min(distances))]


def _signed(row: Row, objectives: Sequence[Quantity]) -> tuple[float, ...]:
    return tuple(objective.sign * row.values[objective.name] for objective in objectives)
