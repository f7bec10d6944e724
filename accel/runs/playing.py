"""Play seeded episodes with a policy, compressed or in torch, without bias to short ones; collect real inputs."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from accel.acting.policy import InPlaceSession
from accel.acting.rules import ActorPlace
from accel.acting.torch_policy import TorchSession
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.runtime import PolicySession
from accel.display.progress import Progress
from accel.display.status import PlayingStatus
from accel.envs.base import Actions, VectorEnvironment
from accel.errors import ConfigError, EnvError, contained
from accel.json_object import Json
from accel.monitor.statistics import Interval, mean_interval
from accel.runs.player import Array, Bools, Player, RandomActions
from accel.runs.trained_policy import TRAINED, TrainedPolicy
from accel.supervision.activity import PREPARING, STEPPING, WAITING, Activity

Picture = npt.NDArray[np.uint8]
Rewards = npt.NDArray[np.floating]

DEFAULT_ENVS = 16
MAX_EPISODES, MAX_ENVS = 1_000_000, 4096
_NOISE_ROWS = 64
# seed streams of evaluation and collection, different from the actors', which use their ranks
_EVALUATION, _COLLECTION = 1_000_000, 1_000_001

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class Episodes:
    """Finished episodes in the order of their seeds: episode i of two calls has the same seed.

    Attributes:
        returns: [n] undiscounted sums of the environment's own rewards.
        lengths: [n] steps.
        seconds: wall-clock time, environments included.
        env_steps: all steps, including those of environments that waited for others.
        distinct: number of different episodes, by return, length and last observation.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    seconds: float
    env_steps: int
    distinct: int

    @property
    def mean(self) -> Interval | None:
        """Mean return with Student's 95 % interval; None for a single episode."""
        return mean_interval(self.returns) if len(self.returns) > 1 else None

    def to_json(self) -> Json:
        """A plain JSON object, every return included."""
        return {
            "mean": float(self.returns.mean()),
            "interval": None if self.mean is None else asdict(self.mean),
            "median": float(np.median(self.returns)),
            "worst": float(self.returns.min()),
            "mean_length": float(self.lengths.mean()),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "seconds": self.seconds,
            "env_steps": self.env_steps,
            "distinct": self.distinct,
        }

    @property
    def caveat(self) -> str | None:
        """A warning if games repeat each other, as their interval is too narrow; else None."""
        if self.distinct == len(self.returns):
            return None
        return (
            f"only {self.distinct} of {len(self.returns)} games differ, as policy and environment leave little to "
            "chance: intervals are too narrow; sample actions"
        )


@contained(": mend the environment")
def play(
    policy: Policy,
    run: TrainedPolicy,
    *,
    episodes: int,
    seed: int = 0,
    greedy: bool = True,
    random_share: float = 0.0,
    envs: int = DEFAULT_ENVS,
    max_episode_steps: int = 200_000,
    frame: Callable[[Picture], None] | None = None,
    progress: Progress | None = None,
    activity: Activity | None = None,
) -> Episodes:
    """Play n episodes, each from its own seed.

    Every environment plays one episode, then all are seeded anew: the first n episodes *started* count; the first n
    finished would be biased to short ones. Two policies that are played with the same arguments meet the same seeds
    and, when sampling, the same noise.

        run = load_run(Path("results/cartpole"))
        print(play(run.compress("fp32"), run, episodes=20).returns.mean())

    Args:
        policy: an artifact, an acting module in torch such as ``run.policy``, or a function from a batch to a session.
        episodes: n, at least 1.
        seed: of environments and noise; unrelated to the training's.
        greedy: take the most likely actions instead of sampling.
        random_share: share of actions that are uniformly random instead; 1 for random play.
        envs: how many environments play at once; part of what a seed means.
        max_episode_steps: a longer episode is an error.
        frame: called with an image [height, width, 3] of environment 0 before every step; environments then render.
        progress: advanced after every step. activity: where steps and resets are shown to whoever watches them.
    Raises:
        ConfigError: ``episodes`` or ``envs`` is not positive, or too many, or ``seed`` negative.
        EnvError: the environment cannot be made or is another one, or an episode does not end.
        ArtifactError: the artifact cannot be loaded here.
    """
    check_play(episodes, seed, envs)
    width, name = min(episodes, envs), run.config.environment.env
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    environment = run.make_env(-(-width // run.spec.agents), (seed, _EVALUATION, 0), render=frame is not None)
    if activity is not None:
        environment.activity = activity
    player = make_player(policy, run, environment.num_envs)
    progress = Progress() if progress is None else progress
    games: set[object] = set()
    finite = True
    env_steps, start = 0, time.perf_counter()
    try:
        for number, begin in enumerate(range(0, episodes, width)):
            count = min(width, episodes - begin)
            noise = (seed, _EVALUATION, number)
            game = _Round(environment, count, name)
            moves = _steps(environment, player, run, noise, random_share, noise, greedy, frame)
            for move in itertools.islice(moves, max_episode_steps):
                game.add(*move)
                env_steps += width
                progress.advance(PlayingStatus(begin + count - game.left, episodes, env_steps))
                if not game.left:
                    break
            else:
                raise EnvError(
                    f"an episode of {name!r} has not ended after {max_episode_steps} steps: limit it with "
                    "max_episode_steps among the environment's arguments"
                )
            returns[begin : begin + count] = game.returns[:count]
            lengths[begin : begin + count] = game.lengths[:count]
            games |= game.endings
            finite &= game.finite
    finally:
        environment.close()
        environment.activity.enter(WAITING)
    if not finite:
        logger.warning(
            "%s gave observations that are not finite: what the policy did then, and what it earned, means nothing",
            name,
        )
    return Episodes(returns, lengths, time.perf_counter() - start, env_steps, len(games))


class _Round:
    """One episode in each environment, of which the first ``count`` are used."""

    def __init__(self, environment: VectorEnvironment, count: int, name: str) -> None:
        self._environment, self._name = environment, name
        self.returns = np.zeros(environment.num_envs)
        self.lengths = np.zeros(environment.num_envs, np.int64)
        self.endings: set[object] = set()
        self.finite = True  # all observations until now
        self.left = count
        self._running = np.arange(environment.num_envs) < count
        self._step = 0

    def add(self, observations: Array, rewards: Rewards, done: Bools) -> None:
        """One step of all environments."""
        self._step += 1
        self._check(observations, rewards)
        self.returns[self._running] += rewards[self._running]
        self.lengths[self._running] += 1
        ended = self._running & done
        if ended.any():
            self._note_endings(np.flatnonzero(ended), observations)
            self._running ^= ended
            self.left = int(np.count_nonzero(self._running))

    def _check(self, observations: Array, rewards: Rewards) -> None:
        """A return with such a reward is no number; an action on such an observation is one all the same."""
        if not math.isfinite(rewards[self._running].sum()):
            env = int(np.flatnonzero(self._running & ~np.isfinite(rewards))[0])
            raise EnvError(
                f"environment {env} of {self._name!r} gave the reward {rewards[env]} in step {self._step} of its "
                "episode: mend the environment, or wrap it so that its rewards are finite"
            )
        shown = observations[self._running]
        if float_bytes := self._environment.spec.float_bytes:  # numbers packed among bytes
            shown = shown[..., :float_bytes].view(np.float32)
        self.finite &= shown.dtype.kind != "f" or bool(np.isfinite(shown).all())

    def _note_endings(self, ended: npt.NDArray[np.intp], observations: Array) -> None:
        environment = self._environment
        last = environment.final_observations if environment.spec.autoreset == "same_step" else observations
        for env in ended:
            self.endings.add((float(self.returns[env]), int(self.lengths[env]), hash(last[env].tobytes())))


def _steps(
    environment: VectorEnvironment,
    player: Player,
    run: TrainedPolicy,
    noise: tuple[int, ...],
    random_share: float,
    seed: tuple[int, ...] | None = None,
    greedy: bool = False,
    frame: Callable[[Picture], None] | None = None,
) -> Iterator[tuple[Array, Rewards, Bools]]:
    """Play without end, across episodes; yields observations, rewards and which episodes have ended after every step.

    Args:
        noise: seed of samples and random actions. seed: of the environments' reset. The others are as for ``play``.
    Raises:
        EnvError: an environment raised: what it played is no episode.
    """
    spec, envs = environment.spec, environment.num_envs
    sampler = run.rule.bind(ActorPlace(envs, _NOISE_ROWS), np.random.default_rng(noise))
    random = RandomActions(spec.action, random_share, noise)
    actions = np.zeros((envs, *spec.action.shape), spec.action.dtype)
    environment.activity.enter(PREPARING)
    observations: Array = environment.reset(seed)
    environment.activity.enter(STEPPING)
    first, over = np.ones(envs, np.bool_), np.zeros(envs, np.bool_)
    for step in itertools.count():
        if frame is not None:
            frame(environment.render())
        params = random.mixed(player.params(observations, first if first.any() else None))
        if greedy:
            sampler.greedy(params, actions)
        else:
            if step % _NOISE_ROWS == 0:
                sampler.begin(TRAINED)
            sampler.sample(params, step % _NOISE_ROWS, actions)
        environment.activity.words[0] = step
        observations, rewards, terminated, truncated = environment.step(cast(Actions, sampler.to_env(actions)))
        if environment.failures:
            failure = environment.failures[0]
            raise EnvError(
                f"environment {failure.environment} of {run.config.environment.env!r} raised in step {step + 1}, so "
                f"that its episode has no return: {failure.error}; mend the environment"
            )
        done = terminated | truncated
        # next_step: the finished step's observation is the final one, and the row after it begins the next episode
        first, over = (done, over) if spec.autoreset == "same_step" else (over, done)
        yield observations, rewards, done


def check_play(episodes: int, seed: int, envs: int = DEFAULT_ENVS, *, least: int = 1) -> None:
    """Raise ConfigError for what ``play`` does not take, before a caller works for minutes.

    Args:
        least: episodes; 0 where a caller plays none then.
    """
    _check_seed(seed)
    if episodes < least or envs < 1:
        none = "" if least else ", or 0 episodes for none"
        raise ConfigError(f"{episodes} episodes on {envs} environments: at least one of each is needed{none}")
    if episodes > MAX_EPISODES or min(episodes, envs) > MAX_ENVS:
        raise ConfigError(
            f"{episodes:,} episodes on {envs:,} environments: at most {MAX_EPISODES:,}, whose returns are kept in "
            f"memory, on {MAX_ENVS:,}, which one process steps together"
        )


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ConfigError(f"seed = {seed}: give one of at least 0")


@contained(": mend the environment")
def collect_inputs(
    run: TrainedPolicy,
    rows: int,
    seed: int = 0,
    *,
    policy: Policy | None = None,
    envs: int = 8,
    steps: int = 1000,
    random_share: float = 0.0,
    stream: int = 0,
    progress: Progress | None = None,
) -> dict[str, Array]:
    """Real inputs of the policy, from episodes that it plays by sampling: for calibration and for measuring mismatch.

    Args:
        seed: of environments, noise and choice.
        policy: the policy that plays; full precision when None.
        envs: environments stepped together.
        steps: vector steps over which the rows are spread evenly, so that they show more than an episode's start.
        random_share: share of actions that are uniformly random instead.
        stream: other episodes of the same seed.
    Returns:
        Input name to [rows, *shape], in random order; recurrent states are those met on the way. Fewer rows where the
        policy has recorded observations, and no more of them.
    Raises:
        ConfigError: ``rows`` is not positive, or ``seed`` negative; what ``TrainedPolicy.make_env`` raises.
        EnvError: an input is not finite.
    """
    _check_seed(seed)
    if rows < 1:
        raise ConfigError(f"rows is {rows}: at least one input is needed")
    if run.recorded is not None:
        count = len(next(iter(run.recorded.values())))
        chosen = np.random.default_rng((seed, _COLLECTION)).permutation(count)[:rows]
        return {name: array[chosen] for name, array in run.recorded.items()}
    noise = (seed, _COLLECTION + stream)
    environment = run.make_env(-(-min(envs, rows) // run.spec.agents), noise)
    envs = environment.num_envs
    moments = -(-rows // envs)
    steps = max(steps, moments)
    wanted = set(np.linspace(0, steps - 1, moments).astype(int).tolist())
    player = make_player(run.compress("fp32") if policy is None else policy, run, envs)
    moves = _steps(environment, player, run, noise, random_share)
    progress = Progress() if progress is None else progress
    kept: dict[str, list[Array]] = {}
    try:
        for step, _ in enumerate(itertools.islice(moves, steps)):
            if step in wanted:
                for name, array in player.inputs().items():
                    kept.setdefault(name, []).append(np.array(array))
            progress.advance(PlayingStatus(0, 0, envs * (step + 1)))
    finally:
        environment.close()
    order = np.random.default_rng(noise).permutation(moments * envs)[:rows]
    inputs = {name: np.concatenate(arrays)[order] for name, arrays in kept.items()}
    for name, array in inputs.items():
        if not np.isfinite(array).all():
            raise EnvError(
                f"inputs of the policy in {run.config.environment.env} are not finite: {name!r} holds "
                f"{array[~np.isfinite(array)][0]}: mend the environment, or wrap it so that its numbers are finite"
            )
    return inputs


def held_out(inputs: Mapping[str, Array], rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """So many rows, at most half of all, and the others, which may calibrate."""
    rows = min(rows, len(next(iter(inputs.values()))) // 2)
    return {name: a[:rows] for name, a in inputs.items()}, {name: a[rows:] for name, a in inputs.items()}


Policy = CompressedPolicy | torch.nn.Module | Callable[[int], InPlaceSession]


def make_player(policy: Policy, run: TrainedPolicy, batch: int) -> Player:
    """A player of ``batch`` environments of the run's layout.

    Raises: ArtifactError when an artifact cannot be loaded.
    """
    if isinstance(policy, CompressedPolicy):
        return Player(PolicySession(policy, batch=batch), run.spec)
    if isinstance(policy, torch.nn.Module):
        return Player(TorchSession(policy, run.example_inputs, batch), run.spec)
    return Player(policy(batch), run.spec)
