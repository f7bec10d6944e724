"""The outcome of a run, for its summary.json and the final lines on the terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from accel.errors import CheckpointError
from accel.monitor.bottleneck import shares_of
from accel.system.untrusted import MAX_JSON_BYTES, read_file


def _unwritten(value: object) -> object:
    """A number that JSON lacks, from the text that stands for it (``RunDirectory.write``)."""
    return float(value) if value in ("nan", "inf", "-inf") else value


_Real = Annotated[float, BeforeValidator(_unwritten)]
_Microseconds = Annotated[_Real, Field(gt=0)]
_Bytes = Annotated[int, Field(gt=0, lt=2**63)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class SchemeComparison:
    """The final policy under the run's scheme against fp32, as actors run them, on their batch and this machine.

    Attributes:
        scheme: the run's scheme. batch: environments per actor.
        policy_us, fp32_us: median microseconds per policy call.
        env_us: microseconds per vector step of the environments, as the actors measured it.
        kl: mean KL(fp32 ‖ scheme) over recent observations, nats. agreement: share of equal greedy actions, None
            for Box actions.
        bytes, fp32_bytes: sizes of the artifacts.
        weight_only: whether layers travel in fewer bits and multiply in floating point all the same.
    """

    scheme: str
    batch: int
    policy_us: _Microseconds
    fp32_us: _Microseconds
    env_us: Annotated[_Real, Field(ge=0)]
    kl: _Real
    agreement: _Real | None
    bytes: _Bytes
    fp32_bytes: _Bytes
    weight_only: bool = False

    def text(self, *, chosen: bool = True) -> str:
        """Two sentences with the figures; fp32 is advised only where the user chose the scheme."""
        ratio = self.fp32_us / self.policy_us
        saved = (self.fp32_us - self.policy_us) / (self.env_us + self.fp32_us)
        effect = f"{'saves' if saved >= 0 else 'costs'} {abs(saved):.0%} of an actor's step"
        floats = ", as its layers compute in floats" if self.weight_only and ratio <= 1.05 else ""
        advice = "; --compressor fp32 is faster" if chosen and ratio <= 0.95 else ""
        agreement = "" if self.agreement is None else f", same greedy action {self.agreement:.1%}"
        return (
            f"{self.scheme} runs at {ratio:.2f}x fp32's speed here{floats} and {effect}{advice}. Per vector step of "
            f"{self.batch}: environment {self.env_us:.0f} us, policy {self.policy_us:.1f} us ({self.scheme}) or "
            f"{self.fp32_us:.1f} us (fp32); {self.bytes} or {self.fp32_bytes} bytes; "
            f"KL from fp32 {self.kl:.1e} nats{agreement}."
        )


@dataclass(frozen=True)
class EvaluationSummary:
    """Greedy episodes that were played while the run trained (``--evaluate-every``).

    Attributes:
        mean: mean return of the newest policy that was played. env_steps: behind it. episodes: how many.
        best_mean, best_env_steps: those of the best policy, which is kept.
    """

    mean: _Real
    env_steps: _Count
    episodes: _Count
    best_mean: _Real
    best_env_steps: _Count

    def text(self) -> str:
        """One line."""
        return (
            f"greedy evaluation: mean return {self.mean:.1f} over {self.episodes} episodes after {self.env_steps:,} "
            f"environment steps; best {self.best_mean:.1f} after {self.best_env_steps:,}, which is kept."
        )


@dataclass(frozen=True)
class Summary:
    """A run's outcome; times cover this process's part of a resumed run, counts the whole run.

    Attributes:
        path: the run directory. reason: why it stopped.
        scheme: of the last policy. compressor: what was asked for, which may choose schemes itself, as ``auto`` does.
        compressor_chosen: whether the user named it; else it is a default or a preset's.
        training_s: first unroll waited for until the last update. wall_s: from the user's command until then.
        env_steps_per_s: valid steps consumed by the learner per second of training_s.
        updates_owed: what the schedule's ratio asked for and was not made. A resumed run makes them, one that
            has all its steps only from a replay that ``--save-replay`` kept.
        return_mean: mean return of the last finished training episodes, None before the first.
        lag: minimum, mean and maximum policy lag over the whole part, in versions.
        learner_s, actor_s: seconds by phase; the actors' together.
        mixed_precision: what the learner computed in, ``none`` for single precision.
        learner_graphs: whether its steps were CUDA graphs: ``on``, or ``off``, and why where that was not asked for.
        evaluation: what greedy episodes earned meanwhile; None without ``--evaluate-every``.
        warnings: what collapsed meanwhile, in sentences with what to try.
        finished: whether it reached its steps or its return; else it was stopped before, and can be resumed.
        job: token of the job that wrote it. format_version: of the file.
        cpu_s: CPU-seconds of training: the learner's process, and what actors did not wait.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    path: str
    reason: str
    env: str
    scheme: str
    actor_runtime: str
    algorithm: str
    corrector: str
    actors: _Count
    device: str
    seed: int
    env_steps: _Count
    updates: _Count
    episodes: _Count
    return_mean: _Real | None
    training_s: _Real
    wall_s: _Real
    env_steps_per_s: _Real
    lag: Mapping[str, _Real | None]
    dropped_unrolls: _Count
    dead_actors: _Count
    updates_owed: _Count = 0
    actor_restarts: _Count = 0
    environment_restarts: _Count = 0
    learner_s: Mapping[str, _Real] = field(default_factory=dict)
    actor_s: Mapping[str, _Real] = field(default_factory=dict)
    comparison: SchemeComparison | None = None
    compressor: str = ""
    compressor_chosen: bool = True
    mixed_precision: str = "none"
    learner_graphs: str = "off"
    evaluation: EvaluationSummary | None = None
    warnings: tuple[str, ...] = ()
    finished: bool = True
    job: str = ""
    format_version: Literal[1] = 1
    cpu_s: _Real | None = None

    def to_json(self) -> dict[str, object]:
        """Plain JSON."""
        return asdict(self)

    @staticmethod
    def read(run_path: Path) -> Summary:
        """The summary of a finished run. Raises CheckpointError."""
        try:
            content = read_file(run_path / "summary.json", MAX_JSON_BYTES)
            return _adapter().validate_json(content, strict=True)
        except OSError as error:
            problem = f"({error.strerror}); the run did not end in order"
        except ValueError as error:
            what = str(error)
            if isinstance(error, ValidationError):
                found = error.errors(include_url=False)[0]
                what = f"{'.'.join(map(str, found['loc'])) or 'the file'}: {found['msg']}"
            problem = f"({what}); it was changed, damaged, or written by another version of accel"
        raise CheckpointError(f"{run_path} holds no readable summary.json {problem}")

    def suggestions(self) -> list[str]:
        """Commands that carry on from here."""
        where = Path(self.path)
        path = shlex.quote(str(where.relative_to(Path.cwd()) if where.is_relative_to(Path.cwd()) else where))
        if not self.env_steps:
            return [f"accel train --config {path}/config.toml --name NEW    (anew: there is no checkpoint yet)"]
        lines = [] if self.finished else [f"accel train --resume {path}    (continues the run)"]
        lines.append(f"accel evaluate {path}    (plays the policy)")
        if self.evaluation is not None:
            lines.append(
                f"accel evaluate {path} --which best    (plays the best policy; accel export takes --which best too)"
            )
        tuned = self.compressor.startswith("auto")
        no_gain = self.comparison is not None and self.comparison.fp32_us < 1.05 * self.comparison.policy_us
        if no_gain or (tuned and self.scheme == "fp32"):
            lines.append("accel bench policy --network mlp:512x3    (where compression pays)")
        elif self.scheme == "fp32" and "device" not in self.actor_runtime:
            lines.append("accel train --compressor auto ...    (whether compression pays)")
        about = "a page about the run and why each level was chosen" if tuned else "a page about the run"
        lines.append(f"accel report {path}    ({about}; needs accel-rl[report])")
        if ".venv" in Path(sys.executable).parts and shutil.which("accel") is None:
            lines.insert(0, "source .venv/bin/activate")
        return lines

    def _limit(self) -> str:
        """What limited the speed, and what would help, in one sentence; empty where it was the policy, or neither."""
        shares = shares_of(self.actor_s, self.learner_s, turns=self.actors == 0)
        if shares is None or shares.limit not in ("learner", "environment"):
            return ""
        if shares.limit == "learner":
            gpu = "a GPU (--device cuda), more cores" if self.device == "cpu" else "a faster GPU"
            return (
                f"The learner is the bottleneck (actors wait for it {shares.actor_wait:.0%} of their time): {gpu} or a "
                "smaller network would help, faster actors would not; accel bench learner measures more ways."
            )
        return (
            f"The environment is the bottleneck ({shares.environment:.0%} of the actors' busy time): more --actors on "
            "more cores or a faster environment (a vectorised one, such as EnvPool's where it has it) would help, "
            "compression would not."
        )

    def text(self) -> str:
        """What happened, in a few lines."""
        mean = "no finished episode" if self.return_mean is None else f"mean return {self.return_mean:.1f}"
        runtime = self.actor_runtime.replace("native", "native kernels")
        owed = f" ({self.updates_owed:,} more are owed)" if self.updates_owed else ""
        computed = [self.device]
        computed += [] if self.mixed_precision == "none" else [self.mixed_precision]
        computed += ["CUDA graphs"] if self.learner_graphs.startswith("on") else []
        lines = [
            f"{self.env}: {mean} after {self.env_steps:,} environment steps, {self.updates:,} updates{owed}: "
            f"{self.reason}.",
            f"{self.env_steps_per_s:,.0f} environment steps/s over {self.training_s:.1f} s of training; "
            f"{self.wall_s:.1f} s since the command started.",
            f"policy lag {' / '.join(_number(self.lag.get(f'lag_{which}')) for which in ('min', 'mean', 'max'))} "
            f"versions (min / mean / max), {self.dropped_unrolls} unrolls dropped as too old, "
            f"{self.dead_actors} actors died, {self.actor_restarts} were replaced.",
            f"learner ({', '.join(computed)}): {_shares(self.learner_s)}",
            f"{self.actors or 1} actor(s), {self.scheme} on {runtime}: {_shares(self.actor_s)}",
        ]
        if self.finished and not self.updates:
            lines.append(
                "Nothing was learned: the run has fewer environment steps than a batch. Raise --total-env-steps."
            )
        if self.evaluation is not None:
            lines.append(self.evaluation.text())
        lines += [f"Warning: {warning}" for warning in self.warnings]
        if limit := self._limit():
            lines.append(limit)
        if self.cpu_s is not None:
            lines.append(f"{self.cpu_s:,.1f} CPU-seconds of training.")
        if self.comparison is not None:
            fixed = self.compressor_chosen and not self.compressor.startswith("auto")
            lines.append(self.comparison.text(chosen=fixed))
        lines.append(f"Everything is in {self.path}. Try next:")
        lines += [f"  {line}" for line in self.suggestions()]
        return "\n".join(lines)


def _shares(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values()) or 1.0
    return ", ".join(
        f"{name} {value / total:.0%}"
        for name, value in sorted(seconds.items(), key=lambda kv: -kv[1])
        if value / total >= 0.005
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


@cache
def _adapter() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)
