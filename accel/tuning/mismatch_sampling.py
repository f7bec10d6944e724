"""Mismatch over time: samples unrolls whose policy version was kept, and factors π_θ/μ into staleness × compression.

Every k-th version's acting parameters are copied into a ring of ``COPIES``; an unroll that such a version acted on is
measured once for each scheme, on as many of its environments as take ``SAMPLE_S``, at most ``MAX_ROWS`` rows, the
first time on one. The sampler measures the time that both take, without pauses of a stopped process, and keeps it below
``TIME_SHARE`` of the learner's; and a copy is overwritten only after unrolls of its version have had time to arrive.
These two conditions determine k.

Metrics, each the mean over the samples since the last record, weighted by valid rows, and absent without one:

    <factor>_<quantity>             over all schemes
    <factor>_<quantity>/<scheme>    of one scheme
    mismatch_samples, mismatch_samples/<scheme>     unrolls behind them
    mismatch_time_share             share of the learner's time that sampling took, over the whole run
    mismatch_alarms                 alarms of the newest samples, as clauses separated by "; "; empty without one

    factor      staleness, π_θ against π_v · compression, π_v against μ · total, π_θ against μ
    quantity    kl (nats) · chi2 · chi2_infinite (share of states) · ess · retention · greedy_agreement ·
                clipped (share of weights above clip_rho) · mean_weight

Alarms, at the levels of ``accel.monitor.mismatch``, are of each factor and scheme; each is logged when it first begins.
An alarm of compression makes the tuner fall back to full precision; an alarm of staleness calls for a smaller policy
lag, which less compression would not give.

The first second of a run may exceed the allowance, as may a process that is stopped in between.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.acting.rules import make_rule
from accel.algorithms.base import Algorithm
from accel.config import TrainConfig
from accel.experience.batch import Batch, Batcher
from accel.experience.unroll import Unroll
from accel.monitor.mismatch import (
    KL_ALARM,
    STALENESS_KL_ALARM,
    FactoredMismatch,
    Mismatch,
    effective_horizon,
    factor_mismatch,
)
from accel.tuning.mismatch_copies import PolicyCopies

COPIES = 4
MAX_ROWS = 512
SAMPLE_S = 0.1
TIME_SHARE = 0.015
RECENT_SAMPLES = 16
FACTORS = ("staleness", "compression", "total")
QUANTITIES = tuple(field.name for field in fields(Mismatch) if field.name != "states")
_BURST = 4.0

logger = logging.getLogger("accel")


class NoSampler:
    """No-op sampler, of a learner beside learner 0."""

    def published(self, version: int) -> None:
        """Keeps no copy."""

    def observe(self, unroll: Unroll) -> None:
        """Measures nothing."""

    def metrics(self) -> dict[str, float | int | str | None]:
        """No metrics."""
        return {}


class MismatchSampler:
    """Measures the mismatch of a run; if it cannot keep up, samples become rarer.

    Args:
        config: the run's, for its discount, λ and clips.
        algorithm: what the learner trains, and the distribution that its outputs make.
        rule: the actors', whose ε an unroll records. batcher: makes tensors of an unroll.
        schemes: names of the unrolls' scheme ids.
        time_share: of the learner's time that it may use.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        schemes: Sequence[str],
        batcher: Batcher,
        *,
        time_share: float = TIME_SHARE,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._clock = clock
        self._discount, self._trace = config.algorithm.discount, config.algorithm.trace
        self._algorithm = algorithm
        self._batcher = batcher
        self._action = algorithm.network.spec.action
        self._rule = make_rule(algorithm.rule, self._action)
        self._schemes = tuple(schemes)
        self._time_share = time_share
        self._copies = PolicyCopies(algorithm.network, COPIES)
        self._started = self._clock()
        self._spent_s = 0.0
        self._allowance_s = 0.0
        self._seen_s = self._started
        # the minimum of the last costs predicts the next: the first includes imports, others a stopped process
        self._sample_costs_s: deque[float] = deque(maxlen=4)
        self._column_costs_s: deque[float] = deque(maxlen=4)
        self._copy_costs_s: deque[float] = deque(maxlen=4)
        self._version = self._lag = 0
        self._measured: list[tuple[str, FactoredMismatch]] = []
        self._recent: dict[str, deque[FactoredMismatch]] = {}
        self._alarms, self._told = "", set[tuple[str, str, str]]()

    def published(self, version: int) -> None:
        """Keep this version's policy if it is its turn; called for every version offered to the actors."""
        self._version = version
        oldest = self._copies.oldest
        if oldest is not None and version - oldest <= 2 * self._lag + COPIES:
            return
        if not self._affords(min(self._copy_costs_s, default=0.0) + min(self._sample_costs_s, default=0.0)):
            return
        started = self._clock()
        self._copies.keep(version)
        self._pay(started, self._copy_costs_s)

    def observe(self, unroll: Unroll) -> None:
        """Measure an unroll if its version was kept; called when it arrives, before it is learned from."""
        version = unroll.oldest_version
        self._lag = max(self._version - version, self._lag - 1)
        ids = unroll["scheme_id"]
        # Workers may be ahead of each other, and so act with two policies.
        if version in self._copies.versions and int(unroll["policy_version"].max()) == version:
            if (ids == ids[0, 0]).all():
                self._offer(version, int(ids[0, 0]), unroll)

    def recent(self, scheme: str) -> tuple[FactoredMismatch, ...]:
        """The last samples of one scheme, oldest first, at most ``RECENT_SAMPLES`` since ``forget``."""
        return tuple(self._recent.get(scheme, ()))

    def forget(self) -> None:
        """Start the recent samples anew, because another level is in use."""
        self._recent.clear()

    @property
    def time_share(self) -> float:
        """Share of the time since its creation that this sampler used."""
        return self._spent_s / max(self._clock() - self._started, 1e-9)

    def metrics(self) -> dict[str, float | int | str | None]:
        """Metrics for the record, see the module's docstring."""
        metrics: dict[str, float | int | str | None] = {"mismatch_time_share": _short(self.time_share)}
        if self._measured:
            samples = [sample for _, sample in self._measured]
            metrics |= _figures("", len(samples), _means(samples))
            found: dict[str, Mapping[str, Mismatch]] = {}
            for scheme in dict.fromkeys(scheme for scheme, _ in self._measured):
                samples = [sample for name, sample in self._measured if name == scheme]
                found[scheme] = _means(samples)
                metrics |= _figures(f"/{scheme}", len(samples), found[scheme])
            self._measured.clear()
            self._look_for_alarms(found)
        metrics["mismatch_alarms"] = self._alarms
        return metrics

    def _look_for_alarms(self, found: Mapping[str, Mapping[str, Mismatch]]) -> None:
        """In one record's means, by scheme, then by factor."""
        clauses = {
            (scheme, factor, quantity): f"{factor} of {scheme}: {clause}"
            for scheme, factors in found.items()
            for factor, mean in factors.items()
            for quantity, clause in mean.alarms(KL_ALARM if factor == "compression" else STALENESS_KL_ALARM).items()
        }
        self._alarms = "; ".join(clauses.values())
        if begun := [clause for key, clause in clauses.items() if key not in self._told]:
            self._told |= clauses.keys()
            logger.warning("mismatch alarm: %s (reported once; metrics have the rest)", "; ".join(begun))

    def _offer(self, version: int, scheme_id: int, unroll: Unroll) -> None:
        taken = self._copies.versions[version]
        if (
            scheme_id in taken
            or not 0 <= scheme_id < len(self._schemes)
            or not self._affords(min(self._sample_costs_s, default=0.0))
        ):
            return
        started = self._clock()
        affordable = int(SAMPLE_S / max(min(self._column_costs_s, default=SAMPLE_S), 1e-9))
        length, environments = unroll["rewards"].shape
        wanted = min(max(affordable, 1), max(MAX_ROWS // length, 1), environments)
        columns = np.linspace(0, environments - 1, wanted).astype(np.int64)
        taken.add(scheme_id)
        batch = self._batcher.build([unroll])
        sample = self._measure(version, torch.from_numpy(columns), batch)
        self._pay(started, self._sample_costs_s)
        self._column_costs_s.append(self._sample_costs_s[-1] / wanted)
        if sample is None:
            return
        scheme = self._schemes[scheme_id]
        self._measured.append((scheme, sample))
        self._recent.setdefault(scheme, deque(maxlen=RECENT_SAMPLES)).append(sample)

    @torch.no_grad()
    def _measure(self, version: int, columns: Tensor, batch: Batch) -> FactoredMismatch | None:
        """Both policies on some environments of a batch, all rows of them; None where no row is valid."""
        length = batch.valid.shape[0]
        first = batch.first[:length].index_select(1, columns)  # on the host
        columns = columns.to(batch.valid.device)

        def chosen(tensor: Tensor) -> Tensor:
            return tensor.index_select(1, columns)

        valid = chosen(batch.valid)
        if not bool(valid.any()):
            return None
        observations, actions = chosen(batch.observations[:length]), chosen(batch.actions)
        states = tuple(state.index_select(0, columns) for state in batch.states)
        exploration = None if batch.exploration is None else chosen(batch.exploration)
        outputs = [self._copies.act(which, observations, first, states) for which in (None, version)]
        log_probs = [self._algorithm.distribution(output, exploration).log_prob(actions) for output in outputs]
        acted = chosen(batch.behaviour_log_prob)
        trace = self._trace
        return factor_mismatch(
            self._action,
            *(self._params(output, exploration) for output in (*outputs, chosen(batch.behaviour_params))),
            *((log_prob - acted).float().cpu().numpy() for log_prob in log_probs),
            valid=valid.cpu().numpy(),
            ends=chosen(batch.terminated | batch.truncated).cpu().numpy(),
            horizon=effective_horizon(self._discount, trace.lambda_, length),
            clip_rho=trace.clip_rho,
            clip_c=trace.clip_c,
        )

    def _params(self, outputs: Tensor, exploration: Tensor | None) -> npt.NDArray[np.floating]:
        """The outputs as parameters of the action space's distribution."""
        epsilon = None if exploration is None else exploration.cpu().numpy()
        return self._rule.action_params(outputs.float().cpu().numpy(), epsilon)

    def _affords(self, cost_s: float) -> bool:
        """Whether the allowance covers it. The allowance grows with time, up to a few samples."""
        now = self._clock()
        self._allowance_s += (now - self._seen_s) * self._time_share
        self._seen_s = now
        ceiling = _BURST * (max(self._copy_costs_s, default=0.0) + max(self._sample_costs_s, default=0.0))
        if ceiling > 0.0:
            self._allowance_s = min(self._allowance_s, ceiling)
        return self._allowance_s >= cost_s

    def _pay(self, started: float, costs_s: deque[float]) -> None:
        """Charge the time since ``started``, as the newest of ``costs_s``.

        A cost far above the usual one is a stopped process's; the allowance pays at most ``_BURST`` usual ones.
        """
        spent_s = self._clock() - started
        costs_s.append(spent_s)
        self._spent_s += spent_s
        usual_s = min(costs_s) if len(costs_s) < 3 else sorted(costs_s)[len(costs_s) // 2]
        self._allowance_s -= min(spent_s, _BURST * usual_s)


def average(samples: Sequence[Mismatch]) -> Mismatch:
    """The mean of some measurements, weighted by their states."""
    states = [sample.states for sample in samples]
    means = {q: float(np.average([getattr(sample, q) for sample in samples], weights=states)) for q in QUANTITIES}
    return Mismatch(states=sum(states), **means)


def _means(samples: Sequence[FactoredMismatch]) -> dict[str, Mismatch]:
    """By factor."""
    return {factor: average([getattr(sample, factor) for sample in samples]) for factor in FACTORS}


def _figures(suffix: str, samples: int, means: Mapping[str, Mismatch]) -> dict[str, float | int]:
    """For a record; names end in ``suffix``."""
    figures: dict[str, float | int] = {f"mismatch_samples{suffix}": samples}
    for factor, mean in means.items():
        figures |= {f"{factor}_{quantity}{suffix}": _short(getattr(mean, quantity)) for quantity in QUANTITIES}
    return figures


def _short(value: float) -> float:
    """Rounded to six digits, to keep records small."""
    return float(f"{value:.6g}")
