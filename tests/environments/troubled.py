"""Environments and wrappers that misbehave on purpose, and wrappers that tell what happened in actor processes.

Wrappers find their instructions in the environment variables that a test gives its run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

DIARY = "TROUBLED_DIARY"
HEAVY = ("torch", "onnx", "safetensors", "tensorboard", "pydantic", "tyro")
SLOW_RANK = 2
SLOW_S = 0.01
LEISURE_S = 0.001
PACE_S = 0.0002
LABOUR_S = 0.01
FIRST_TROUBLE = 200

gymnasium.register("Nameless-v0", entry_point="tests.environments.troubled:TextEnv")
gymnasium.register("OldInterface-v0", entry_point="tests.environments.troubled:OldInterface")
gymnasium.register("AnotherShape-v0", entry_point="tests.environments.troubled:AnotherShape")


def rank() -> int:
    """This process's rank, or its number as an actor of a learner without mpirun, from 1 on; else 0."""
    if sys.argv[0].endswith("launch/actor.py"):
        return int(json.loads(sys.argv[1])[0])
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


class TextEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Text(8)
    action_space = spaces.Discrete(2)


class OldInterface(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, **_: object) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, _: object) -> Any:
        return np.zeros(3, np.float32), 1.0, False, {}


class AnotherShape(OldInterface):
    def reset(self, **_: object) -> Any:
        return np.zeros(4, np.float32), {}


class _Before(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does something before every step. Counts its steps."""

    def __init__(self, env: gymnasium.Env[Any, Any], act: Callable[[int], object] = lambda steps: None) -> None:
        super().__init__(env)
        self.steps, self._act = 0, act

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._act(self.steps)
        self.steps += 1
        return super().step(action)


def before(act: Callable[[int], object]) -> Callable[[gymnasium.Env[Any, Any]], _Before]:
    """A wrapper that does something before every step, and is told how many there were."""
    return lambda env: _Before(env, act)


def late(act: Callable[[], object]) -> Callable[[gymnasium.Env[Any, Any]], _Before]:
    """A wrapper that does something in every step after some."""
    return before(lambda steps: act() if steps > FIRST_TROUBLE else None)


class RaisesInNinthReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    resets = 0

    def reset(self, **options: Any) -> Any:
        type(self).resets += 1
        if type(self).resets % 9 == 0:
            raise ValueError("the simulator broke")
        return super().reset(**options)


class _Nan(_Before):
    """A part of what a step gives is NaN in some steps: 0 is the observation, 1 the reward."""

    def __init__(self, env: gymnasium.Env[Any, Any], part: int, when: Callable[[int], bool]) -> None:
        super().__init__(env)
        self._part, self._when = part, when

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        given = list(super().step(action))
        given[self._part] = given[self._part] * (float("nan") if self._when(self.steps) else 1)
        return tuple(given)  # type: ignore[return-value]


NanReward = partial(_Nan, part=1, when=lambda steps: steps > FIRST_TROUBLE)
NanObservation = partial(_Nan, part=0, when=lambda steps: steps > FIRST_TROUBLE)
OneNanObservation = partial(_Nan, part=0, when=lambda steps: steps == FIRST_TROUBLE)


class NanPart(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        observation["goal"]["noise"][1] = float("nan")
        return observation, reward, terminated, truncated, info


def _hang() -> None:
    time.sleep(3600)


def _raise() -> None:
    raise ValueError("the simulator broke")


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _fail_on_two_ranks() -> None:
    if rank() == SLOW_RANK:
        os._exit(0)
    if rank() == SLOW_RANK + 1:
        _hang()


TroubleForTwo = late(_fail_on_two_ranks)
"""Of three actors the second one's process ends, and the third one's hangs, before an unroll is whole."""
Slow = before(lambda steps: time.sleep(SLOW_S) if rank() == SLOW_RANK else None)
Paced = before(lambda steps: time.sleep(PACE_S))
"""Sleeps for a moment everywhere: a run that only has to go on meanwhile leaves the cores to other tests."""
Leisurely = before(lambda steps: time.sleep(LEISURE_S))
"""Sleeps a little everywhere: actors leave the cores to a learner that shares them, and do not outrun it."""
Laborious = before(lambda steps: time.sleep(LABOUR_S))
"""Takes its time everywhere, so that the environment is the bottleneck."""
Uneven = before(lambda steps: time.sleep(random.expovariate(1.0 / LEISURE_S)))


class Diary(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps this process's number of steps in ``steps-RANK``, and at the end writes what it imported."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        path = Path(os.environ[DIARY])
        self._report = path / f"modules-{rank()}.json"
        self._steps = np.memmap(path / f"steps-{rank()}", np.int64, "r+" if self._report.exists() else "w+", shape=(1,))
        self._report.write_text("null")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps[0] += 1
        return super().step(action)

    def close(self) -> None:
        self._report.write_text(json.dumps([name for name in HEAVY if name in sys.modules]))
        super().close()


def steps_taken(diary: Path) -> dict[int, int]:
    """Steps of every environment together, by the rank of their process."""
    return {int(p.name.partition("-")[2]): int(np.fromfile(p, np.int64)[0]) for p in sorted(diary.glob("steps-*"))}


class Obedient(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Fails as a file ``fail-RANK`` in the diary's directory says, once for each such file."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._order = Path(os.environ[DIARY]) / f"fail-{rank()}"

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._order.exists():
            taken = self._order.with_name(f"taken-{os.getpid()}")
            with suppress(FileNotFoundError):  # Another process of this rank takes it.
                self._order.rename(taken)
                FAILURES[taken.read_text()]()
        return super().step(action)


FAILURES = {
    "raise": _raise,
    "exit": lambda: sys.exit(7),
    "leave": lambda: os._exit(0),
    "segfault": _segfault,
    "hang": _hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def order_failure(diary: Path, actor_rank: int, how: str) -> None:
    """Make one environment of a rank that is ``Obedient`` fail in its next step."""
    path = diary / f"fail-{actor_rank}"
    path.with_suffix(".new").write_text(how)
    path.with_suffix(".new").rename(path)


class Simulator(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has two processes of its own, which nobody ends, one in a session of its own."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.simulators = [subprocess.Popen(["sleep", "86400"], start_new_session=apart) for apart in (False, True)]


class Daemon(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Starts a daemon that has nothing of its parents': no session, no variables, no parent."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        subprocess.run(["sh", "-c", f"env -i setsid sleep 86400 & echo $! >> {os.environ[DIARY]}"], check=True)


class RaisesAlways(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise ValueError(f"no step was ever made ({action})")


class BareError(BaseException):
    """No ``Exception``."""


class BareAlways(RaisesAlways):
    def step(self, action: Any) -> Any:
        raise BareError("no step was ever made")


class ExitsInReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **options: Any) -> Any:
        sys.exit(3)


class Raises(_Before):
    """Raises in every step after some, and cannot be closed either."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE:
            raise ValueError("the simulator broke" + " and broke" * 10**6)
        return super().step(action)

    def close(self) -> None:
        if self.steps > FIRST_TROUBLE:
            raise ValueError("it was closed before")
        super().close()


def _stop_and_hang() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    _hang()


def _raise_bare() -> None:
    raise BareError("the simulator broke")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _hang_uninterruptibly(steps: int) -> None:
    if steps == FIRST_TROUBLE:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _hang()


def _pause_uninterruptibly(steps: int) -> None:
    if steps == FIRST_TROUBLE:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(4)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


Leaves = late(lambda: os._exit(7))
LeavesWell = late(lambda: os._exit(0))
Exits = late(lambda: sys.exit(0))
Bare = late(_raise_bare)
Crashes = late(_segfault)
Interrupts = late(_interrupt)
HoldsTheLock = late(lambda: sum(itertools.repeat(0)))
Hangs = late(_hang)
HangsAtOnce = before(lambda steps: _hang())
HangsAtTheEnd = late(_stop_and_hang)
HangsInEvaluation = before(lambda steps: _hang() if "live_evaluation" in sys.argv[0] else None)
Uninterruptible = before(_hang_uninterruptibly)
UninterruptibleForAWhile = before(_pause_uninterruptibly)


class HangsInReset(_Before):
    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE:
            _hang()
        return super().reset(**options)


class HangsInTheFirstReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **options: Any) -> Any:
        _hang()


class HangsWhenClosed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def close(self) -> None:
        _hang()


class HangsInTheMaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        _hang()


class Speechless(HangsInTheMaking):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        if rank() != SLOW_RANK:
            raise ValueError("the simulator is out of order")
        super().__init__(env)


class NeverEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has a thread that the interpreter waits for when the process ends."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        threading.Thread(target=time.sleep, args=(3600,)).start()
