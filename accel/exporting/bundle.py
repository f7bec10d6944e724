"""``accel.export``: compress a trained policy, check it on its target, and write it as a bundle, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accel.display.play_progress import NoPlayProgress, PlayProgress
from accel.errors import ConfigError
from accel.exporting.card import summary
from accel.exporting.formats import make_format
from accel.exporting.formats.base import Contract
from accel.exporting.gate import Gate
from accel.exporting.making import BundleMaker
from accel.exporting.placing import appearing
from accel.json_object import Json
from accel.runs.loading import TrainedRun, load_run
from accel.system.signals import terminations_interrupt
from compressors.scheme import parse_scheme


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
        """What there is and what it is worth, in a few lines; MODEL_CARD.md says it at length."""
        return (
            f"{summary(self.contract, self.report)}\n{self.path} is complete; MODEL_CARD.md in it says more, and accel "
            "verify or its own run_policy.py --verify checks it where it is going to run"
        )


def export(
    run: Path | TrainedRun,
    out: Path,
    *,
    scheme: str | None = None,
    format: str = "onnx",
    episodes: int = 20,
    seed: int = 0,
    greedy: bool = True,
    max_return_loss: float | None = None,
    max_mismatch: float | None = None,
    cpu: Iterable[str] | None = None,
    progress: PlayProgress | None = None,
) -> Bundle:
    """Write a bundle that runs a trained policy on another machine, after checking it on its target.

        import accel
        from pathlib import Path
        bundle = accel.export(Path("results/cartpole"), Path("cartpole-int8"), scheme="int8", max_return_loss=0.02)
        print(bundle.report["returns"]["verdict"])

    Args:
        run: a run's directory, or the run loaded, whose exports play full precision but once.
        out: the bundle's directory, which must not exist; it appears when it is complete.
        scheme: how to compress; what the run's actors had when None.
        format: ``onnx``, ``ort``, ``openvino`` or ``c``.
        episodes: played with the full and with the compressed policy on the same seeds; 0 leaves returns out.
        seed: of episodes and inputs.
        greedy: most likely actions instead of samples.
        max_return_loss, max_mismatch: see ``Gate``; the bundle is not written when one is exceeded.
        cpu: features of the CPU that is going to act (``compressors.cpu.FEATURES``); this machine's when None.
        progress: told what is going on.
    Returns:
        The bundle, with everything that was measured.
    Raises:
        ConfigError: an unknown format, or numbers that contradict each other.
        ExportError: ``out`` exists or cannot be written, the format cannot take the scheme, a gate is failed.
        CheckpointError, EnvError, MissingExtraError, CompressorError: as for ``evaluate``.
    """
    target = make_format(format)
    if episodes < 0:
        raise ConfigError(f"episodes = {episodes}: give how many to play with each policy, or 0 for none")
    if episodes == 0 and max_return_loss is not None:
        raise ConfigError("max_return_loss compares returns, and there are none with 0 episodes: give at least one")
    gate = Gate(max_return_loss, max_mismatch)
    loaded = load_run(run) if isinstance(run, Path) else run
    text = str(parse_scheme(loaded.scheme if scheme is None else scheme))
    with terminations_interrupt(), appearing(out) as directory:
        shown = NoPlayProgress() if progress is None else progress
        maker = BundleMaker(loaded, target, text, directory, seed, greedy, cpu, shown)
        contract, report = maker.run(gate, episodes)
    return Bundle(out, contract, report)
