"""Whether a compressed policy keeps the policy: one bar, on rows that calibrated nothing and on returns.

A policy that acts greedily is judged by its actions, not by a divergence: Q-values are no logits. The bar, on rows of
the policy's own episodes and on rows of episodes in which a fifth of the actions is random:

    discrete     the same greedy action in at least 99 % of the rows
    continuous   errors of the greedy action, as shares of each action's range: at most 1 % in the mean, at most 5 % for
                 99 % of the numbers
    returns      a paired mean loss of at most 5 % of the gain over random play

Returns alone are a weak test: some policies hardly lose any with errors of 18 % of the range. Where the interval of
the loss is too wide to decide, the rows do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import run_artifact
from accel.display.progress import Progress
from accel.envs.spaces import ALLOWED_ABOVE
from accel.json_object import Json
from accel.monitor.statistics import Interval, mean_interval
from accel.runs.player import Array
from accel.runs.playing import Episodes, collect_inputs, held_out
from accel.runs.trained_policy import Inputs, TrainedPolicy

LEAST_AGREEMENT, MOST_MEAN_ERROR, MOST_TAIL_ERROR, MOST_LOSS = 0.99, 0.01, 0.05, 0.05
RANDOM_SHARE = 0.2
OWN, OFF, RECORDED = "own episodes", "episodes with a fifth of random actions", "recorded observations"
_ROWS, _IMAGE_ROWS, _CALIBRATION_ROWS, _STEPS = 2048, 256, 2048, 512
# rows of one episode are alike, so that a few episodes would decide by chance
_ENVS, _IMAGE_ENVS = 16, 8
# of the environments that calibrate, of those whose rows are judged, and of those that choose an encoding
_CALIBRATED, _JUDGED, _CHOSEN = 0, 2, 4


@dataclass(frozen=True)
class RowQuality:
    """Greedy actions of a compressed policy beside full precision's, on rows of one kind.

    Attributes:
        inputs: what the rows are of. rows: how many.
        agreement: share of rows with the same greedy action; None where actions are continuous.
        lost_value: of single discrete actions, what the chosen ones are worth less by full precision's outputs than its
            own, as a share of the distance from the best to the worst; None for others.
        mean_error, tail_error, greatest_error: errors as shares of each action's range, in the mean, for 99 % of the
            numbers and at most; None where actions are discrete.
    """

    inputs: str
    rows: int
    agreement: float | None = None
    lost_value: float | None = None
    mean_error: float | None = None
    tail_error: float | None = None
    greatest_error: float | None = None

    @property
    def excess(self) -> float:
        """What is lost, in units of what the bar allows."""
        if self.agreement is not None:
            return (1.0 - self.agreement) / (1.0 - LEAST_AGREEMENT)
        return max((self.mean_error or 0.0) / MOST_MEAN_ERROR, (self.tail_error or 0.0) / MOST_TAIL_ERROR)

    @property
    def holds(self) -> bool:
        """Whether these rows are within the bar."""
        return self.excess <= 1.0 + 1e-9

    def text(self) -> str:
        """The figures in a line."""
        head = f"{self.rows:,} rows of {self.inputs}: "
        if self.agreement is None:
            return (
                f"{head}action error {self.mean_error:.2%} of the range in the mean, {self.tail_error:.2%} in 99 %, "
                f"{self.greatest_error:.2%} at most"
            )
        lost = "" if self.lost_value is None else f", value given up {self.lost_value:.2%}"
        return f"{head}same greedy action in {self.agreement:.2%}{lost}"


def compare_actions(run: TrainedPolicy, full: Array, ours: Array, inputs: str) -> RowQuality:
    """Greedy actions of outputs [N, P] beside those of full precision."""
    action, rows = run.spec.action, len(full)
    theirs, chosen = (np.asarray(run.choose(outputs.astype(np.float32)), np.float64) for outputs in (full, ours))
    if action.kind == "gaussian":
        # the range of an action is its bounds', else the one that the rows show
        bounds, shown = np.asarray(action.high) - np.asarray(action.low), np.ptp(theirs, axis=0)
        errors = np.abs(chosen - theirs) / np.maximum(np.where(np.isfinite(bounds), bounds, shown), 1e-12)
        tail, greatest = float(np.quantile(errors, 0.99)), float(errors.max())
        return RowQuality(inputs, rows, mean_error=float(errors.mean()), tail_error=tail, greatest_error=greatest)
    agreement = float((theirs == chosen).reshape(rows, -1).all(axis=1).mean())
    if action.kind != "categorical":
        return RowQuality(inputs, rows, agreement=agreement)
    values = full[:, : action.sizes[0]].astype(np.float64)
    best = values.max(axis=1)
    spread = best - values.min(axis=1, where=values > ALLOWED_ABOVE, initial=np.inf)
    lost = np.minimum(best - values[np.arange(rows), chosen.astype(np.int64)], spread)
    return RowQuality(inputs, rows, agreement=agreement, lost_value=float(lost.sum() / max(spread.sum(), 1e-12)))


@dataclass(frozen=True)
class Returns:
    """Full and compressed policy on the same seeds, and random play beside them.

    Attributes:
        episodes: of the compressed policy. full: of full precision. random: of random actions.
        engine: what the compressed policy was played on.
    """

    episodes: Episodes
    full: Episodes
    random: Episodes
    seed: int
    greedy: bool
    engine: str

    @property
    def loss(self) -> float:
        """Mean return lost, as a share of the magnitude of full precision's mean return; negative for a gain."""
        lost = float(self.full.returns.mean() - self.episodes.returns.mean())
        return lost / max(abs(float(self.full.returns.mean())), 1e-12) if lost else 0.0

    @property
    def gain(self) -> float:
        """Full precision's mean return over random play's."""
        return float(self.full.returns.mean() - self.random.returns.mean())

    @property
    def difference(self) -> Interval | None:
        """Mean of (compressed − full) by seed with its 95 % interval; None for a single episode."""
        return paired_difference(self.episodes, self.full)

    @property
    def caveat(self) -> str | None:
        """Why the interval is too narrow: a caveat on the games of either policy; None without one."""
        for name, episodes in (("the compressed policy's", self.episodes), ("full precision's", self.full)):
            if episodes.caveat is not None:
                return f"of {name} games, {episodes.caveat}"
        return None

    @property
    def holds(self) -> bool | None:
        """Whether the loss is within the bar; None where the episodes do not decide it."""
        return self._judgement[0]

    @property
    def verdict(self) -> str:
        """What the interval says of the loss, in words."""
        return self._judgement[1]

    @property
    def _judgement(self) -> tuple[bool | None, str]:
        difference, over = self.difference, f"random play ({self.random.returns.mean():.5g})"
        if difference is None:
            return None, "undecided: one episode says nothing"
        if self.caveat is not None:
            return None, f"undecided: {self.caveat}"
        if self.gain <= 0:
            return None, f"undecided: full precision gains nothing over {over}"
        least, most = -difference.high / self.gain, -difference.low / self.gain
        over = f"of the gain over {over}"
        if most <= MOST_LOSS:
            return True, f"kept: the loss is at most {max(0.0, most):.2%} {over}"
        if least > MOST_LOSS:
            return False, f"lost: at least {least:.2%} {over}"
        return None, f"undecided: the loss may be up to {100 * most:.3g} %, the gain up to {-100 * least:.3g} %, {over}"

    def to_json(self) -> Json:
        """A plain JSON object, every return included."""
        difference = self.difference
        return {
            "model": self.episodes.to_json(),
            "fp32": self.full.to_json(),
            "random": float(self.random.returns.mean()),
            "difference": None if difference is None else asdict(difference),
            "loss": self.loss,
            "verdict": self.verdict,
            "most_loss": MOST_LOSS,
            "caveat": self.caveat,
            "seed": self.seed,
            "acted": "greedy" if self.greedy else "sampled",
            "engine": self.engine,
        }


def paired_difference(episodes: Episodes, baseline: Episodes) -> Interval | None:
    """Mean of return − baseline's return over episodes of equal seeds, with Student's 95 % interval; None for a single
    episode."""
    return mean_interval(episodes.returns - baseline.returns) if len(episodes.returns) > 1 else None


@dataclass(frozen=True)
class Quality:
    """What was measured of a compressed policy, and whether it holds the bar."""

    scheme: str
    rows: tuple[RowQuality, ...]
    returns: Returns | None = None

    @property
    def failures(self) -> list[str]:
        """What is not within the bar."""
        found = [f"{row.text()} (the bar is {_bar(row)})" for row in self.rows if not row.holds]
        if self.returns is not None and self.returns.holds is False:
            found.append(f"return {self.returns.verdict} (the bar is {MOST_LOSS:.0%})")
        return found

    @property
    def holds(self) -> bool:
        """Whether all of it is within the bar; returns that decide nothing leave it to the rows."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.holds:
            return f"{self.scheme} keeps the policy"
        return f"{self.scheme} does not keep the policy: {'; '.join(self.failures)}"

    def text(self) -> str:
        """The figures and the verdict, in a few lines."""
        lines = [f"{self.scheme} against fp32 on {row.text()}" for row in self.rows]
        if self.returns is not None:
            lines.append(f"return of {self.scheme} {self.returns.verdict}")
        return "\n".join([*lines, self.verdict])

    def to_json(self) -> Json:
        """A plain JSON object, without the returns."""
        return {"holds": self.holds, "verdict": self.verdict, "rows": [asdict(row) for row in self.rows]}


def _bar(row: RowQuality) -> str:
    if row.agreement is not None:
        return f"{LEAST_AGREEMENT:.0%}"
    return f"{MOST_MEAN_ERROR:.0%} in the mean, {MOST_TAIL_ERROR:.0%} in 99 %"


def calibration_inputs(run: TrainedPolicy, scheme: str, seed: int, *, progress: Progress | None = None) -> Inputs:
    """Real inputs for ``finish`` and ``TrainedPolicy.compress``, in quarters: of its own episodes, of episodes in which
    a fifth of the actions is random, and both again of other episodes.

    Raises: what ``collect_inputs`` raises.
    """
    rows = 2 * max(run.calibration_rows(scheme), 0 if run.spec.has_images else _CALIBRATION_ROWS)
    if run.recorded is not None:
        return {name: array[:rows] for name, array in _recorded(run, seed)[1].items()}
    parts = [
        _played(run, -(-rows // 4), seed, stream + place, share, progress)
        for stream in (_CALIBRATED, _CHOSEN)
        for place, share in enumerate((0.0, RANDOM_SHARE))
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def judged_inputs(run: TrainedPolicy, seed: int, *, progress: Progress | None = None) -> Mapping[str, Inputs]:
    """The rows that the bar is on, by what they are of; none of them calibrates.

    Raises: what ``collect_inputs`` raises.
    """
    if run.recorded is not None:
        return {RECORDED: _recorded(run, seed)[0]}
    rows = _IMAGE_ROWS if run.spec.has_images else _ROWS
    return {
        name: _played(run, rows, seed, _JUDGED + place, share, progress)
        for place, (name, share) in enumerate(((OWN, 0.0), (OFF, RANDOM_SHARE)))
    }


def _played(run: TrainedPolicy, rows: int, seed: int, stream: int, share: float, progress: Progress | None) -> Inputs:
    envs = _IMAGE_ENVS if run.spec.has_images else _ENVS
    return collect_inputs(
        run, rows, seed, stream=stream, random_share=share, steps=_STEPS, envs=envs, progress=progress
    )


def _recorded(run: TrainedPolicy, seed: int) -> tuple[Inputs, Inputs]:
    """Recorded rows that are judged, and those that may calibrate."""
    return held_out(collect_inputs(run, sys.maxsize, seed), 2 * _ROWS)


def measure_rows(
    run: TrainedPolicy, artifact: CompressedPolicy, judged: Mapping[str, Inputs], full: CompressedPolicy
) -> tuple[RowQuality, ...]:
    """Greedy actions of an artifact beside full precision's, on rows of each kind."""
    return tuple(
        compare_actions(run, run_artifact(full, rows)[0], run_artifact(artifact, rows)[0], name)
        for name, rows in judged.items()
    )
