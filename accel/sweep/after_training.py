"""Sweeps after training: layers of a trained policy are compressed, and screened by mismatch before they are played."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import SchemeError, UnsupportedLayerError
from accel.compressors.layer_inventory import policy_layers, prunable_units
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.json_object import Json
from accel.runs.fp32_comparison import compare_with_fp32, time_in_turns
from accel.runs.loading import TrainedRun
from accel.runs.playing import Episodes, collect_inputs, held_out, play
from accel.runs.trained_policy import TrainedPolicy
from accel.sweep.experiment import Experiment, Measurement
from accel.sweep.objectives import AFTER_TRAINING, Values
from accel.sweep.pareto import Candidate
from accel.sweep.recovery import ERROR
from accel.sweep.scheme_space import SchemeSpace
from accel.sweep.search import CandidateOptions, StudyPlan
from accel.sweep.study import DOMINATED, MEASURED, RETURNS, SAME_AS, SKIPPED, TOO_FAR, UNBUILT, has_ended

_SCHEME, _REFERENCES, _CAVEAT = "scheme", "references", "caveat"
# A candidate counts as dominated only if it is slower than another by more than measurements vary.
_LATENCY_MARGIN = 1.05
_REFERENCE_MEASUREMENTS = 8
_ROUNDS, _ROUND_S = 40, 0.003
_BUILT, _NEAR = _OWN_CONSTRAINTS = ("can be built", "kl<=max_kl")

logger = logging.getLogger("accel")


class AfterTraining(Experiment):
    """One trained policy under search; all measurements but the latency are deterministic."""

    metrics = AFTER_TRAINING
    kind = "after training"

    def __init__(self, run: TrainedPolicy, options: CandidateOptions, plan: StudyPlan) -> None:
        """Raises ConfigError: an empty space, or ``agreement`` of continuous actions."""
        self._wanted = plan.metrics
        if "agreement" in self._wanted and run.spec.action.kind == "gaussian":
            raise ConfigError("agreement counts equal actions, which continuous ones never are: use kl")
        if "return" in self._wanted and run.recorded is not None:
            raise ConfigError("recorded observations give no return: use kl or agreement, or give --env")
        torch.set_num_threads(1)
        self._run, self._options, self._plan = run, options, plan
        self._batch = options.batch or run.config.acting.envs_per_actor
        self._acted = "sampled" if options.sample else "greedy"
        layers = policy_layers(run.graph, run.policy, prunable_units(run.policy, run.example_inputs))
        self._schemes = SchemeSpace(layers, options)
        self.title = f"{run.config.environment.env}, {run.architecture}, {run.path.name}"
        self.space = self._schemes.parameters
        self.references: Values = {}

    def subject(self) -> Json:
        """See ``Experiment.subject``."""
        return {
            "kind": self.kind,
            **self._run.identity,
            "layers": [layer.name for layer in self._schemes.layers],
            **self._options.model_dump(mode="json", exclude={"sample"}),
            "batch": self._batch,
            "episode_seed": self._plan.seed,
            "acted": self._acted,
        }

    def prepare(self, study: Study) -> None:
        """See ``Experiment.prepare``: real observations, fp32's metrics, uniform schemes as first trials."""
        run, rows = self._run, self._options.rows
        self._fp32 = run.compress("fp32")
        inputs = collect_inputs(run, 2 * rows, self._plan.seed, policy=self._fp32)
        self._inputs, self._calibration = held_out(inputs, rows)
        known = study.user_attrs.get(_REFERENCES)
        if known is None:
            # all latencies refer to this one, and the minimum is the least disturbed by other processes
            latency = min(self._latencies([self._fp32])[0][1] for _ in range(_REFERENCE_MEASUREMENTS))
            known = {"bytes": float(len(self._fp32.to_bytes())), "latency": latency, "kl": 0.0, "agreement": 1.0}
            if "return" in self._wanted:
                episodes = self.play(self._fp32)
                known["return"] = float(episodes.returns.mean())
                study.set_user_attr(RETURNS, episodes.returns.tolist())
                if episodes.caveat is not None:
                    logger.warning("%s (--sample)", episodes.caveat)
                    study.set_user_attr(_CAVEAT, episodes.caveat)
            study.set_user_attr(_REFERENCES, known)
        self.references, self._caveat = known, study.user_attrs.get(_CAVEAT)
        if not study.get_trials(deepcopy=False):
            for parameters in islice(self._schemes.uniform(), self._plan.trials):
                study.enqueue_trial(dict(parameters), skip_if_exists=True)

    def evaluate(self, trial: Trial) -> Measurement:
        """See ``Experiment.evaluate``."""
        scheme = self._schemes.scheme_of(trial.params)
        trial.set_user_attr(_SCHEME, scheme)
        trials = trial.study.get_trials(deepcopy=False)
        for other in trials:
            if has_ended(other) and other.user_attrs.get(_SCHEME) == scheme:
                trial.set_user_attr(SAME_AS, other.number)
                violations = {name: v for name, v in other.constraints.items() if name in _OWN_CONSTRAINTS}
                skipped = other.user_attrs.get(SKIPPED, other.user_attrs.get(ERROR))
                return Measurement(other.user_attrs.get(MEASURED, {}), violations, skipped)
        try:
            artifact = self._run.compress(scheme, self._calibration)
        except (SchemeError, UnsupportedLayerError) as error:
            return Measurement({}, {_BUILT: 1.0}, f"{UNBUILT}: {error}")
        measured = self._screen(artifact)
        trial.set_user_attr(MEASURED, measured)
        if "return" not in self._wanted:
            return Measurement(measured)
        if measured["kl"] > self._options.max_kl:
            excess = measured["kl"] / self._options.max_kl - 1.0
            reason = f"{TOO_FAR}: KL {measured['kl']:.3g} nats, over {self._options.max_kl:g}"
            return Measurement(measured, {_NEAR: excess}, reason)
        better = next((other for other in trials if _dominates(other, measured)), None)
        if better is not None:
            reason = f"{DOMINATED}: trial {better.number} is closer to fp32, faster and smaller"
            return Measurement(measured, {_NEAR: -1.0}, reason)
        returns = self.play(artifact).returns
        trial.set_user_attr(RETURNS, returns.tolist())
        return Measurement({**measured, "return": float(returns.mean())}, {_NEAR: -1.0})

    def play(self, artifact: CompressedPolicy) -> Episodes:
        """The seeded episodes, the same seeds for every artifact."""
        options = self._options
        seed, greedy = self._plan.seed, not options.sample
        return play(artifact, self._run, episodes=options.episodes, seed=seed, greedy=greedy)

    def label(self, trial: FrozenTrial) -> str:
        """See ``Experiment.label``."""
        return str(trial.user_attrs.get(_SCHEME, "?"))

    def configuration(self, trial: FrozenTrial) -> TrainConfig | None:
        """See ``Experiment.configuration``: the run's own, with the scheme in it."""
        if not isinstance(self._run, TrainedRun):
            return None
        return self._run.config.replace(compressor=self.label(trial), actor_runtime="native")

    def export_command(self, label: str, directory: Path) -> str | None:
        """See ``Experiment.export_command``."""
        if self._run.arguments is None:
            return None
        scheme = ("--scheme", label, "--format", "onnx", "--accept-loss", "--out", str(directory))
        return shlex.join(("accel", "export", *self._run.arguments, *scheme))

    def how_measured(self) -> str:
        """See ``Experiment.how_measured``."""
        batch, episodes, latency = self._batch, self._options.episodes, self.references["latency"]
        text = (
            f"Latency: median of a policy call of {batch} observation{'' if batch == 1 else 's'} as actors run it, "
            f"this machine, one thread, relative to fp32 measured in turns, scaled to fp32's {latency:.4g} µs. The "
            "Pareto front was measured again, all in turns, with quartiles in pareto.json. Devices usually act on one "
            "observation: `--batch 1`."
        )
        if "return" not in self._wanted:
            return text
        ends = "." if self._caveat is None else f"; in full precision {self._caveat}."
        return f"A return is the mean of {episodes} {self._acted} episodes on the same seeds{ends}\n\n{text}"

    def measure_again(self, rows: Sequence[Candidate]) -> list[Candidate]:
        """See ``Experiment.measure_again``: latencies of all in turns, with fp32 among them."""
        if "latency" not in self._wanted or not rows:
            return list(rows)
        logger.info("measuring the latency of %d candidates again, in turns", len(rows))
        artifacts = [self._fp32, *(self._run.compress(row.label, self._calibration) for row in rows)]
        (_, fp32_us, _), *quartiles = self._latencies(artifacts)
        found = []
        for row, (q1, median, q3) in zip(rows, quartiles, strict=True):
            times = {"latency": median, "latency_q1": q1, "latency_q3": q3}
            again = {name: self._scaled(us, fp32_us) for name, us in times.items()}
            again |= {"policy_us": median, "fp32_us": fp32_us}
            found.append(replace(row, values={**row.values, **again}))
        return found

    def _screen(self, artifact: CompressedPolicy) -> dict[str, float]:
        """Every metric but the return, and the two medians behind the latency."""
        run = self._run
        found = compare_with_fp32(
            artifact, self._fp32, self._inputs, run.distribution, run.spec.action,
            batch=self._batch, env_us=0.0,
        )  # fmt: skip
        agreement = {} if found.agreement is None else {"agreement": found.agreement}
        return {
            "kl": found.kl,
            "policy_us": found.policy_us,
            "fp32_us": found.fp32_us,
            "latency": self._scaled(found.policy_us, found.fp32_us),
            "bytes": float(found.bytes),
            **agreement,
        }

    def _latencies(self, artifacts: Sequence[CompressedPolicy]) -> list[list[float]]:
        """[first quartile, median, third quartile] of the microseconds of a policy call, all artifacts in turns."""
        samples = time_in_turns(artifacts, self._inputs, self._batch, rounds=_ROUNDS, round_s=_ROUND_S)
        quartiles: list[list[float]] = np.quantile(samples, (0.25, 0.5, 0.75), axis=1).T.tolist()
        return quartiles

    def _scaled(self, policy_us: float, fp32_us: float) -> float:
        """Microseconds under the conditions of fp32's first measurement; later slow-downs of both cancel out."""
        return policy_us / fp32_us * self.references["latency"]


def _dominates(other: FrozenTrial, measured: Values) -> bool:
    """Whether a played trial is no worse in mismatch and bytes, and faster by more than measurements vary."""
    theirs: Values = other.user_attrs.get(MEASURED, {})
    return (
        other.state == TrialState.COMPLETE
        and {"kl", "bytes", "latency"} <= theirs.keys()
        and theirs["kl"] <= measured["kl"]
        and theirs["bytes"] <= measured["bytes"]
        and theirs["latency"] * _LATENCY_MARGIN <= measured["latency"]
    )
