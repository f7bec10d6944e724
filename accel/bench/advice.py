"""Recommendations that close a benchmark: which scheme to use, if any, and the measurements behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from accel.bench.rows import Row, is_faster, number

HIGHEST_KL = 0.1
LOWEST_ESS = 0.3
"""Alarm levels of mismatch: a trained policy's scheme beyond them is not recommended."""

_REDUCTIONS = ("prune", "lowrank", "distill")
_HALVES = "fp16"
_STUDENT = "distill"


def advise_policy(rows: Sequence[Row]) -> list[str]:
    """One line per network and batch, and remarks on all of them."""
    return [*(_policy_line(cells) for cells in _groups(rows, ("network", "batch"))), *_remarks(rows)]


def advise_actor(rows: Sequence[Row]) -> list[str]:
    """One line per network and number of environments, and remarks on all of them."""
    return [*(_actor_line(cells) for cells in _groups(rows, ("env", "network", "envs"))), *_remarks(rows)]


def advise_inference(rows: Sequence[Row]) -> list[str]:
    """One line per network and number of environments: what is fastest, and what takes least CPU time."""
    return [_inference_line(cells) for cells in _groups(rows, ("network", "envs"))]


def _inference_line(cells: Sequence[Row]) -> str:
    """Spreads that overlap decide nothing."""
    head = f"{cells[0]['network']}, envs per actor: {cells[0]['envs']}"
    best = {
        kind: max((row for row in cells if row["inference"] == kind), key=lambda row: number(row, "env_steps_per_s"))
        for kind in ("local", "central")
    }
    winner, loser = sorted(best, key=lambda kind: -number(best[kind], "env_steps_per_s"))
    ratio = number(best[winner], "env_steps_per_s") / number(best[loser], "env_steps_per_s")
    clear = number(best[winner], "env_steps_per_s_low") > number(best[loser], "env_steps_per_s_high")
    names = {kind: f"{kind} {row['scheme']}" for kind, row in best.items()}
    text = f"{names[winner]} is {ratio:.2f}× as fast as {names[loser]}"
    if not clear:
        text = f"{names['local']} and {names['central']} do not differ measurably"
    measured = [row for row in cells if row["cpu_s_per_million"] is not None]
    if measured:
        least = min(measured, key=lambda row: number(row, "cpu_s_per_million"))
        text += (
            f"; {least['inference']} {least['scheme']} takes the least CPU time, "
            f"{number(least, 'cpu_s_per_million'):.3g} s per million steps"
        )
    return f"{head}: {text}"


def advise_refresh(rows: Sequence[Row]) -> list[str]:
    """One line per network, and remarks on all of them."""
    return [*(_refresh_line(cells) for cells in _groups(rows, ("network",))), *_remarks(rows)]


def advise_bits(rows: Sequence[Row]) -> list[str]:
    """The smallest width of a trained policy within the alarm levels, and which widths have integer kernels."""
    lines = []
    for cells in _groups([row for row in rows if row["weights"] == "trained"], ("network", "rounded")):
        fit = [row for row in cells if number(row, "kl") <= HIGHEST_KL and number(row, "ess") >= LOWEST_ESS]
        least = min((number(row, "bits") for row in fit), default=None)
        found = "none of these widths stays" if least is None else f"{least:.0f} bits stay"
        lines.append(f"{cells[0]['network']}, {cells[0]['rounded']}: {found} within KL {HIGHEST_KL}, ESS {LOWEST_ESS}")
    return [
        *lines,
        "simulated: what runs is weights of 2 to 8 bits as int8(w2) to int8, observations as x2 to x8, int4 by blocks",
    ]


def advise_learner(rows: Sequence[Row]) -> list[str]:
    """One line per training configuration: the learner's limits, and whether bf16 and CUDA graphs pay."""
    lines = []
    for cells in _groups(rows, ("network", "T", "B", "algorithm", "passes", "minibatches")):
        own = {(str(row["precision"]), row["graphs"] == "on"): row for row in cells if row["learner"] == "accel"}
        eager = next((row for row in cells if row["learner"] == "eager"), None)
        limits = [f"{number(row, 'env_steps_per_s'):,.0f} steps/s in {_computed_in(row)}" for row in own.values()]
        line = f"{cells[0]['network']}: the learner processes at most {', '.join(limits)}"
        single = own.get(("none", False))
        for yes, no, other in (
            ("bf16 pays", "bf16 does not pay", own.get(("bf16", False))),
            ("CUDA graphs pay", "CUDA graphs do not pay", own.get(("none", True))),
        ):
            if single is not None and other is not None:
                verdict = yes if is_faster(other, single, "us_per_env_step") else no
                line += f"; {verdict} ({number(other, 'speedup_none'):.2f}x)"
        if eager is not None and single is not None:
            ratio = number(eager, "us_per_env_step") / number(single, "us_per_env_step")
            line += f"; torch alone takes {ratio:.2f}x as long"
        lines.append(line)
    return lines


def _computed_in(row: Row) -> str:
    """The precision of a learner's row, and its graphs."""
    precision = "single precision" if row["precision"] == "none" else str(row["precision"])
    return f"{precision} with CUDA graphs" if row["graphs"] == "on" else precision


def _policy_line(cells: Sequence[Row]) -> str:
    head = f"{cells[0]['network']}, batch {cells[0]['batch']}"
    compared = _Comparison(cells, "us")
    if compared.baseline is None:
        return f"{head}: nothing to recommend, as no compressed policy was measured"
    torch = "" if compared.torch is None else f", {_us(number(compared.torch, 'us'))} on torch eager"
    if compared.best is None:
        return f"{head}: no compression. {compared.why_none('per call')}{torch}"
    best = compared.best
    size = f"{number(best, 'bytes'):,.0f} bytes instead of {number(compared.baseline, 'bytes'):,.0f}"
    return f"{head}: {compared.why_best('per call')}{torch}; {size}{_known(best)}"


def _actor_line(cells: Sequence[Row]) -> str:
    count = number(cells[0], "envs")
    head = f"{cells[0]['env']}, {cells[0]['network']}, {count:.0f} environment{'s' if count > 1 else ''} per actor"
    compared = _Comparison(cells, "us_per_env_step")
    if compared.baseline is None:
        return f"{head}: nothing to recommend, as no compressed policy was measured"
    torch = ""
    chosen = compared.best or compared.baseline
    if compared.torch is not None:
        ratio = number(compared.torch, "us_per_env_step") / number(chosen, "us_per_env_step")
        torch = f", {_us(number(compared.torch, 'us_per_env_step'))} on torch eager ({ratio:.2f} times as long)"
    limit = (
        f"; the environment alone takes {_us(number(chosen, 'env_only_us'))}, {number(chosen, 'env_share'):.0%} of the "
        "actor's time"
    )
    step = "per environment step"
    if compared.best is None:
        return f"{head}: no compression. {compared.why_none(step)}{torch}{limit}"
    return f"{head}: {compared.why_best(step)}{torch}{limit}{_known(compared.best)}"


def _refresh_line(cells: Sequence[Row]) -> str:
    head = f"{cells[0]['network']}, {cells[0]['envs']} environments per actor"
    compared = _Comparison(cells, "us")
    if compared.best is None or compared.baseline is None:
        return f"{head}: no compression. {compared.why_none('per call')}"
    best = compared.best
    steps, shared = number(best, "break_even_env_steps"), number(best, "break_even_shared_env_steps")
    saving = f"{best['scheme']} saves {_us(number(best, 'saving_us_per_env_step'))} per environment step"
    load = f"loads in {number(best, 'load_ms'):.2f} ms against {number(compared.baseline, 'load_ms'):.2f} ms in fp32"
    return (
        f"{head}: {saving} and {load}. It pays for an actor {_period(steps)}; where the learner shares the actor's "
        f"core, {_period(shared)}{_known(best)}"
    )


def _period(steps: float) -> str:
    if steps < 1.0:
        return "at any refresh interval"
    return f"from {steps:,.0f} environment steps per refresh"


def _known(best: Row) -> str:
    """The mismatch of a recommended scheme, where weights are trained."""
    if best["weights"] == "random":
        return ""
    return f"; KL {number(best, 'kl'):.2g} nats, ESS {number(best, 'ess'):.2f}"


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Caveats about the schemes and weights that were measured."""
    lines = []
    if any(row["weights"] == "random" for row in rows):
        lines.append("weights are random: schemes are recommended by speed alone; --run also measures mismatch")
    if any(_HALVES in str(row["scheme"]) for row in rows):
        lines.append("fp16: half the bytes, not faster on a CPU")
    if any(_is_untrained(row) for row in rows):
        lines.append("distill: the student is untrained here, so it is timed but never recommended")
    return lines


class _Comparison:
    """Schemes of one cell against full precision, each as an actor runs it, by the median of one column.

    Attributes:
        baseline: full precision. torch: torch eager. best: the fastest scheme that is worth it.
    """

    def __init__(self, cells: Iterable[Row], column: str) -> None:
        self._column = column
        cells = list(cells)
        placed = sorted((row for row in cells if not _is_torch(row)), key=_is_native)
        sessions = list({str(row["scheme"]): row for row in placed}.values())
        self.torch = next((row for row in cells if row.get("runtime") == "torch"), None)
        self.baseline = next((row for row in sessions if row["scheme"] == "fp32"), None)
        self._others = sorted((r for r in sessions if _may_be_faster(str(r["scheme"]))), key=self._time)
        self.best = next((row for row in self._others if self._is_worth_it(row)), None)

    def why_best(self, what: str) -> str:
        """The best scheme, its time, and the best one that keeps the whole network."""
        if self.best is None or self.baseline is None:
            raise ValueError("there is no best scheme")
        ratio = self._time(self.baseline) / self._time(self.best)
        text = (
            f"{self.best['scheme']} takes {_us(self._time(self.best))} {what} against {_us(self._time(self.baseline))} "
            f"in fp32, {ratio:.2f} times as fast"
        )
        whole = next((r for r in self._others if self._is_worth_it(r) and not _reduces(str(r["scheme"]))), None)
        if whole is not None and whole is not self.best:
            text += f" ({whole['scheme']}, which keeps the whole network, {_us(self._time(whole))})"
        return text

    def why_none(self, what: str) -> str:
        """Why no scheme is worth it."""
        if self.baseline is None:
            return "Full precision was not measured"
        text = f"fp32 takes {_us(self._time(self.baseline))} {what}"
        fast = [row for row in self._others if self._is_faster(row)]
        if fast:
            but = (
                "but its student is untrained" if _is_untrained(fast[0]) else "but its mismatch is over the alarm level"
            )
            return f"{text}; {fast[0]['scheme']} takes {_us(self._time(fast[0]))}, {but}"
        if not self._others:
            return f"{text}, and no scheme that may be faster was measured"
        fastest = self._others[0]
        unclear = " (within the spread)" if self._time(fastest) < self._time(self.baseline) else ""
        return f"{text}, the fastest scheme, {fastest['scheme']}, {_us(self._time(fastest))}{unclear}"

    def _is_worth_it(self, row: Row) -> bool:
        return self._is_faster(row) and not _is_untrained(row) and not _alarms(row)

    def _is_faster(self, row: Row) -> bool:
        return self.baseline is not None and is_faster(row, self.baseline, self._column)

    def _time(self, row: Row) -> float:
        return number(row, self._column)


def _is_native(row: Row) -> bool:
    return row.get("runtime") == "native"


def _is_torch(row: Row) -> bool:
    return str(row.get("runtime", "")).startswith("torch")


def _may_be_faster(scheme: str) -> bool:
    """A CPU computes half precision in single precision, so any measured difference is noise."""
    return scheme != "fp32" and _HALVES not in scheme


def _is_untrained(row: Row) -> bool:
    return row["weights"] == "random" and _STUDENT in str(row["scheme"])


def _alarms(row: Row) -> bool:
    """Whether a trained policy's mismatch is beyond the alarm levels, or NaN."""
    if row["weights"] != "trained":
        return False
    return not (number(row, "kl") <= HIGHEST_KL and number(row, "ess") >= LOWEST_ESS)


def _reduces(scheme: str) -> bool:
    return scheme.startswith(_REDUCTIONS)


def _groups(rows: Sequence[Row], columns: Sequence[str]) -> list[list[Row]]:
    """Rows of equal columns, in order of appearance."""

    def key(row: Row) -> tuple[str, ...]:
        return tuple(str(row[column]) for column in columns)

    order = {k: i for i, k in enumerate(dict.fromkeys(map(key, rows)))}
    ordered = sorted(rows, key=lambda row: order[key(row)])
    return [list(group) for _, group in groupby(ordered, key)]


def _us(microseconds: float) -> str:
    return f"{microseconds:.3g} µs" if microseconds < 1000.0 else f"{microseconds:,.0f} µs"
