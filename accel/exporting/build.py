"""``accel.export``: compress a trained policy, compare it with the original on its target runtime, write a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from accel.compressors.errors import CompressorError
from accel.compressors.runtime import PolicySession, Runtime
from accel.compressors.scheme import parse_scheme
from accel.display.progress import Progress
from accel.errors import BundleError, ConfigError, ExportError
from accel.exporting import run_policy
from accel.exporting.appearing import appearing
from accel.exporting.contract import FP32_ONNX, VECTORS, make_contract, vector_bound, with_metadata, write_json
from accel.exporting.formats import make_format
from accel.exporting.formats.base import ExportFormat, Vectors
from accel.exporting.model_card import model_card, summary
from accel.exporting.quality import (
    Agreement,
    Gate,
    MakeSession,
    agreement,
    latency,
    random_inputs,
    reference_outputs,
)
from accel.exporting.run_policy import Contract
from accel.exporting.standard_operators import standard_float
from accel.json_object import Json
from accel.runs.finishing import finish
from accel.runs.loading import load_run
from accel.runs.playing import Policy, check_play, play
from accel.runs.quality import Quality, Returns, calibration_inputs, judged_inputs, measure_rows
from accel.runs.trained_policy import TrainedPolicy
from accel.system.machine import read_machine

_CARD, _RUN = "MODEL_CARD.md", "run_policy.py"
_EXAMPLE = "example.py"
_PARITY_ROWS = {"float32": 256, "uint8": 32}
_VECTOR_ROWS = {"float32": 32, "uint8": 4}
# if the target would take longer than this, onnxruntime plays the episodes instead; parity checks compare the two
PLAYABLE_S = 60.0


@dataclass(frozen=True)
class Bundle:
    """What was written.

    Attributes:
        path: the bundle's directory.
        contract: as in its ``contract.json``.
        report: as in its ``report.json``: parity, mismatch, returns, latency, bytes, gate, machine.
    """

    path: Path
    contract: Contract
    report: Json

    def text(self) -> str:
        """A summary in a few lines; MODEL_CARD.md has the details."""
        return (
            f"{summary(self.contract, self.report)}\n{self.path} is complete; MODEL_CARD.md in it says more, and accel "
            "verify or its own run_policy.py --verify checks it where it is going to run"
        )


def export(
    run: Path | TrainedPolicy,
    out: Path,
    *,
    scheme: str | None = None,
    format: str = "onnx",
    episodes: int = 20,
    seed: int = 0,
    greedy: bool = True,
    max_return_loss: float | None = None,
    max_mismatch: float | None = None,
    accept_loss: bool = False,
    cpu: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Write a bundle that runs a trained policy on another machine, after checking it on its target.

        import accel
        from pathlib import Path
        bundle = accel.export(Path("results/cartpole"), Path("cartpole-int8"), scheme="int8", max_return_loss=0.02)
        print(bundle.report["returns"]["verdict"])

    Args:
        run: a run's directory, or the run loaded.
        out: the bundle's directory, which must not exist; it appears when it is complete.
        scheme: how to compress; what the run's actors had when None.
        format: ``onnx``, ``ort``, ``openvino`` or ``c``.
        episodes: played with the full and with the compressed policy on the same seeds; 0 leaves returns out.
        seed: of episodes and inputs.
        greedy: most likely actions instead of samples.
        max_return_loss, max_mismatch: see ``Gate``; the bundle is not written when one is exceeded.
        accept_loss: write the bundle too where the policy does not hold the bar (``accel.runs.quality``).
        cpu: features of the CPU that is going to act (``accel.compressors.cpu.FEATURES``); this machine's when None.
        progress: shows the stages.
    Returns:
        The bundle, with everything that was measured.
    Raises:
        ConfigError: an unknown format, or numbers that contradict each other.
        ExportError: ``out`` exists or cannot be written, the format cannot take the scheme, a gate is failed.
        CheckpointError, EnvError, MissingExtraError, CompressorError: as for ``evaluate``.
    """
    target = make_format(format)
    check_play(episodes, seed, least=0)
    if episodes == 0 and max_return_loss is not None:
        raise ConfigError("max_return_loss compares returns, and there are none with 0 episodes: give at least one")
    gate = Gate(max_return_loss, max_mismatch, accept_loss)
    loaded = load_run(run) if isinstance(run, Path) else run
    text = str(parse_scheme(loaded.scheme if scheme is None else scheme))
    if loaded.recorded is not None:
        if max_return_loss is not None:
            raise ConfigError("max_return_loss compares returns, which recorded observations do not give: give --env")
        episodes = 0
    with appearing(out) as directory:
        shown = Progress() if progress is None else progress
        builder = _Builder(loaded, target, text, directory, seed, greedy, cpu, shown)
        try:
            contract, report = builder.run(gate, episodes)
        except run_policy.BundleError as error:  # a model that does not load with so many rows, say
            raise ExportError(str(error)) from error
    return Bundle(out, contract, report)


class _Builder:
    """One export of a run's policy under a scheme, in a format, into an empty directory."""

    def __init__(
        self,
        run: TrainedPolicy,
        target: ExportFormat,
        scheme: str,
        directory: Path,
        seed: int,
        greedy: bool,
        cpu: Iterable[str] | None,
        progress: Progress,
    ) -> None:
        """Plays to collect real inputs, then compresses. Raises CompressorError, EnvError."""
        self._run, self._target, self._directory = run, target, directory
        self._seed, self._greedy, self._progress = seed, greedy, progress
        rows = _PARITY_ROWS[run.spec.observation_dtype]
        progress.begin("collecting real inputs")
        # what is measured is measured on inputs that calibration has not seen
        self._judged = judged_inputs(run, seed, progress=progress)
        self._real = {name: array[:rows] for name, array in next(iter(self._judged.values())).items()}
        calibration = calibration_inputs(run, scheme, seed, progress=progress)
        progress.begin(f"compressing as {scheme}")
        runtime: Runtime = "onnxruntime" if target.runs_onnx else "native"
        finished = finish(run, scheme, calibration, cpu=cpu, runtime=runtime, form=target.formed, progress=progress)
        self._artifact = target.formed(finished.artifact)
        self._full, self._cost = finished.full, finished.cost
        self._random = random_inputs(self._artifact.inputs, self._real, np.random.default_rng(seed))

    def run(self, gate: Gate, episodes: int) -> tuple[Contract, Json]:
        """Write, measure, check; returns contract and report."""
        fp32 = standard_float(onnx.load_from_string(self._full.model))
        (self._directory / FP32_ONNX).write_bytes(fp32.SerializeToString())
        vectors = self._vectors()
        self._progress.begin(f"writing {self._name}")
        written = self._target.write(self._artifact, self._directory, vectors, self._progress)
        if not self._target.runs_onnx:
            (self._directory / "model.onnx").write_bytes(self._artifact.model)
        contract = make_contract(self._run, self._artifact, fp32, self._target, written, vectors, self._greedy)
        fp32_bytes = (self._directory / FP32_ONNX).stat().st_size
        for path in self._directory.glob("*.onnx"):
            path.write_bytes(with_metadata(path.read_bytes(), contract))
        self._progress.begin(f"checking {self._name} against the test vectors")
        self._load_once(contract)
        self._progress.begin("measuring parity")
        parity = self._parity(contract)
        mismatch = next(row for row in parity if (row.model, row.inputs) == (self._target.name, "real"))
        self._progress.begin("measuring latency")
        speed = latency(self._session(contract)(1), self._fp32(contract)(1))
        returns = self._play(contract, episodes, speed) if episodes else None
        rows = measure_rows(self._run, self._artifact, self._judged, self._full)
        quality = Quality(self._artifact.scheme, rows, returns)
        gate.check(mismatch, quality)
        report: Json = {
            "parity": [asdict(row) for row in parity],
            "mismatch": asdict(mismatch),
            "quality": quality.to_json() | {"cost": self._cost},
            "returns": None if returns is None else returns.to_json(),
            "latency": speed,
            "bytes": {"model": written.model_bytes, "fp32": fp32_bytes, "ratio": fp32_bytes / written.model_bytes},
            "gate": asdict(gate),
            "machine": read_machine().to_json(),
        }
        self._finish(contract, report)
        return contract, report

    @property
    def _name(self) -> str:
        """The policy, scheme and format, as users see them."""
        return f"{self._artifact.scheme} as {self._target.name}"

    def _vectors(self) -> Vectors:
        """Write the test vectors: half real, half random, with the outputs of the artifact at batch 1 and of torch."""
        half = _VECTOR_ROWS[self._run.spec.observation_dtype]
        inputs = {name: np.concatenate([self._real[name][:half], self._random[name][:half]]) for name in self._real}
        try:
            outputs = run_policy.run_rows(PolicySession(self._artifact, batch=1), inputs)
        except CompressorError as error:
            raise ExportError(f"the policy cannot be checked on this machine: {error}") from error
        reference = reference_outputs(self._run, inputs, list(outputs))
        _require_finite(reference, "the trained policy's outputs", "train it again, or give another checkpoint")
        _require_finite(outputs, f"the policy's outputs under {self._artifact.scheme!r}", "choose another scheme")
        arrays: dict[str, run_policy.Array] = {
            f"input/{name}": np.ascontiguousarray(array) for name, array in inputs.items()
        }
        arrays |= {f"output/{name}": np.ascontiguousarray(array) for name, array in outputs.items()}
        arrays |= {f"torch/{name}": array for name, array in reference.items()}
        np.savez_compressed(self._directory / VECTORS, allow_pickle=False, **arrays)
        return Vectors(inputs, outputs, vector_bound(self._artifact))

    def _load_once(self, contract: Contract) -> None:
        """Check that the target loads and computes the artifact's outputs."""
        try:
            run_policy.check_vectors(self._session(contract)(1), self._directory, contract)
            self._target.check(self._directory)
        except (BundleError, run_policy.BundleError) as error:
            raise ExportError(
                f"format {self._target.name} does not hold scheme {self._artifact.scheme!r} of this policy: {error}"
            ) from error

    def _parity(self, contract: Contract) -> list[Agreement]:
        """Full precision as ONNX and the target against the trained policy, on real and random inputs."""
        names = [spec.name for spec in self._artifact.outputs]
        models = {"fp32 onnx": self._fp32(contract), self._target.name: self._session(contract)}
        rows = []
        for kind, inputs in (("real", self._real), ("random", self._random)):
            trained = reference_outputs(self._run, inputs, names)
            rows += [agreement(model, kind, trained, inputs, session) for model, session in models.items()]
        return rows

    def _fp32(self, contract: Contract) -> MakeSession:
        return partial(run_policy.OnnxSession, self._directory, contract, part="fp32")

    def _session(self, contract: Contract) -> MakeSession:
        return partial(self._target.session, self._directory, contract)

    def _play(self, contract: Contract, episodes: int, speed: Json) -> Returns:
        """Play both policies on the same seeds, the compressed one on its target unless that would take too long."""
        on_seeds = partial(
            play, run=self._run, episodes=episodes, seed=self._seed, greedy=self._greedy, progress=self._progress
        )
        self._progress.begin("playing fp32")
        full = on_seeds(self._full)
        self._progress.begin("playing at random")
        random = on_seeds(self._full, random_share=1.0)
        call_us = float(speed["model"]["p50_us"])  # type: ignore[index]
        expected_s = full.env_steps * call_us / 1e6
        engine, name = self._target.name, self._name
        policy: Policy = self._session(contract)
        if not self._target.runs_onnx and expected_s > PLAYABLE_S:
            name = f"{self._artifact.scheme} on onnxruntime (as {engine} it would take {expected_s:.0f} s)"
            engine, policy = "onnxruntime", self._artifact
        self._progress.begin(f"playing {name} on the same seeds")
        return Returns(on_seeds(policy), full, random, self._seed, self._greedy, engine)

    def _finish(self, contract: Contract, report: Json) -> None:
        """Write the files that describe the model, and the checksums of all files."""
        directory = self._directory
        write_json(directory / run_policy.REPORT, report)
        (directory / _CARD).write_text(model_card(contract, report), encoding="utf-8")
        shutil.copyfile(str(run_policy.__file__), directory / _RUN)
        shutil.copyfile(Path(run_policy.__file__).with_name(_EXAMPLE), directory / _EXAMPLE)
        files: Json = {}
        for path in sorted(directory.iterdir()):
            files[path.name] = {"bytes": path.stat().st_size, "sha256": run_policy.sha256(path)}
        contract["files"] = files
        write_json(directory / run_policy.CONTRACT, contract)
        sums = {path.name: run_policy.sha256(path) for path in directory.iterdir()}
        (directory / run_policy.SUMS).write_text(run_policy.sums_text(sums), encoding="ascii")
        try:
            run_policy.read_contract(directory)
        except run_policy.BundleError as error:
            raise ExportError(f"this policy cannot be described in a bundle: {error}") from error


def _require_finite(arrays: Mapping[str, run_policy.Array], what: str, remedy: str) -> None:
    """Raise ExportError for NaN and infinity, which no test vector can hold: C has no constant for them."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            value = array[~np.isfinite(array)][0]
            raise ExportError(f"{what} are not finite: '{name}' holds {value}, so it is not exported; {remedy}")
