"""Sweeps after training: per-layer compression of a trained policy, screened by mismatch before anything is played."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.errors import ConfigError
from accel.json_object import Json
from accel.runs.loading import TrainedRun
from accel.sweep.choices import ChoiceOptions, SchemeSpace
from accel.sweep.endings import SAME_AS, UNBUILT, has_ended
from accel.sweep.front import Row
from accel.sweep.measure import MeasureOptions, Workbench
from accel.sweep.quantities import AFTER_TRAINING, Values
from accel.sweep.recovery import ERROR
from accel.sweep.sensitivity import measure_sensitivity, sensitivity_json, sensitivity_markdown
from accel.sweep.study import CAVEAT, MEASURED, SKIPPED, Outcome, StudyOptions
from accel.system.atomic import write_atomically
from compressors.errors import SchemeError, UnsupportedLayerError
from compressors.layer_inventory import policy_layers

_SCHEME, _RETURNS, _REFERENCES = "scheme", "returns", "references"
# How much slower than a played candidate another must be to count as dominated: what repeated measurements differ by.
_LATENCY_MARGIN = 1.05
_REFERENCE_MEASUREMENTS = 8
_BUILT, _NEAR = _OWN_CONSTRAINTS = ("can be built", "kl<=max_kl")

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class AfterOptions:
    """What a sweep after training does beyond the study.

    Attributes:
        choices: what there is to choose from.
        measure: how candidates are measured.
        max_kl: candidates further than this from fp32 are not played, mean KL in nats.
        sensitivity: whether to measure every layer alone.
    """

    choices: ChoiceOptions
    measure: MeasureOptions
    max_kl: float
    sensitivity: bool = True


class AfterTraining:
    """One trained run under search; see ``driver.Experiment``."""

    quantities = AFTER_TRAINING
    kind = "after training"

    def __init__(self, run: TrainedRun, options: AfterOptions, study: StudyOptions) -> None:
        """Raises ConfigError: an empty space, or ``agreement`` of continuous actions."""
        if not options.max_kl > 0:
            raise ConfigError(f"max_kl = {options.max_kl}: give a bound above 0, in nats")
        self._wanted = {q.name for q in study.objectives} | {c.quantity for c in study.constraints}
        if "agreement" in self._wanted and run.spec.action.kind == "gaussian":
            raise ConfigError("agreement counts equal actions, which continuous ones never are: use kl")
        torch.set_num_threads(1)
        self._run = run
        self._options = options
        self._trials = study.trials
        layers = policy_layers(run.policy, run.example_inputs, run.policy.output_names)
        self._space = SchemeSpace(layers, options.choices)
        self._bench: Workbench | None = None
        self._references: dict[str, float] = {}

    @property
    def title(self) -> str:
        """What is swept, in a few words."""
        return f"{self._run.config.env}, {self._run.config.network}, run {self._run.path.name}"

    @property
    def bench(self) -> Workbench:
        """Made on first use: it plays."""
        if self._bench is None:
            self._bench = Workbench(self._run, self._options.measure)
        return self._bench

    def subject(self) -> Json:
        """See ``driver.Experiment.subject``."""
        options = self._options
        return {
            "kind": self.kind,
            "run": str(self._run.path),
            "policy_version": self._run.version,
            "layers": [layer.name for layer in self._space.layers],
            "bits": list(options.choices.bits),
            "prune": list(options.choices.pruned),
            "rank": list(options.choices.ranks),
            "rows": options.measure.rows,
            "batch": options.measure.batch,
            "episodes": options.measure.episodes,
            "episode_seed": options.measure.seed,
            "acted": "sampled" if options.measure.sample else "greedy",
            "max_kl": options.max_kl,
        }

    def prepare(self, study: Study, directory: Path) -> None:
        """See ``driver.Experiment.prepare``: fp32's figures, the table of sensitivities, uniform schemes first."""
        bench = self.bench
        known = study.user_attrs.get(_REFERENCES)
        if known is None:
            screened = bench.screen(bench.fp32)
            # what others do on this machine slows single measurements down, and all latencies refer to this one
            latency = min(bench.latencies([bench.fp32])[0].median_us for _ in range(_REFERENCE_MEASUREMENTS))
            known = {"bytes": screened["bytes"], "latency": latency, "kl": 0.0, "agreement": 1.0}
            if "return" in self._wanted:
                returns = bench.play(bench.fp32)
                known["return"] = sum(returns) / len(returns)
                study.set_user_attr(_RETURNS, returns)
                if bench.caveat is not None:
                    logger.warning("%s (--sample)", bench.caveat)
                    study.set_user_attr(CAVEAT, bench.caveat)
            study.set_user_attr(_REFERENCES, known)
        self._references = dict(known)
        table = directory / "sensitivity.json"
        if self._options.sensitivity and not table.exists():
            logger.info("measuring every layer alone")
            rows = measure_sensitivity(self._space, bench)
            size = int(self._references["bytes"])
            text = sensitivity_markdown(rows, size, self.title)
            write_atomically(directory / "sensitivity.md", text.encode())
            write_atomically(table, json.dumps(sensitivity_json(rows, size), indent=2).encode() + b"\n")
        if not study.get_trials(deepcopy=False):
            for parameters in islice(self._space.uniform(), self._trials):
                study.enqueue_trial(dict(parameters), skip_if_exists=True)

    @property
    def references(self) -> Values:
        """See ``driver.Experiment.references``."""
        return self._references

    def evaluate(self, trial: Trial) -> Outcome:
        """See ``driver.Experiment.evaluate``."""
        scheme = self._space.suggest(trial)
        trial.set_user_attr(_SCHEME, scheme)
        trials = trial.study.get_trials(deepcopy=False)
        for other in trials:
            if has_ended(other) and other.user_attrs.get(_SCHEME) == scheme:
                trial.set_user_attr(SAME_AS, other.number)
                violations = {name: v for name, v in other.constraints.items() if name in _OWN_CONSTRAINTS}
                skipped = other.user_attrs.get(SKIPPED)
                if ERROR in other.user_attrs:
                    skipped = f"failed as trial {other.number}"
                return Outcome(other.user_attrs.get(MEASURED, {}), self._references, violations, skipped)
        try:
            artifact = self.bench.compress(scheme)
        except (SchemeError, UnsupportedLayerError) as error:
            return Outcome({}, self._references, {_BUILT: 1.0}, f"cannot be built: {error}", UNBUILT)
        measured = self.bench.screen(artifact)
        measured["latency"] = self._latency(measured["policy_us"], measured["fp32_us"])
        trial.set_user_attr(MEASURED, measured)
        if "return" not in self._wanted:
            return Outcome(measured, self._references)
        if measured["kl"] > self._options.max_kl:
            excess = measured["kl"] / self._options.max_kl - 1.0
            reason = f"not played: KL {measured['kl']:.3g} is over {self._options.max_kl:g} nats"
            return Outcome(measured, self._references, {_NEAR: excess}, reason, "too far from fp32")
        better = next((other for other in trials if _dominates(other, measured)), None)
        if better is not None:
            reason = f"not played: trial {better.number} is nearer to fp32, faster and smaller"
            return Outcome(measured, self._references, {_NEAR: -1.0}, reason, "dominated")
        returns = self.bench.play(artifact)
        trial.set_user_attr(_RETURNS, returns)
        return Outcome({**measured, "return": sum(returns) / len(returns)}, self._references, {_NEAR: -1.0})

    def label(self, trial: FrozenTrial) -> str:
        """See ``driver.Experiment.label``."""
        return str(trial.user_attrs.get(_SCHEME, "?"))

    def configuration(self, trial: FrozenTrial) -> Mapping[str, object]:
        """See ``driver.Experiment.configuration``: the run's own, with the scheme in it."""
        config = self._run.config.replace(compressor=self.label(trial), actor_runtime="onnxruntime", name=None)
        return {name: value for name, value in config.to_toml_values().items() if name != "results_dir"}

    def export_command(self, label: str, directory: Path) -> str | None:
        """See ``driver.Experiment.export_command``."""
        run, out = shlex.quote(str(self._run.path)), shlex.quote(str(directory))
        return f"accel export {run} --scheme {shlex.quote(label)} --format onnx --out {out}"

    def how_measured(self) -> str:
        """See ``driver.Experiment.how_measured``."""
        batch, latency = self._options.measure.batch, self._references["latency"]
        return (
            f"Latency: median of a policy call of {batch} observation{'' if batch == 1 else 's'} on this machine, one "
            f"thread, relative to fp32 measured in turns, scaled to fp32's {latency:.4g} µs; the best trade-offs were "
            "measured again, all in turns, with quartiles in pareto.json. Devices mostly act on one observation: "
            "`--batch 1`."
        )

    def measure_again(self, rows: list[Row]) -> list[Row]:
        """See ``driver.Experiment.measure_again``: latencies of all in turns, with fp32 among them."""
        if "latency" not in self._wanted or not rows:
            return rows
        logger.info("measuring the latency of %d candidates again, in turns", len(rows))
        artifacts = [self.bench.fp32, *(self.bench.compress(row.label) for row in rows)]
        fp32, *found = self.bench.latencies(artifacts)
        return [
            row.with_values(
                **{
                    name: self._latency(us, fp32.median_us)
                    for name, us in (
                        ("latency", timed.median_us),
                        ("latency_q1", timed.q1_us),
                        ("latency_q3", timed.q3_us),
                    )
                },
                policy_us=timed.median_us,
                fp32_us=fp32.median_us,
            )
            for row, timed in zip(rows, found, strict=True)
        ]

    def _latency(self, policy_us: float, fp32_us: float) -> float:
        """Microseconds as they were when fp32 was first measured: what slows both down at another time cancels out."""
        return policy_us / fp32_us * self._references["latency"]


def _dominates(other: FrozenTrial, measured: Values) -> bool:
    """Whether a trial that was played is no worse in mismatch and bytes, and faster by more than measurements vary."""
    if other.state != TrialState.COMPLETE:
        return False
    theirs: Values = other.user_attrs[MEASURED]
    return (
        theirs["kl"] <= measured["kl"]
        and theirs["bytes"] <= measured["bytes"]
        and theirs["latency"] * _LATENCY_MARGIN <= measured["latency"]
    )
