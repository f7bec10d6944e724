"""Sweeps of a trained policy: real studies of a few trials, their files, workers that are killed or share one."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial

from accel.cli import main
from accel.cli.sweep import result_text
from accel.config import TrainConfig
from accel.errors import CheckpointError, SweepError
from accel.sweep.driver import SweepResult, sweep_run
from accel.sweep.recovery import KILLS, WORKER
from accel.sweep.search import CandidateOptions, SearchOptions
from accel.sweep.storage import default_url
from accel.sweep.study import SAME_AS, is_done
from tests.accel.runs.trained_runs import make_run
from tests.accel.sweep.sweeping import make_balancing_run, trials_of, worker

_FEW = CandidateOptions(rows=64, episodes=3, batch=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_balancing_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def swept(run: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    out = tmp_path_factory.mktemp("sweeps") / "first"
    search = SearchOptions(trials=10, out=out, seed=1, constraints=("return>=0.9*fp32",))
    return sweep_run(run, search, _FEW, command=("accel", "sweep"))


@pytest.mark.slow
def test_a_sweep_ends_in_a_front_with_figures_and_tables(swept: SweepResult) -> None:
    document = json.loads((swept.directory / "pareto.json").read_text())
    assert swept.trials == 10
    assert [entry["trial"] for entry in document["front"]] == [row.number for row in swept.front]
    assert document["fp32"]["return"] == 500.0
    built = [trial for trial in document["trials"] if not trial.get("skipped", "").startswith("could not be built")]
    assert len({trial["label"] for trial in built}) == 10
    assert all(set(row.values) >= {"return", "latency", "bytes", "kl", "agreement"} for row in swept.front)
    assert all(row.values["return"] >= 450.0 for row in swept.front)
    smallest = min(row.values["bytes"] for row in swept.front)
    assert smallest < 0.6 * document["fp32"]["bytes"]
    content = (swept.directory / "pareto.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000
    table = (swept.directory / "pareto.md").read_text()
    repeated = sum("same_as" in trial for trial in document["trials"])
    played = sum("returns" in trial for trial in document["trials"])
    assert f"\n10 candidates: {played} played, " in table
    assert f"; {repeated} proposals repeated others" in table
    assert (
        "median of a policy call of 4 observations as actors run it, this machine, one thread, relative to fp32"
        in table
    )
    assert f"scaled to fp32's {document['fp32']['latency']:.4g} µs" in table
    for entry in document["front"]:
        figures = entry["values"]
        assert 0 < figures["latency_q1"] <= figures["latency"] <= figures["latency_q3"]
    assert all(f"`{row.label}`" in table for row in swept.front)


def test_the_table_says_how_candidates_were_played_and_which_games_repeat(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="tests.environments:ClosedForm-v0", network="mlp:8x1")
    for sample, how in ((False, "greedy"), (True, "sampled")):
        search = SearchOptions(trials=1, out=tmp_path / how, objectives=("return", "bytes"))
        few = CandidateOptions(rows=16, episodes=6, batch=4, sample=sample)
        sweep_run(run, search, few)
        (line,) = (line for line in (tmp_path / how / "pareto.md").read_text().splitlines() if "A return is" in line)
        assert f"the mean of 6 {how} episodes" in line
        # the environment plays one of five scripts, so that six greedy episodes cannot all differ
        assert sample or "of 6 games differ" in line


def test_a_trade_off_is_exported_by_the_command_that_the_table_gives(swept: SweepResult) -> None:
    table = (swept.directory / "pareto.md").read_text()
    assert len(swept.exports) == len(swept.front) and all(f"\n{command}\n" in table for command in swept.exports)
    arguments = shlex.split(swept.exports[-1])
    assert arguments[:2] == ["accel", "export"]
    assert main([*arguments[1:], "--episodes", "0"]) == 0
    assert arguments[arguments.index("--scheme") + 1] == swept.front[-1].label
    assert (Path(arguments[-1]) / "contract.json").exists()


def test_the_console_gives_latency_with_its_ratio_once(swept: SweepResult) -> None:
    text = result_text(swept)
    assert len(re.findall(r"latency [0-9.]+ us \([0-9.]+ of fp32's\)", text)) == len(swept.front)
    assert "policy_us" not in text and "fp32_us" not in text
    assert swept.tally in text and all(command in text for command in swept.exports)


def test_every_measured_trial_was_screened_before_it_was_played(swept: SweepResult) -> None:
    trials = json.loads((swept.directory / "pareto.json").read_text())["trials"]
    for trial in trials:
        if "same_as" in trial:
            continue
        if trial["state"] == "complete":
            assert len(trial["returns"]) == 3
            assert trial["values"]["kl"] <= 1.0
        else:
            assert "returns" not in trial
            assert trial["skipped"].startswith(("too far from fp32: ", "dominated: ", "could not be built: "))
    by_label = {trial["label"]: trial["values"] for trial in trials}
    assert by_label["fp32"]["kl"] == 0.0
    assert by_label["int8(x8)"]["bytes"] < by_label["fp32"]["bytes"]
    assert 0.0 < by_label["int8(x8)"]["kl"] < 0.1


@pytest.mark.long
def test_configurations_are_taken_by_train_as_they_are(swept: SweepResult, tmp_path: Path) -> None:
    for row, file in zip(swept.front, swept.configurations, strict=True):
        assert TrainConfig.create(**tomllib.loads(file.read_text())).compression.compressor == row.label
    smallest = min(range(len(swept.front)), key=lambda index: swept.front[index].values["bytes"])
    command = [sys.executable, "-m", "accel", "train", "--config", str(swept.configurations[smallest])]
    done = subprocess.run(
        [*command, "--results-dir", str(tmp_path), "--name", "trained", "--calibration-size", "64"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "trained" / "summary.json").read_text())
    assert summary["scheme"] == swept.front[smallest].label


@pytest.mark.slow
def test_going_on_adds_only_what_is_missing_and_repeats_nothing(swept: SweepResult, run: Path) -> None:
    search = SearchOptions(trials=11, out=swept.directory, seed=1, constraints=("return>=0.9*fp32",))
    again = sweep_run(run, search, _FEW)
    assert again.trials == 11
    trials = trials_of(default_url(swept.directory), swept.directory.name)
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    other = search.model_copy(update={"objectives": ("kl", "bytes")})
    with pytest.raises(SweepError, match="has another subject: objectives was"):
        sweep_run(run, other, _FEW)


def test_a_constraint_that_nobody_meets_names_the_nearest_candidate(run: Path, tmp_path: Path) -> None:
    search = SearchOptions(trials=3, out=tmp_path / "out", objectives=("kl", "bytes"), constraints=("bytes<=100",))
    candidates = CandidateOptions(rows=32)
    with pytest.raises(SweepError, match=r"none of 3 trials meets bytes<=100. Nearest is trial \d+ .*which misses by"):
        sweep_run(run, search, candidates)
    assert "No trial meets the constraints" in (tmp_path / "out" / "pareto.md").read_text()
    assert not (tmp_path / "out" / "best").exists()


@pytest.mark.long
def test_a_small_space_ends_the_sweep_before_its_trials(run: Path, tmp_path: Path) -> None:
    few = CandidateOptions(bits=("fp32", "int8"), prune=(0.0,), rank=(1.0,), rows=32)
    search = SearchOptions(trials=40, out=tmp_path / "out", objectives=("kl", "bytes"))
    result = sweep_run(run, search, few)
    assert result.trials == 8, "three layers, two formats"


@pytest.mark.long
def test_a_killed_worker_s_trial_is_done_by_the_next(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--run", run, "--out", out, "--trials", 4, "--rows", 64, "--episodes", 1)
    with worker(*arguments, manner="halting") as killed:
        while not _is_at_another(out):
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    left = trials_of(default_url(out), "out")
    few = CandidateOptions(rows=64, episodes=1)
    finished = [trial.number for trial in left if trial.state.is_finished()]
    result = sweep_run(run, SearchOptions(trials=4, out=out), few)
    trials = trials_of(default_url(out), "out")
    assert result.trials == 4
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED", "FAIL"}
    lost = [trial for trial in trials if trial.state.name == "FAIL"]
    assert len(lost) == sum(trial.state.name == "RUNNING" for trial in left) == 1
    assert any(KILLS in trial.user_attrs and trial.params == lost[0].params for trial in trials)
    assert finished and all(trials[number].values == left[number].values for number in finished), "nothing lost"


def _is_at_another(out: Path) -> bool:
    """Whether a worker has finished a trial and is at another."""
    try:
        trials = trials_of(default_url(out), "out") if (out / "study.log").exists() else []
    except (SweepError, KeyError):
        return False  # the study is only being made
    worked_on = [t for t in trials if t.state.name == "RUNNING" and WORKER in t.user_attrs and t.params]
    return bool(worked_on) and any(trial.state.is_finished() for trial in trials)


@pytest.mark.long
def test_tasks_of_a_slurm_array_share_a_journal(run: Path, tmp_path: Path) -> None:
    out, url = tmp_path / "out", f"journal:{tmp_path / 'study.log'}"
    arguments = ("--run", run, "--out", out, "--trials", 8, "--rows", 32, "--objectives", "kl,bytes", "--storage", url)
    # as Slurm sets them for a task that srun starts alone
    alone = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
             "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}  # fmt: skip
    with ExitStack() as stack:
        tasks = [
            stack.enter_context(worker(*arguments, manner="meeting", **alone, **_task(number))) for number in range(2)
        ]
        errors = [process.communicate()[1] for process in tasks]
    assert [process.returncode for process in tasks] == [0, 0], errors
    _check_division(trials_of(url, "out"), 8)
    assert json.loads((out / "pareto.json").read_text())["front"] and not list(out.glob("*.db*"))


def _task(number: int) -> dict[str, str]:
    return {"SLURM_JOB_ID": f"7{number}", "SLURM_ARRAY_TASK_ID": str(number)}


def _check_division(trials: list[FrozenTrial], wanted: int) -> None:
    """Two workers had a part in a study, and neither measured what it had measured before."""
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    assert sum(map(is_done, trials)) >= wanted
    measured: dict[int, list[str]] = {}
    for trial in trials:
        schemes = measured.setdefault(trial.user_attrs[WORKER]["pid"], [])
        if SAME_AS not in trial.user_attrs:
            schemes.append(trial.user_attrs["scheme"])
    assert len(measured) == 2
    assert all(schemes and len(set(schemes)) == len(schemes) for schemes in measured.values()), measured


def test_the_command_line_says_what_is_wrong_in_one_message(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = make_run(tmp_path / "empty", checkpoint=False)
    (tmp_path / "file").touch()
    out = ("--out", tmp_path / "out")
    cases = [
        ((), "to sweep a trained policy, or --config FILE", 2),
        (("--run", run, "--trials", 0), "trials = 0", 2),
        (("--run", run, *out, "--objectives", "speed"), "unknown objective 'speed'", 2),
        (("--run", run, *out, "--bits", "int8", "--prune", 0, "--rank", 1), "the space is empty", 2),
        (("--run", run, "--population", 4), "--population trains", 2),
        (("--config", tmp_path / "none.toml", "--generations", 4), "--generations are those", 2),
        (("--run", run, "--bits", "int9"), "--bits = 'int9'", 2),
        (("--run", run, "--prune", "half"), "--prune = 'half'", 2),
        (("--run", run, "--max-kl", -1), "--max-kl = -1.0", 2),
        (("--run", run, "--storage", "sqlite://"), "in memory", 1),
        (("--run", run, "--out", tmp_path / "file" / "out", "--trials", 1), "cannot write to", 1),
        (("--run", tmp_path / "none"), "no directory", 2),
        (("--run", empty), "holds no checkpoint", 1),
        (("--config", tmp_path / "none.toml"), "cannot read configuration", 2),
        (("--config", tmp_path / "none.toml", "--max-kl", 1), "--max-kl needs --run, --policy or --module", 2),
        (("--config", tmp_path / "none.toml", "--env", "CartPole-v1"), "--env needs --run, --policy or --module", 2),
        (("--run", run, "--policy", "a.zip"), "leave out --policy", 2),
        (("--module", "m:f"), "give --env", 2),
        (("--policy", "a.zip", "--env", "CartPole-v1", "--sample"), "--rule stochastic", 2),
    ]
    for arguments, message, status in cases:
        assert main(["sweep", *map(str, arguments)]) == status, arguments
        error = capsys.readouterr().err
        assert message in error and error.count("accel: ") == 1, arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
    with pytest.raises(CheckpointError):
        sweep_run(empty)
