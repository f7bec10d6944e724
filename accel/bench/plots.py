"""What of a benchmark's rows its figure shows: stacked bars with their spread, a panel for each subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from accel.bench.rows import Row, number
from accel.reports.figure import Axis, Bars, Figure, Panel, Reference

Text = Callable[[Row], str]


@dataclass(frozen=True)
class Layout:
    """How the rows of a benchmark become bars.

    Attributes:
        unit: of every bar.
        title: of a panel; rows with the same one share it.
        label: of a row's bar.
        parts: the columns that are stacked; a row without any of them has no bar.
        spread: of which column the ends of the line are.
        note: behind a bar.
        reference: column, runtime and scheme of a dotted line, and its name.
    """

    unit: str
    title: str
    label: str | Text
    parts: tuple[str, ...]
    spread: str = ""
    note: Text | None = None
    reference: tuple[str, Mapping[str, str], str] | None = None

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        """One panel for each title, in order of appearance."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if any(row[part] is not None for part in self.parts) and row.get("bytes", 1):
                groups.setdefault(self.title.format(**row), []).append(row)
        return [self._panel(title, members) for title, members in groups.items()]

    def _panel(self, title: str, rows: Sequence[Row]) -> Panel:
        labels = [self.label.format(**row) if isinstance(self.label, str) else self.label(row) for row in rows]
        known = [part for part in self.parts if rows[0][part] is not None]
        names = [self.unit] if len(self.parts) == 1 else [part.rpartition("_")[0] for part in known]
        parts = {name: [number(row, part) for row in rows] for name, part in zip(names, known, strict=True)}
        spread = [
            (number(row, f"{self.spread}_low"), number(row, f"{self.spread}_high")) for row in rows if self.spread
        ]
        bars = Bars(labels, parts, spread, [] if self.note is None else [self.note(row) for row in rows])
        return Panel([bars, *self._references(rows)], Axis(self.unit), title=title)

    def _references(self, rows: Sequence[Row]) -> list[Reference]:
        if self.reference is None:
            return []
        column, wanted, name = self.reference
        found = [number(row, column) for row in rows if all(row[key] == value for key, value in wanted.items())]
        return [Reference(value, name, "x") for value in found[:1]]


def figure(kind: str, rows: Sequence[Row], *, heading: str) -> Figure:
    """The figure of a benchmark.

    Args:
        kind: of ``LAYOUTS``. heading: above all panels.
    """
    return Figure(kind, f"accel bench {kind}", LAYOUTS[kind].panels(rows), columns=3, heading=heading)


def _acting(row: Row) -> str:
    runtime, scheme = str(row["runtime"]), str(row["scheme"])
    return {"onnxruntime": scheme, "native": f"{scheme}, native"}.get(runtime, runtime)


def _learner(row: Row) -> str:
    precision = str(row["precision"]).replace("none", "single precision")
    return f"{precision}, graphs" if row["graphs"] == "on" else precision


def _speedup(row: Row) -> str:
    """Over torch eager, where that was measured."""
    return "" if row["speedup_torch"] is None else f"{number(row, 'speedup_torch'):.2f}×"


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "policy": Layout(
            "µs per call (annotated: × torch eager)",
            "{network}, batch {batch}", _acting, ("us",), "us", _speedup,
            ("us", {"runtime": "onnxruntime", "scheme": "fp32"}, "onnxruntime fp32"),
        ),
        "actor": Layout(
            "µs per environment step (annotated: × torch eager)",
            "{env}, {network}, envs per actor: {envs}", _acting, ("env_us", "policy_us", "overhead_us"),
            "us_per_env_step", _speedup, ("env_only_us", {}, "environment alone"),
        ),
        "inference": Layout(
            "environment steps per second (annotated: × local)",
            "{env}, {network}, envs per actor: {envs}", "{inference} {scheme}", ("env_steps_per_s",),
            "env_steps_per_s", lambda row: f"{number(row, 'speedup_local'):.2f}×",
        ),
        "refresh": Layout("ms per refresh", "{network}", "{scheme}", ("requantise_ms", "serialise_ms", "load_ms")),
        "bits": Layout(
            "KL from fp32 in nats, simulated",
            "{network}, {rounded}, simulated", "{bits} bits", ("kl",), "",
            lambda row: "" if row["return"] is None else f"return {number(row, 'return'):.4g}",
        ),
        "learner": Layout(
            "µs per environment step",
            "{network}, T = {T}, B = {B}", _learner, ("batch_us", "forward_us", "correct_us", "backward_us"),
            "us_per_env_step",
        ),
    }
)  # fmt: skip
