"""``accel.evaluate``: returns of a trained policy, full or compressed, with an interval, on repeatable seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError
from accel.compressors.scheme import parse_scheme
from accel.display.progress import Progress
from accel.errors import ConfigError
from accel.json_object import Json
from accel.monitor.statistics import Interval
from accel.runs.finishing import MIXED, finish
from accel.runs.loading import load_run
from accel.runs.playing import DEFAULT_ENVS, Episodes, check_play, play
from accel.runs.quality import Quality, Returns, calibration_inputs, judged_inputs, measure_rows, paired_difference
from accel.runs.trained_policy import TrainedPolicy
from accel.tuning.choice import FULL_PRECISION


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one policy and, if requested, of the same policy in full precision.

    Attributes:
        run: the run's directory. env: the environment's id.
        scheme: of the policy that played. policy_bytes: size of its model.
        env_steps: environment steps that the policy was trained on; 0 where that is not known.
        seed, envs: repeat the episodes. greedy: most likely actions instead of samples.
        baseline: the same seeds in full precision, or None.
        quality: whether the policy that played keeps full precision's; None without a baseline, and of full precision.
        video: the file that shows one episode, or None.
        mixed: why int8 does not pay for this policy, or None.
    """

    run: str
    env: str
    scheme: str
    policy_bytes: int
    env_steps: int
    seed: int
    envs: int
    greedy: bool
    episodes: Episodes
    baseline: Episodes | None = None
    quality: Quality | None = None
    video: str | None = None
    mixed: str | None = None

    @property
    def mean(self) -> Interval | None:
        """Mean return with Student's 95 % interval; None for a single episode."""
        return self.episodes.mean

    @property
    def difference(self) -> Interval | None:
        """Mean of (return − baseline's return) by seed, with its 95 % interval; None without baseline."""
        return None if self.baseline is None else paired_difference(self.episodes, self.baseline)

    def text(self) -> str:
        """The result in a few lines."""
        how = "greedy" if self.greedy else "sampled"
        trained = f", trained on {self.env_steps:,} environment steps" if self.env_steps else ""
        lines = [
            f"{self.env}, {self.scheme} ({self.policy_bytes:,} bytes){trained}; "
            f"{len(self.episodes.returns)} episodes, {how}, seed {self.seed}",
            *_figures(self.scheme, self.episodes),
        ]
        if self.baseline is not None:
            lines += _figures(FULL_PRECISION, self.baseline)
        if self.difference is not None:
            lines.append(f"{self.scheme} - {FULL_PRECISION} on the same seeds: {self.difference} (95 %)")
        if self.mixed is not None:
            lines.append(self.mixed)
        if self.quality is not None:
            lines.append(self.quality.text())
        if self.video is not None:
            lines.append(f"one episode is shown in {self.video}")
        return "\n".join(lines)

    def to_json(self) -> Json:
        """A plain JSON object, every single return included."""
        plain = ("run", "env", "scheme", "policy_bytes", "env_steps", "seed", "envs", "greedy", "video")
        value: Json = {name: getattr(self, name) for name in plain} | {"episodes": self.episodes.to_json()}
        if self.baseline is not None:
            value["baseline"] = self.baseline.to_json()
            value["difference"] = None if self.difference is None else asdict(self.difference)
        if self.quality is not None:
            value["quality"] = self.quality.to_json()
        return value


def evaluate(
    run: Path | TrainedPolicy,
    *,
    scheme: str | None = None,
    artifact: Path | CompressedPolicy | None = None,
    episodes: int = 20,
    seed: int = 0,
    greedy: bool = True,
    baseline: bool = False,
    video: Path | None = None,
    envs: int = DEFAULT_ENVS,
    progress: Progress | None = None,
) -> Evaluation:
    """Play a trained policy in the session that actors use, and measure its returns.

        import accel
        from pathlib import Path
        result = accel.evaluate(Path("results/cartpole"), scheme="int8", baseline=True)
        print(result.mean, result.difference)

    Args:
        run: a run's directory, or the run loaded.
        scheme: how to compress the policy; full precision when None. Ranges come from observations that it meets.
        artifact: an artifact to play instead, or its file, such as the actors' last one in policy/.
        episodes: how many, each from its own seed; the first ones started count.
        seed: of environments and noise.
        greedy: most likely actions instead of samples.
        baseline: also play full precision on the same seeds, and say whether the policy keeps it
            (``accel.runs.quality``).
        video: write one more episode to this .mp4 or .gif file.
        envs: how many environments play at once.
        progress: shows the stages.
    Raises:
        ConfigError: scheme and artifact both given, an artifact of another policy, a number that is not positive.
        CheckpointError: the run has no checkpoint, or a damaged one.
        EnvError: the environment cannot be made, or is another one.
        MissingExtraError: the environment or the video needs a package that is not installed.
        CompressorError: the scheme does not exist or does not take this policy.
    """
    if scheme is not None and artifact is not None:
        raise ConfigError("give a scheme or an artifact, not both: an artifact has its scheme")
    scheme = str(parse_scheme(scheme or FULL_PRECISION))
    check_play(episodes, seed, envs)
    loaded = load_run(run) if isinstance(run, Path) else run
    progress = Progress() if progress is None else progress
    if isinstance(artifact, Path):
        policy = _read_artifact(artifact, loaded)
    elif artifact is not None:
        policy = artifact
    else:
        if scheme != FULL_PRECISION:
            progress.begin(f"compressing as {scheme}")
        policy = compress_run(loaded, scheme, seed)
    if video is not None:
        from accel.runs.video import record_episode

        progress.begin(f"recording {video}")
        record_episode(policy, loaded, video, seed=seed, greedy=greedy, progress=progress)
    on_seeds = partial(play, run=loaded, episodes=episodes, seed=seed, greedy=greedy, envs=envs, progress=progress)
    progress.begin(f"playing {policy.scheme}")
    played = on_seeds(policy)
    full, quality = played if baseline else None, None
    if baseline and (artifact is not None or policy.scheme != FULL_PRECISION):
        progress.begin(f"playing {FULL_PRECISION} on the same seeds")
        whole = loaded.compress(FULL_PRECISION)
        full = on_seeds(whole)
        progress.begin("playing at random")
        returns = Returns(played, full, on_seeds(whole, random_share=1.0), seed, greedy, "actors' sessions")
        progress.begin("comparing actions")
        judged = judged_inputs(loaded, seed, progress=progress)
        quality = Quality(policy.scheme, measure_rows(loaded, policy, judged, whole), returns)
    return Evaluation(
        run=str(loaded.path),
        env=loaded.config.environment.env,
        scheme=policy.scheme,
        policy_bytes=len(policy.model),
        env_steps=loaded.env_steps,
        seed=seed,
        envs=envs,
        greedy=greedy,
        episodes=played,
        baseline=full,
        quality=quality,
        video=None if video is None else str(video),
        mixed=None if MIXED not in policy.metadata else str(policy.metadata[MIXED]),
    )


def compress_run(run: TrainedPolicy, scheme: str, seed: int = 0) -> CompressedPolicy:
    """The trained policy under a scheme, calibrated on real inputs where the scheme is not full precision.

    Raises: what ``calibration_inputs`` and ``TrainedPolicy.compress`` raise.
    """
    if scheme == FULL_PRECISION:
        return run.compress(scheme)
    return finish(run, scheme, calibration_inputs(run, scheme, seed)).artifact


def _read_artifact(path: Path, run: TrainedPolicy) -> CompressedPolicy:
    try:
        artifact = CompressedPolicy.read(path)
    except OSError as error:
        raise ConfigError(f"cannot read artifact {path}: {error.strerror}") from None
    except ArtifactError as error:
        reason = str(error).partition(";")[0]
        raise ConfigError(f"{path} is {reason}; give an artifact, such as a run's policy/final.accel") from error
    found = [(tensor.name, tensor.with_batch(1)) for tensor in artifact.inputs]
    wanted = [(name, tuple(example.shape)) for name, example in run.example_inputs.items()]
    if found != wanted or artifact.outputs[0].with_batch(1)[1:] != (run.rule.output_size,):
        raise ConfigError(
            f"artifact {path} maps {dict(found)} to {artifact.outputs[0].shape}, which is not the policy of "
            f"{run.path}: give an artifact of this run"
        )
    return artifact


def _figures(name: str, episodes: Episodes) -> list[str]:
    returns, mean = episodes.returns, episodes.mean
    centre = f"{returns[0]:.4g}" if mean is None else f"{mean} (95 %)"
    line = (
        f"{name}: mean return {centre}, median {np.median(returns):.4g}, "
        f"{returns.min():.4g} to {returns.max():.4g}; mean length {episodes.lengths.mean():.1f}"
    )
    return [line] if episodes.caveat is None else [line, episodes.caveat]
