"""Sweeps after training: per-layer compression of a trained policy, screened by mismatch before any episode is played.

``AfterTraining`` is the experiment, ``Workbench`` measures candidates, ``measure_sensitivity`` measures each layer
alone.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import SchemeError, UnsupportedLayerError
from accel.compressors.layer_inventory import policy_layers
from accel.compressors.runtime import PolicySession
from accel.errors import ConfigError
from accel.json_object import Json
from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.loading import TrainedRun
from accel.runs.playing import collect_inputs, play
from accel.runs.trained_policy import TrainedPolicy
from accel.sweep.objectives import AFTER_TRAINING, Values
from accel.sweep.options import CandidateOptions
from accel.sweep.pareto import Candidate
from accel.sweep.recovery import ERROR
from accel.sweep.scheme_space import LayerChoice, SchemeSpace
from accel.sweep.study import CAVEAT, MEASURED, SAME_AS, SKIPPED, UNBUILT, Measurement, StudyOptions, has_ended
from accel.system.atomic import write_atomically

_SCHEME, _RETURNS, _REFERENCES = "scheme", "returns", "references"
# A candidate counts as dominated only if it is slower than another by more than measurements vary.
_LATENCY_MARGIN = 1.05
_REFERENCE_MEASUREMENTS = 8
_ROUNDS, _ROUND_S = 40, 0.003
_BUILT, _NEAR = _OWN_CONSTRAINTS = ("can be built", "kl<=max_kl")

logger = logging.getLogger("accel")


class AfterTraining:
    """One trained policy under search; see ``driver.Experiment``."""

    metrics = AFTER_TRAINING
    kind = "after training"

    def __init__(self, run: TrainedPolicy, options: CandidateOptions, study: StudyOptions) -> None:
        """Raises ConfigError: an empty space, or ``agreement`` of continuous actions."""
        if not options.max_kl > 0:
            raise ConfigError(f"max_kl = {options.max_kl}: give a bound above 0, in nats")
        self._wanted = {q.name for q in study.objectives} | {c.metric for c in study.constraints}
        if "agreement" in self._wanted and run.spec.action.kind == "gaussian":
            raise ConfigError("agreement counts equal actions, which continuous ones never are: use kl")
        torch.set_num_threads(1)
        self._run = run
        self._options = options
        self._study = study
        layers = policy_layers(run.policy, run.example_inputs, run.policy.output_names)
        self._space = SchemeSpace(layers, options.choices)
        self._bench: Workbench | None = None
        self._references: dict[str, float] = {}

    @property
    def title(self) -> str:
        """See ``driver.Experiment.title``."""
        return f"{self._run.config.environment.env}, {self._run.architecture}, {self._run.path.name}"

    @property
    def bench(self) -> Workbench:
        """Created on first use, as that plays episodes."""
        if self._bench is None:
            self._bench = Workbench(self._run, self._options, self._study.seed)
        return self._bench

    @property
    def _batch(self) -> int:
        return self._options.batch or self._run.config.acting.envs_per_actor

    def subject(self) -> Json:
        """See ``driver.Experiment.subject``."""
        options = self._options
        return {
            "kind": self.kind,
            **self._run.identity,
            "layers": [layer.name for layer in self._space.layers],
            "bits": list(options.choices.bits),
            "prune": list(options.choices.pruned),
            "rank": list(options.choices.ranks),
            "rows": options.rows,
            "batch": self._batch,
            "episodes": options.episodes,
            "episode_seed": self._study.seed,
            "acted": "sampled" if options.sample else "greedy",
            "max_kl": options.max_kl,
        }

    def prepare(self, study: Study, directory: Path) -> None:
        """See ``driver.Experiment.prepare``: fp32's metrics, sensitivities, uniform schemes as first trials."""
        bench = self.bench
        known = study.user_attrs.get(_REFERENCES)
        if known is None:
            screened = bench.screen(bench.fp32)
            # all latencies refer to this one, and the minimum is the least disturbed by other processes
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
            logger.info("measuring each layer alone")
            rows = measure_sensitivity(self._space, bench)
            size = int(self._references["bytes"])
            text = sensitivity_markdown(rows, size, self.title)
            write_atomically(directory / "sensitivity.md", text.encode())
            write_atomically(
                table,
                json.dumps({"fp32_bytes": size, "rows": [asdict(row) for row in rows]}, indent=2).encode() + b"\n",
            )
        if not study.get_trials(deepcopy=False):
            for parameters in islice(self._space.uniform(), self._study.trials):
                study.enqueue_trial(dict(parameters), skip_if_exists=True)

    @property
    def references(self) -> Values:
        """See ``driver.Experiment.references``."""
        return self._references

    def evaluate(self, trial: Trial) -> Measurement:
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
                return Measurement(other.user_attrs.get(MEASURED, {}), self._references, violations, skipped)
        try:
            artifact = self.bench.compress(scheme)
        except (SchemeError, UnsupportedLayerError) as error:
            return Measurement({}, self._references, {_BUILT: 1.0}, f"cannot be built: {error}", UNBUILT)
        measured = self.bench.screen(artifact)
        measured["latency"] = self._latency(measured["policy_us"], measured["fp32_us"])
        trial.set_user_attr(MEASURED, measured)
        if "return" not in self._wanted:
            return Measurement(measured, self._references)
        if measured["kl"] > self._options.max_kl:
            excess = measured["kl"] / self._options.max_kl - 1.0
            reason = f"not played: KL {measured['kl']:.3g} is over {self._options.max_kl:g} nats"
            return Measurement(measured, self._references, {_NEAR: excess}, reason, "too far from fp32")
        better = next((other for other in trials if _dominates(other, measured)), None)
        if better is not None:
            reason = f"not played: trial {better.number} is closer to fp32, faster and smaller"
            return Measurement(measured, self._references, {_NEAR: -1.0}, reason, "dominated")
        returns = self.bench.play(artifact)
        trial.set_user_attr(_RETURNS, returns)
        return Measurement({**measured, "return": sum(returns) / len(returns)}, self._references, {_NEAR: -1.0})

    def label(self, trial: FrozenTrial) -> str:
        """See ``driver.Experiment.label``."""
        return str(trial.user_attrs.get(_SCHEME, "?"))

    def configuration(self, trial: FrozenTrial) -> Mapping[str, object] | None:
        """See ``driver.Experiment.configuration``: the run's own, with the scheme in it."""
        if not isinstance(self._run, TrainedRun):
            return None
        config = self._run.config.replace(compressor=self.label(trial), actor_runtime="native", name=None)
        return {name: value for name, value in config.to_toml_values().items() if name != "results_dir"}

    def export_command(self, label: str, directory: Path) -> str | None:
        """See ``driver.Experiment.export_command``."""
        if self._run.arguments is None:
            return None
        scheme = ("--scheme", label, "--format", "onnx", "--out", str(directory))
        return shlex.join(("accel", "export", *self._run.arguments, *scheme))

    def how_measured(self) -> str:
        """See ``driver.Experiment.how_measured``."""
        batch, latency = self._batch, self._references["latency"]
        return (
            f"Latency: median of a policy call of {batch} observation{'' if batch == 1 else 's'} on onnxruntime, this "
            f"machine, one thread, relative to fp32 measured in turns, scaled to fp32's {latency:.4g} µs. The Pareto "
            "front was measured again, all in turns, with quartiles in pareto.json. Devices usually act on one "
            "observation: `--batch 1`."
        )

    def measure_again(self, rows: list[Candidate]) -> list[Candidate]:
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
        """Microseconds under the conditions of fp32's first measurement; later slow-downs of both cancel out."""
        return policy_us / fp32_us * self._references["latency"]


def _dominates(other: FrozenTrial, measured: Values) -> bool:
    """Whether a played trial is no worse in mismatch and bytes, and faster by more than measurements vary."""
    if other.state != TrialState.COMPLETE:
        return False
    theirs: Values = other.user_attrs[MEASURED]
    return (
        theirs["kl"] <= measured["kl"]
        and theirs["bytes"] <= measured["bytes"]
        and theirs["latency"] * _LATENCY_MARGIN <= measured["latency"]
    )


@dataclass(frozen=True)
class CallTime:
    """Microseconds of a policy call: median and quartiles over rounds."""

    median_us: float
    q1_us: float
    q3_us: float


class Workbench:
    """Measures schemes on one trained policy; all but the latency is deterministic.

    Attributes:
        fp32: the uncompressed artifact.
        caveat: about the episodes played last, None for none.
    """

    def __init__(self, run: TrainedPolicy, options: CandidateOptions, seed: int) -> None:
        """Plays to collect real observations. Raises what ``collect_inputs`` raises."""
        self._run, self._options, self._seed = run, options, seed
        self._batch = options.batch or run.config.acting.envs_per_actor
        self.caveat: str | None = None
        self.fp32 = run.compress("fp32")
        self._calibration = collect_inputs(run, options.rows, seed, policy=self.fp32)
        self._inputs = collect_inputs(run, options.rows, seed + 1, policy=self.fp32)

    def compress(self, scheme: str) -> CompressedPolicy:
        """The policy under a scheme, calibrated on real observations. Raises CompressorError."""
        return self._run.compress(scheme, self._calibration)

    def screen(self, artifact: CompressedPolicy) -> dict[str, float]:
        """``kl``; ``policy_us`` and ``fp32_us``, medians measured in turns; ``bytes``; ``agreement`` of discrete
        actions."""
        run = self._run
        found = compare_with_fp32(
            artifact, self.fp32, self._inputs, run.distribution, run.spec.action,
            batch=self._batch, env_us=0.0, runtime="onnxruntime",
        )  # fmt: skip
        measured = {
            "kl": found.kl, "policy_us": found.policy_us, "fp32_us": found.fp32_us, "bytes": float(found.bytes),
        }  # fmt: skip
        if found.agreement is not None:
            measured["agreement"] = found.agreement
        return measured

    def play(self, artifact: CompressedPolicy) -> list[float]:
        """Returns of the seeded episodes, the same seeds for every artifact."""
        options = self._options
        episodes = play(artifact, self._run, episodes=options.episodes, seed=self._seed, greedy=not options.sample)
        self.caveat = episodes.caveat
        return [float(value) for value in episodes.returns]

    def latencies(self, artifacts: Sequence[CompressedPolicy]) -> list[CallTime]:
        """Times of a policy call of each of at least one artifact, in turns over many rounds."""
        sessions = [PolicySession(artifact, batch=self._batch, runtime="onnxruntime") for artifact in artifacts]
        rows = np.resize(np.arange(len(next(iter(self._inputs.values())))), self._batch)
        calls = []
        for session in sessions:
            for name, values in self._inputs.items():
                session.inputs[name][...] = values[rows]
            calls.append(max(int(_ROUND_S / max(_seconds(session, 3), 1e-7)), 1))
        samples = np.empty((_ROUNDS, len(sessions)))
        for number in range(_ROUNDS):
            for index, session in enumerate(sessions):
                samples[number, index] = 1e6 * _seconds(session, calls[index])
        q1, median, q3 = np.quantile(samples, (0.25, 0.5, 0.75), axis=0)
        return [CallTime(float(m), float(low), float(high)) for m, low, high in zip(median, q1, q3, strict=True)]


def _seconds(session: PolicySession, calls: int) -> float:
    session.run()
    start = perf_counter()
    for _ in range(calls):
        session.run()
    return (perf_counter() - start) / calls


@dataclass(frozen=True)
class SensitivityRow:
    """One layer compressed alone, the others in single precision.

    Attributes:
        layer: its name. shape: of its weight as a matrix, such as ``256x17``.
        choice: its compression, such as ``int8`` or ``prune 0.5``.
        scheme: the scheme text.
        kl: mean KL(fp32 || compressed), nats. agreement: share of equal greedy actions, None for Box actions.
        latency_us, fp32_latency_us: measured in turns.
        bytes: size of the artifact. refusal: why the scheme cannot be built, with no measurements; else None.
    """

    layer: str
    shape: str
    choice: str
    scheme: str
    kl: float | None = None
    agreement: float | None = None
    latency_us: float | None = None
    fp32_latency_us: float | None = None
    bytes: int | None = None
    refusal: str | None = None


def measure_sensitivity(space: SchemeSpace, bench: Workbench) -> list[SensitivityRow]:
    """One row per layer and option; takes a fraction of a second each."""
    rows: list[SensitivityRow] = []
    for layer, choice in space.alone():
        scheme = space.scheme({layer.name: choice})
        row = SensitivityRow(layer.name, f"{layer.outputs}x{layer.inputs}", _choice_text(choice), scheme)
        try:
            found = bench.screen(bench.compress(scheme))
        except (SchemeError, UnsupportedLayerError) as error:
            rows.append(replace(row, refusal=str(error)))
            continue
        rows.append(
            replace(
                row,
                kl=found["kl"],
                agreement=found.get("agreement"),
                latency_us=found["policy_us"],
                fp32_latency_us=found["fp32_us"],
                bytes=int(found["bytes"]),
            )
        )
    return rows


def sensitivity_markdown(rows: Sequence[SensitivityRow], fp32_bytes: int, title: str) -> str:
    """A table, layer by layer."""
    lines = [
        f"# Sensitivity of {title}",
        "",
        "Each layer compressed alone, the others in fp32: mean KL(fp32 || compressed) over real observations, latency "
        "relative to fp32 measured in turns on this machine, and bytes relative to fp32. A layer with a high KL is "
        "better left alone, and compression that saves neither time nor bytes is pointless.",
        "",
        "| layer | weight | option | KL [nats] | same action | latency / fp32 | bytes / fp32 |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    previous = ""
    for row in rows:
        layer, shape = (row.layer, row.shape) if row.layer != previous else ("", "")
        previous = row.layer
        if row.kl is None or row.latency_us is None or row.fp32_latency_us is None or row.bytes is None:
            lines.append(f"| {layer} | {shape} | {row.choice} | refused: {row.refusal} | | | |")
            continue
        agreement = "" if row.agreement is None else f"{row.agreement:.1%}"
        speed, size = row.latency_us / row.fp32_latency_us, row.bytes / fp32_bytes
        lines.append(f"| {layer} | {shape} | {row.choice} | {row.kl:.2g} | {agreement} | {speed:.2f} | {size:.2f} |")
    return "\n".join([*lines, ""])


def _choice_text(choice: LayerChoice) -> str:
    if choice.pruned:
        return f"prune {choice.pruned:g}"
    return f"rank {choice.rank:g}" if choice.rank < 1.0 else choice.bits
