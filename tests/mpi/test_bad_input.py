"""What cannot be run is one clear message and a status that is not 0, from every rank, and no rank is left hanging."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.ranks import ROOT, need_mpirun
from tests.mpi.training_runs import TrainingRun

TROUBLED = "tests.environments.troubled:"


def refused(job: TrainingRun, *expected: str) -> None:
    """The job ends, says why exactly once, and shows nobody a traceback."""
    with job:
        assert job.finish() != 0
        for text in expected:
            assert re.search(text, job.output, re.DOTALL), f"no {text!r} in\n{job.output}"
        ours = [line for line in job.output.splitlines() if line.startswith("accel:")]
        # The learner does not wait long for an actor that the machine keeps asleep: it then finds the learner gone.
        consequences = ("its message is above", "see the messages above", "is gone; this actor cannot go on")
        reasons = [line for line in ours if not any(text in line for text in consequences)]
        assert len(reasons) == 1, job.output
        assert "Traceback" not in job.output, job.output


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env", "CartPol-v1", "--learners", "2"], "unknown environment 'CartPol-v1'.*did you mean CartPole-v1"),
        pytest.param(
            ["--env", "tests.environments.without_box2d:LunarLander-v3"],
            r"pip install 'accel-rl\[box2d\]'",
            marks=pytest.mark.long,
        ),
        (["--results-dir", "/proc/nowhere"], "cannot make /proc/nowhere.*--results-dir"),
        (["--compressor", "prune(0.5)+wat"], "unknown method 'wat'.*choose from fp32"),
    ],
    ids=["two learners", "extra", "directory", "scheme"],
)
def test_accel_train_refuses(words: list[str], expected: str, tmp_path: Path) -> None:
    refused(TrainingRun(tmp_path, "--actors", "2", *words), expected)
    assert not (tmp_path / "run").exists()


@pytest.mark.few(1)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("actors", "within_s", "tried"), [(4096, "5", 3), pytest.param(300, "60", 300, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_more_actors_than_can_start_are_refused_before_any_is(
    launcher: str, actors: int, within_s: str, tried: int, tmp_path: Path
) -> None:
    """With a number that works; a machine that does other things has more time for it."""
    job = TrainingRun(tmp_path, "--actors", str(actors), "--peer-timeout-s", within_s, launcher=launcher)
    refused(job, r"(would not start|do not fit|open files).* give --actors \d+")
    assert not (tmp_path / "run").exists()
    most = min(int(re.findall(r"give --actors (\d+)", job.output)[-1]), tried)
    words = ("--peer-timeout-s", "1200", "--envs-per-actor", "1", "--total-env-steps", "3000")
    with TrainingRun(tmp_path, "--actors", str(most), *words, launcher=launcher) as job:
        assert job.finish(1200) == 0, job.output


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ranks", "words", "expected"),
    [
        (1, [], r"too few ranks: 1 .*mpirun -n 2"),
        (3, ["--learners", "2", "--actors", "2"], r"too few ranks: 3 for 2 learner\(s\)|start 4 ranks"),
        (2, ["--actors", "3"], r"actors = 3, but the launcher started 1 ranks.*start 4 ranks"),
        (3, ["--discount", "2"], "'discount' = 2.0.*less than or equal to 1"),
        (2, ["--env", "NoSuchEnv-v0"], "unknown environment 'NoSuchEnv-v0'"),
    ],
    ids=["one rank", "two learners", "too few", "option", "environment"],
)
def test_ranks_of_a_launcher_refuse(ranks: int, words: list[str], expected: str, tmp_path: Path) -> None:
    refused(TrainingRun(tmp_path, *words, ranks=ranks), expected)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_an_error_is_told_though_an_actor_never_has_its_environments(tmp_path: Path) -> None:
    words = ("--actors", "2", "--wrapper", f"{TROUBLED}Speechless")
    job = TrainingRun(tmp_path, *words)
    ranks = job.wait_for_ranks(3)
    refused(job, "out of order")
    assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("env", "words", "found"),
    [
        ("OldInterface-v0", [], "it gave four values"),
        ("AnotherShape-v0", ["--env-workers", "2"], "shape (4,)) does not have the shape of the observation space"),
    ],
    ids=["old interface", "another shape, workers"],
)
def test_an_environment_that_breaks_the_interface_ends_the_run_at_once(
    env: str, words: list[str], found: str, tmp_path: Path
) -> None:
    """No actor is started again, and the learner's own message has the reason."""
    with TrainingRun(tmp_path, "--actors", "2", "--env", f"{TROUBLED}{env}", *words) as job:
        assert job.finish() != 0
        assert job.output.count("and none is started") == 2 and "another process takes" not in job.output, job.output
        ours = [line for line in job.output.splitlines() if line.startswith("accel: all 2 actors are gone")]
        assert len(ours) == 1 and found in ours[0] and "Traceback" not in job.output, job.output


_REGISTERED_HERE = """
import sys
import gymnasium, accel
from gymnasium.envs.classic_control import CartPoleEnv

class Mine(CartPoleEnv):
    pass

gymnasium.register("Mine-v0", entry_point=Mine)
try:
    accel.train(accel.TrainConfig(env="Mine-v0", actors=1, results_dir=sys.argv[1]))
except accel.AccelError as error:
    print(error)
"""


def test_an_environment_registered_in_the_calling_process_only_is_told_so(tmp_path: Path) -> None:
    need_mpirun()
    done = subprocess.run(
        [sys.executable, "-c", _REGISTERED_HERE, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Mine-v0 is registered in this process; actors are processes of their own" in done.stdout
    assert "give env='module:Mine-v0'" in done.stdout and "unknown environment 'Mine-v0'" in done.stderr + done.stdout
