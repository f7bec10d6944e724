"""Evaluation while a run trains: a process of its own plays the newest policy greedily, and keeps the best one.

Neither the learner's loop nor the actors wait for it: the learner hands over a copy of its weights and the artifact
that actors got, and goes on; the process has the least priority (nice 19). A policy that is due while another one is
still playing comes later. With ``actors = 0`` the learner waits for its turn instead, so that the same policies are
played, and the same one is kept, in every run of equal seeds.

Episodes start from seeds of their own, the same for every policy, so that policies are compared on equal terms. The
best mean return is therefore the best of many on these seeds: play the kept policy on others before you report it.

    python -P -m accel.runs.live_evaluation RUN SETTINGS FILES        the process (``accel.supervision.supervised``)
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from accel.json_object import Json
from accel.runs.summary import EvaluationSummary
from accel.supervision.activity import PREPARING, WAITING, Activity, shared_activities
from accel.supervision.channel import ChannelClosedError
from accel.supervision.child import begin_child, error_report
from accel.supervision.clock import AwakeClock
from accel.supervision.supervised import Supervised
from accel.system.memory import anonymous_memory, read_all, write_all
from accel.transport.pinning import shared_cores

FIRST_SEED = 1 << 32
"""Plus the run's seed: of every evaluation's episodes, unlike the small seeds that people give ``accel evaluate``."""
TIMEOUT_S = 600.0
"""The longest that anything waits for an evaluation."""
NICE = 19
"""Of the process, except where the learner waits for it anyway."""
_POLL_S = 0.1
_LONGEST_LOOK_S = 1.0

Metrics = dict[str, float | int | str | None]
logger = logging.getLogger("accel")


class LiveEvaluation:
    """Told of every publication; answers with returns, some time later. This one plays nothing."""

    result: EvaluationSummary | None = None

    def offer(self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes]) -> None:
        """A policy was published.

        Args:
            env_steps: learned from so far. version: of the policy.
            artifact: what actors got; empty where they act with torch.
            weights: a copy of the learner's weights, safetensors; called only for a policy that is played.
        """

    def metrics(self) -> Metrics:
        """For the metrics record: the oldest result that was not told yet; empty without news."""
        return {}

    def finish(
        self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes], timeout_s: float
    ) -> None:
        """Play the final policy, after what is still playing, and wait for it, for ``timeout_s`` at most."""

    def close(self) -> None:
        """End the process."""


class ProcessEvaluation(LiveEvaluation):
    """Plays in a process of its own, which takes policies from memory that both see.

    Args:
        run: the run directory, whose config.toml is written. spec: the environment's layout, JSON.
        every: environment steps between two evaluations. env_steps: done so far.
        waits: whether ``offer`` waits for the evaluation before.
        cores: how many cores this process might use before it was pinned; None: it was not.
        limits_s: how long a step of the environments may take, and their construction or a reset.
        stopped: polled while waiting, with ``meanwhile``, which keeps the actors' connection alive.
    """

    def __init__(
        self,
        run: Path,
        spec: Json,
        *,
        every: int,
        env_steps: int,
        waits: bool,
        cores: int | None,
        limits_s: tuple[float, float],
        stopped: Callable[[], object],
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._every, self._due = every, (env_steps // every + 1) * every
        self._waits, self._stopped, self._meanwhile = waits, stopped, meanwhile
        self._news: deque[Metrics] = deque()
        self._is_idle, self._is_over = True, False
        self._memory, shared = anonymous_memory(), anonymous_memory()
        settings = json.dumps({"spec": spec, "cores": cores, "nice": 0 if waits else NICE})
        command = [sys.executable, "-P", "-m", __name__, str(run), settings]
        (activity,) = shared_activities(shared)
        self._process = Supervised(command, activity, (self._memory, shared), limits_s=limits_s, quiet=True)
        self._clock = AwakeClock(_LONGEST_LOOK_S)
        self._process.start(self._clock.s)
        os.close(shared)

    def offer(self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes]) -> None:
        """See ``LiveEvaluation.offer``."""
        if env_steps < self._due:
            return
        self._hear()
        if self._is_over or not (self._is_idle or (self._waits and self._wait())):
            return
        self._due = (env_steps // self._every + 1) * self._every
        self._submit(env_steps, version, artifact, weights())

    def metrics(self) -> Metrics:
        """See ``LiveEvaluation.metrics``."""
        self._hear()
        return self._news.popleft() if self._news else {}

    def finish(
        self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes], timeout_s: float
    ) -> None:
        """See ``LiveEvaluation.finish``."""
        deadline = time.monotonic() + timeout_s
        if self._wait(timeout_s) and (self.result is None or self.result.env_steps < env_steps):
            self._submit(env_steps, version, artifact, weights())
            self._wait(deadline - time.monotonic())

    def close(self) -> None:
        """See ``LiveEvaluation.close``."""
        self._process.end(wait=True)
        os.close(self._memory)

    def _submit(self, env_steps: int, version: int, artifact: bytes, weights: bytes) -> None:
        self._is_idle = False
        write_all(self._memory, artifact, 0)
        write_all(self._memory, weights, len(artifact))
        sizes = {"artifact": len(artifact), "weights": len(weights)}
        self._process.send("play", {"env_steps": env_steps, "version": version, **sizes})

    def _wait(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Until nothing plays; False where evaluations have ended, the run is stopped meanwhile, or it takes too
        long."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._hear()
            if self._is_idle or self._is_over:
                return not self._is_over
            self._meanwhile()
            if self._stopped() is not None:
                return False
            if time.monotonic() > deadline:
                self._give_up("one takes too long")
                return False
            time.sleep(_POLL_S)

    def _hear(self) -> None:
        """Take in what the process says, and look whether it lives."""
        if self._is_over:
            return
        now_s = self._clock.look()
        for kind, body in self._process.receive(now_s):
            if kind == "played":
                self._is_idle = True
                length = float(str(body.pop("length")))
                self.result = result = EvaluationSummary(**body)  # type: ignore[arg-type]
                news: Metrics = {"evaluation_return": result.mean, "evaluation_length": length}
                news |= {"evaluation_env_steps": result.env_steps, "evaluation_best_return": result.best_mean}
                self._news.append(news)
        self._give_up(str(self._process.last_error.get("error", "")) or self._process.look(now_s))

    def _give_up(self, why: str) -> None:
        """Where there is a reason, evaluations end for good."""
        if why and not self._is_over:
            self._is_over = True
            logger.warning("no more evaluations: %s; the run goes on", why)
            self._process.fail(self._clock.s, 0)


class _Evaluator:
    """The process's side: the run's environment and networks, and the best result so far."""

    def __init__(self, path: Path, spec: Json, activity: Activity) -> None:
        import torch

        from accel.algorithms.catalogue import make_algorithm
        from accel.config import TrainConfig
        from accel.envs.spaces import EnvSpec
        from accel.runs.checkpoint import CheckpointStore
        from accel.runs.directory import RunDirectory

        torch.set_num_threads(1)
        run = RunDirectory.open(path, read_only=True)
        self._config, self._spec = TrainConfig.from_json(run.read_config()), EnvSpec.from_json(spec)
        self._run, self._activity = run, activity
        self._algorithm = make_algorithm(self._config, self._spec, torch.device("cpu"))
        self._store = CheckpointStore(run.best, 1)
        best = self._store.load_latest()
        self._best: dict[str, object] = {} if best is None else dict(best.counters["evaluation"])  # type: ignore[arg-type]

    def answer(self, played: Json, artifact: bytes, weights: bytes) -> dict[str, object]:
        """Play one policy; keeps it where none was better. Args: played: its ``env_steps`` and ``version``."""
        from safetensors.torch import load

        from accel.compressors.artifact import CompressedPolicy
        from accel.runs.checkpoint import CheckpointState
        from accel.runs.loading import PREFIX, TrainedRun
        from accel.runs.playing import play
        from accel.system.atomic import write_atomically

        self._algorithm.networks.load_state_dict(load(weights))
        env_steps, version = int(str(played["env_steps"])), int(str(played["version"]))
        run = TrainedRun.of(self._algorithm, self._run.path, self._config, self._spec, env_steps, version)
        episodes, seed = self._config.run.evaluation_episodes, FIRST_SEED + self._config.run.seed
        policy = CompressedPolicy.from_bytes(artifact) if artifact else run.policy
        self._activity.enter(PREPARING)
        result = play(policy, run, episodes=episodes, seed=seed, activity=self._activity)
        mean = float(result.returns.mean())
        if not self._best or mean > float(str(self._best["best_mean"])):
            self._best = {"best_mean": mean, "best_env_steps": env_steps}
            # a checkpoint that ``load_run(..., which="best")`` reads, and what the actors had
            tensors = {f"{PREFIX}{name}": value for name, value in self._algorithm.networks.state_dict().items()}
            spec = self._spec.to_json()
            counters = {"env_steps": env_steps, "version": version, "spec": spec, "evaluation": self._best}
            self._store.save(CheckpointState(tensors, {}, counters))  # type: ignore[arg-type]
            if artifact:
                self._run.policy.mkdir(exist_ok=True)
                write_atomically(self._run.policy / "best.accel", artifact)
        told = {"mean": mean, "env_steps": env_steps, "episodes": episodes, **self._best}
        return told | {"length": float(result.lengths.mean())}


def main() -> int:
    """Play what comes until nothing more does."""
    channel, (memory, shared) = begin_child(700)  # above the actors'
    (activity,) = shared_activities(shared)
    activity.enter(WAITING)
    settings = json.loads(sys.argv[2])
    os.nice(settings["nice"])
    cores = settings["cores"]
    if cores is not None and hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) < cores:
        # every core again, where the learner was pinned to some of its host's
        os.sched_setaffinity(0, shared_cores(Path("/")) or range(os.cpu_count() or 1))
    evaluator: _Evaluator | None = None
    with suppress(ChannelClosedError):
        while channel.wait(None):
            for _, body in channel.receive():
                try:
                    sizes = [int(str(body[name])) for name in ("artifact", "weights")]
                    artifact, weights = read_all(memory, sizes[0], 0), read_all(memory, sizes[1], sizes[0])
                    evaluator = evaluator or _Evaluator(Path(sys.argv[1]), settings["spec"], activity)
                    channel.send("played", evaluator.answer(body, artifact, weights))
                except Exception as error:  # noqa: BLE001 - the learner's process reports it
                    channel.send("error", error_report(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
