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
from abc import abstractmethod
from contextlib import suppress
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
    """An environment whose observations nobody can flatten."""

    observation_space = spaces.Text(8)
    action_space = spaces.Discrete(2)


class OldInterface(gymnasium.Env[Any, Any]):
    """Gives four values, as gym did."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, **_: object) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, _: object) -> Any:
        return np.zeros(3, np.float32), 1.0, False, {}


class AnotherShape(OldInterface):
    """Shows observations of another shape than it announces."""

    def reset(self, **_: object) -> Any:
        return np.zeros(4, np.float32), {}


class _Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts its steps."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return super().step(action)


class _Failing(_Counting):
    """Fails in every step after some."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE:
            self.fail()
        return super().step(action)

    @abstractmethod
    def fail(self) -> None:
        """What goes wrong."""


class RaisesInNinthReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in every ninth reset, and begins anew."""

    resets = 0

    def reset(self, **options: Any) -> Any:
        type(self).resets += 1
        if type(self).resets % 9 == 0:
            raise ValueError("the simulator broke")
        return super().reset(**options)


class NanReward(_Counting):
    """Pays NaN from some step on."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float("nan") if self.steps > FIRST_TROUBLE else reward, terminated, truncated, info


class NanObservation(_Counting):
    """Shows NaN from some step on."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return observation * (float("nan") if self.steps > FIRST_TROUBLE else 1), *rest  # type: ignore[return-value]


class NanPart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One number of DictTarget's observations is NaN."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        observation["goal"]["noise"][1] = float("nan")
        return observation, reward, terminated, truncated, info


class OneNanObservation(_Counting):
    """Shows NaN in one step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return observation * (float("nan") if self.steps == FIRST_TROUBLE else 1), *rest  # type: ignore[return-value]


class Crash(_Counting):
    """Raises in the last of two actors, after some steps."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE and rank() == SLOW_RANK:
            raise ValueError("the simulator broke")
        return super().step(action)


class TroubleForTwo(_Counting):
    """Of three actors the second one's process ends, and the third one's hangs, before an unroll is whole."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE and rank() == SLOW_RANK:
            os._exit(0)
        if self.steps > FIRST_TROUBLE and rank() == SLOW_RANK + 1:
            time.sleep(3600)
        return super().step(action)


class Slow(_Counting):
    """Takes its time in one actor."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if rank() == SLOW_RANK:
            time.sleep(SLOW_S)
        return super().step(action)


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps for a moment everywhere: a run that only has to go on meanwhile leaves the cores to other tests."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(PACE_S)
        return super().step(action)


class Leisurely(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps a little everywhere: actors leave the cores to a learner that shares them, and do not outrun it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(LEISURE_S)
        return super().step(action)


class Laborious(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes its time everywhere, so that the environment is the bottleneck."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(LABOUR_S)
        return super().step(action)


class Uneven(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps for an exponentially distributed time at every step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(random.expovariate(1.0 / LEISURE_S))
        return super().step(action)


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


def _raise() -> None:
    raise ValueError("the simulator broke")


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


FAILURES = {
    "raise": _raise,
    "exit": lambda: sys.exit(7),
    "leave": lambda: os._exit(0),
    "segfault": _segfault,
    "hang": lambda: time.sleep(3600),
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
    """Raises in every step."""

    def step(self, action: Any) -> Any:
        raise ValueError(f"no step was ever made ({action})")


class Raises(_Failing):
    """Raises in every step after some, and cannot be closed either."""

    def fail(self) -> None:
        raise ValueError("the simulator broke" + " and broke" * 10**6)

    def close(self) -> None:
        if self.steps > FIRST_TROUBLE:
            raise ValueError("it was closed before")
        super().close()


class Leaves(_Failing):
    """Leaves the process after some steps, always."""

    def fail(self) -> None:
        os._exit(7)


class Hangs(_Failing):
    """Never comes back from a step, after some; in one actor of two, or in all where there is one."""

    def fail(self) -> None:
        time.sleep(3600)


class HangsAtOnce(Hangs):
    """Never comes back from its first step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.fail()
        return super().step(action)


class HangsAtTheEnd(Hangs):
    """Hangs when its run is asked to stop."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        super().fail()


class Uninterruptible(Hangs):
    """Hangs where nothing can interrupt it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps == FIRST_TROUBLE:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        return super().step(action)


class UninterruptibleForAWhile(_Counting):
    """Takes four seconds for one step, in which nothing can interrupt it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps == FIRST_TROUBLE:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            time.sleep(4)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return super().step(action)


class HangsInReset(_Counting):
    """Never comes back from a reset, after some steps."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE:
            time.sleep(3600)
        return super().reset(**options)


class HangsInTheFirstReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Never gives a first observation."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(3600)
        return super().reset(**options)


class HangsWhenClosed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Is never closed."""

    def close(self) -> None:
        time.sleep(3600)


class Exits(_Failing):
    """Ends the program after some steps, as if all were well."""

    def fail(self) -> None:
        sys.exit(0)


class Interrupts(_Failing):
    """Takes Ctrl-C itself, after some steps."""

    def fail(self) -> None:
        raise KeyboardInterrupt


class HangsInEvaluation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Never comes back from a step where a policy is played beside training."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if "live_evaluation" in sys.argv[0]:
            time.sleep(3600)
        return super().step(action)


class HangsInTheMaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Is never made."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        time.sleep(3600)


class LeavesWell(_Failing):
    """Leaves the process after some steps, as if all were well."""

    def fail(self) -> None:
        os._exit(0)


class Crashes(_Failing):
    """Crashes the process after some steps."""

    def fail(self) -> None:
        _segfault()


class HoldsTheLock(_Failing):
    """Hangs in C, after some steps, with the interpreter's lock held."""

    def fail(self) -> None:
        sum(itertools.repeat(0))


class NeverEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has a thread that the interpreter waits for when the process ends."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        threading.Thread(target=time.sleep, args=(3600,)).start()
