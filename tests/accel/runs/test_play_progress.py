"""What is shown while a policy plays: lines in growing intervals, one redrawn line on a terminal, nobody else's."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from accel.display.progress import LineProgress, Progress
from accel.display.status import PlayingStatus
from accel.errors import EnvError
from accel.runs.evaluation import evaluate
from accel.runs.loading import load_run
from accel.runs.playing import play
from accel.runs.video import record_episode
from tests.accel.runs.trained_runs import make_run


class Clock:
    """Seconds that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_has_stage_time_episodes_and_steps() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LineProgress(stream, clock=clock)
    progress.begin("playing int8")
    clock.now_s += 31
    progress.advance(PlayingStatus(3, 20, 31_000))
    progress.begin("recording v.gif")
    clock.now_s += 1
    progress.advance(PlayingStatus(0, 1, 30))
    progress.close()
    assert stream.getvalue().splitlines() == [
        "playing int8", "playing int8 | 31 s | 3 of 20 episodes | 31,000 steps",
        "recording v.gif", "recording v.gif | 1 s | 30 steps",
    ]  # fmt: skip


def test_playing_tells_every_step_and_every_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    class Told(Progress):
        def begin(self, stage: str) -> None:
            raise AssertionError("playing begins no stage")

        def advance(self, status: PlayingStatus) -> None:
            assert status.total_episodes == 7
            told.append((status.episodes, status.steps))

    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:16x2"))
    played = play(run.compress("fp32"), run, episodes=7, envs=3, progress=Told())
    assert told[-1] == (7, played.env_steps)
    assert [steps for _, steps in told] == list(range(3, played.env_steps + 1, 3))
    ended = np.array([episodes for episodes, _ in told])
    assert (np.diff(ended) >= 0).all() and ended[0] == 0
    assert (ended >= 3).argmax() + 1 == played.lengths[:3].max()


def test_an_evaluation_says_what_it_is_at(tmp_path: Path) -> None:
    run, stream = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:16x2")), io.StringIO()
    clock = Clock()
    video = tmp_path / "v.gif"
    progress = LineProgress(stream, clock=clock)
    played = evaluate(run, scheme="int8", episodes=2, baseline=True, video=video, progress=progress)
    assert stream.getvalue().splitlines() == [
        "compressing as int8",
        f"recording {video}",
        f"playing {played.scheme}",
        "playing fp32 on the same seeds",
        "playing at random",
        "comparing actions",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("LunarLander-v3", marks=pytest.mark.long)])
def test_a_recording_prints_nothing_but_our_lines(env: str, tmp_path: Path) -> None:
    run, video = make_run(tmp_path, env=env, network="mlp:16x1"), tmp_path / "v.mp4"
    bare = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "XDG_RUNTIME_DIR")}
    command = [sys.executable, "-m", "accel", "evaluate", str(run), "--episodes", "1", "--video", str(video)]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" | ")[0] for line in done.stderr.splitlines()]
    assert set(lines) == {f"recording {video}", "playing fp32"}, done.stderr
    assert done.stdout.splitlines()[-1] == f"one episode is shown in {video}" and len(done.stdout.splitlines()) == 3


class Chatty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws with libraries that say much."""

    def render(self) -> Any:
        logging.getLogger("OpenGL.acceleratesupport").error("no OpenGL_accelerate")
        logging.getLogger("mine").error("a wheel came off")
        warnings.warn_explicit("no display", UserWarning, "glfw.py", 1, module="glfw")
        return super().render()


def test_libraries_are_hushed_while_they_draw_and_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrapper = ("tests.accel.runs.test_play_progress:Chatty",)
    run = load_run(make_run(tmp_path, env="CartPole-v1", network="mlp:16x1", wrapper=wrapper))
    record_episode(run.compress("fp32"), run, tmp_path / "v.gif")
    assert {record.getMessage() for record in caplog.records} == {"a wheel came off"}
    logging.getLogger("OpenGL.acceleratesupport").warning("heard again")
    assert caplog.records[-1].getMessage() == "heard again"


@pytest.mark.long
def test_where_mujoco_cannot_draw_the_error_says_what_to_do(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="InvertedPendulum-v5", network="mlp:8x1")
    command = [sys.executable, "-m", "accel", "evaluate", str(run), "--video", str(tmp_path / "v.mp4")]
    bare = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    for way, wanted in (("glfw", "install glfw, which also needs a display, or set"), ("abacus", "here: set")):
        done = subprocess.run(command, env={**bare, "MUJOCO_GL": way}, capture_output=True, text=True, check=False)
        assert done.returncode == EnvError.exit_code
        error = done.stderr.splitlines()[-1]
        assert f"MuJoCo renders with MUJOCO_GL={way} here" in error and wanted in error
        assert error.endswith("MUJOCO_GL to another of egl, osmesa, glfw") and len(done.stderr.splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
