"""Evaluation while a run trains: a process of its own plays the newest policy greedily, and keeps the best one.

Neither the learner's loop nor the actors wait for it: the learner hands over a copy of its weights and the artifact
that actors got, and goes on; the process has the least priority (nice 19). A policy that is due while another one is
still playing comes later. With ``actors = 0`` the learner waits for its turn instead, so that the same policies are
played, and the same one is kept, in every run of equal seeds.

Episodes start from seeds of their own, the same for every policy, so that policies are compared on equal terms. The
best mean return is therefore the best of many on these seeds: play the kept policy on others before you report it.

    python -P -m accel.runs.live_evaluation RUN        the process; requests on its input, answers on its output
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from accel.json_object import Json
from accel.runs.summary import EvaluationSummary
from accel.supervision.activity import PREPARING, WAITING, Activity, Watchdog
from accel.supervision.process_tree import ProcessTree
from accel.system.module_path import add_working_directory
from accel.system.signals import end_with_parent
from accel.transport.pinning import shared_cores

FIRST_SEED = 1 << 32
"""Plus the run's seed: of every evaluation's episodes, unlike the small seeds that people give ``accel evaluate``."""
TIMEOUT_S = 600.0
"""The longest that anything waits for an evaluation."""
NICE = 19
"""Of the process, except where the learner waits for it anyway."""
_POLL_S = 0.1
_END_S = 5.0

Metrics = dict[str, float | int | str | None]
logger = logging.getLogger("accel")


class LiveEvaluation(Protocol):
    """Told of every publication; answers with returns, some time later."""

    result: EvaluationSummary | None

    def offer(self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes]) -> None:
        """A policy was published.

        Args:
            env_steps: learned from so far. version: of the policy.
            artifact: what actors got; empty where they act with torch.
            weights: a copy of the learner's weights, safetensors; called only for a policy that is played.
        """
        ...

    def metrics(self) -> Metrics:
        """For the metrics record: the oldest result that was not told yet; empty without news."""
        ...

    def finish(
        self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes], timeout_s: float
    ) -> None:
        """Play the final policy, after what is still playing, and wait for it, for ``timeout_s`` at most."""
        ...

    def close(self) -> None:
        """End the process; closing twice is fine."""
        ...


class NoEvaluation:
    """The identity: nothing is played."""

    result: EvaluationSummary | None = None

    def offer(self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes]) -> None:
        """Nothing."""

    def metrics(self) -> Metrics:
        """Nothing."""
        return {}

    def finish(
        self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes], timeout_s: float
    ) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _Request:
    env_steps: int
    version: int
    artifact: bytes
    weights: bytes


class ProcessEvaluation:
    """Plays in a process of its own, which a thread of this one talks to.

    Args:
        run: the run directory, whose config.toml is written.
        spec: the environment's layout, JSON. every: environment steps between two evaluations. env_steps: done so far.
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
        self.result: EvaluationSummary | None = None
        self._every, self._due = every, (env_steps // every + 1) * every
        self._waits, self._stopped, self._meanwhile = waits, stopped, meanwhile
        self._news: deque[Metrics] = deque()
        self._idle = threading.Event()
        self._idle.set()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._failure = ""
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        step_s, preparation_s = limits_s
        told = {"spec": spec, "cores": cores, "nice": 0 if waits else NICE}
        first = json.dumps(told | {"step_s": step_s, "preparation_s": preparation_s}).encode() + b"\n"
        self._thread = threading.Thread(target=self._serve, args=(run, first), daemon=True)
        self._thread.start()

    def offer(self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes]) -> None:
        """See ``LiveEvaluation.offer``."""
        if env_steps < self._due:
            return
        if not self._idle.is_set() and not (self._waits and self._wait()):
            return
        if self._gave_up():  # Looked at last: nobody would answer what is submitted then.
            return
        self._due = (env_steps // self._every + 1) * self._every
        self._submit(_Request(env_steps, version, artifact, weights()))

    def metrics(self) -> Metrics:
        """See ``LiveEvaluation.metrics``."""
        return self._news.popleft() if self._news else {}

    def finish(
        self, env_steps: int, version: int, artifact: bytes, weights: Callable[[], bytes], timeout_s: float
    ) -> None:
        """See ``LiveEvaluation.finish``."""
        deadline = time.monotonic() + timeout_s
        ready = self._wait(timeout_s) and not self._gave_up()
        if ready and (self.result is None or self.result.env_steps < env_steps):
            self._submit(_Request(env_steps, version, artifact, weights()))
            self._wait(deadline - time.monotonic())
        self._gave_up()

    def close(self) -> None:
        """See ``LiveEvaluation.close``."""
        self._closed = True
        self._requests.put(None)
        if self._process is not None:
            self._process.kill()
        self._thread.join(TIMEOUT_S)

    def _submit(self, request: _Request) -> None:
        self._idle.clear()
        self._requests.put(request)

    def _wait(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Until nothing plays; False where the run is stopped meanwhile, or it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._idle.wait(_POLL_S):
            self._meanwhile()
            if self._stopped() is not None:
                return False
            if time.monotonic() > deadline:
                self._failure = "one takes too long"
                return False
        return True

    def _gave_up(self) -> bool:
        """Whether evaluations have ended for good; says why, once."""
        if not self._failure:
            return False
        if self._failure != "told":
            logger.warning("no more evaluations: %s; the run goes on", self._failure)
            self._failure = "told"
        return True

    def _serve(self, run: Path, first: bytes) -> None:
        """The thread: one request after another to the process, one answer each."""
        command = [sys.executable, "-P", "-m", __name__, str(run)]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            tree = ProcessTree(command, os.environ, stdin=pipe, stdout=pipe, stderr=null)
            with tree.process as process:
                self._process = process
                try:
                    self._talk(process, first)
                finally:
                    tree.end(_END_S)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not self._closed:
                self._failure = str(error)
        finally:
            self._idle.set()

    def _talk(self, process: subprocess.Popen[bytes], first: bytes) -> None:
        if process.stdin is None or process.stdout is None:
            raise OSError("no pipes")
        process.stdin.write(first)
        while (request := self._requests.get()) is not None:
            _write(process.stdin, request)
            answer = process.stdout.readline()
            if not answer:
                raise OSError(f"its process ended with status {process.wait()}")
            self._take(json.loads(answer))
            self._idle.set()

    def _take(self, answer: Json) -> None:
        if "error" in answer:
            raise OSError(answer["error"])
        length = answer.pop("length")
        result = EvaluationSummary(**answer)  # type: ignore[arg-type]
        self._news.append(
            {
                "evaluation_return": result.mean,
                "evaluation_length": float(str(length)),
                "evaluation_env_steps": result.env_steps,
                "evaluation_best_return": result.best_mean,
            }
        )
        self.result = result


def _write(stream: IO[bytes], request: _Request) -> None:
    sizes = {
        "env_steps": request.env_steps,
        "version": request.version,
        "artifact": len(request.artifact),
        "weights": len(request.weights),
    }
    stream.write(json.dumps(sizes).encode() + b"\n" + request.artifact + request.weights)
    stream.flush()


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
        self._config = TrainConfig.from_json(run.read_config())
        self._spec = EnvSpec.from_json(spec)
        self._path, self._policies = run.path, run.policy
        self._algorithm = make_algorithm(self._config, self._spec, torch.device("cpu"))
        self._store = CheckpointStore(run.best, 1)
        self._best: dict[str, object] = {}
        self._activity = activity
        if self._store.latest() is not None:
            self._best = dict(self._store.load_latest().counters["evaluation"])  # type: ignore[arg-type]

    def answer(self, request: _Request) -> dict[str, object]:
        """Play one policy; keeps it where none was better."""
        from safetensors.torch import load

        from accel.compressors.artifact import CompressedPolicy
        from accel.runs.loading import TrainedRun
        from accel.runs.playing import play

        self._algorithm.networks.load_state_dict(load(request.weights))
        run = TrainedRun(self._path, self._config, self._spec, request.env_steps, request.version, self._algorithm)
        episodes, seed = self._config.run.evaluation_episodes, FIRST_SEED + self._config.run.seed
        policy = CompressedPolicy.from_bytes(request.artifact) if request.artifact else run.policy
        self._activity.enter(PREPARING)
        played = play(policy, run, episodes=episodes, seed=seed, activity=self._activity)
        mean = float(played.returns.mean())
        if not self._best or mean > float(str(self._best["best_mean"])):
            self._best = {"best_mean": mean, "best_env_steps": request.env_steps}
            self._keep(request)
        result = {"mean": mean, "env_steps": request.env_steps, "episodes": episodes, **self._best}
        return result | {"length": float(played.lengths.mean())}

    def _keep(self, request: _Request) -> None:
        """The weights as a checkpoint that ``load_run(..., which="best")`` reads, and what the actors had."""
        from accel.runs.checkpoint import CheckpointState
        from accel.runs.loading import PREFIX
        from accel.system.atomic import write_atomically

        networks = self._algorithm.networks.state_dict()
        counters = {
            "env_steps": request.env_steps,
            "version": request.version,
            "spec": self._spec.to_json(),
            "evaluation": self._best,
        }
        tensors = {f"{PREFIX}{name}": value for name, value in networks.items()}
        self._store.save(CheckpointState(tensors, {}, counters))  # type: ignore[arg-type]
        if request.artifact:
            self._policies.mkdir(exist_ok=True)
            write_atomically(self._policies / "best.accel", request.artifact)


def main() -> int:
    """Answer requests until there are no more."""
    end_with_parent(signal.SIGKILL)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an environment that prints must not answer
    add_working_directory()
    first = json.loads(requests.readline())
    os.nice(first["nice"])
    _leave_the_learners_cores(first["cores"])
    evaluator: _Evaluator | None = None
    activity = Activity()
    activity.enter(WAITING)

    def say(answer: Json) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    def end_hang(why: str, _times: int) -> None:
        say({"error": why})
        os._exit(1)

    with Watchdog(activity, first["step_s"], first["preparation_s"], end_hang):
        while line := requests.readline():
            sizes = json.loads(line)
            artifact, weights = (requests.read(sizes[name]) for name in ("artifact", "weights"))
            try:
                evaluator = evaluator or _Evaluator(Path(sys.argv[1]), first["spec"], activity)
                answer = evaluator.answer(_Request(sizes["env_steps"], sizes["version"], artifact, weights))
            except Exception as error:  # noqa: BLE001 - the learner's process reports it
                answer = {"error": f"{type(error).__name__}: {error}"}
            say(answer)
    return 0


def _leave_the_learners_cores(cores: int | None) -> None:
    """Use every core again, where the learner was pinned to some of its host's."""
    if cores is not None and hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) < cores:
        os.sched_setaffinity(0, shared_cores(Path("/")) or range(os.cpu_count() or 1))


if __name__ == "__main__":
    sys.exit(main())
