"""Sweeps of whole training runs: real runs on CartPole, pruned, failed, killed and gone on with, under mpirun too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from accel.config import TrainConfig
from accel.errors import ConfigError, SweepError
from accel.supervision.processes import is_running
from accel.sweep.driver import sweep_training
from accel.sweep.search import SearchOptions
from accel.sweep.storage import default_url
from accel.sweep.sweep_file import load_sweep_file
from accel.sweep.training_run import TrainingRun, measured_values
from accel.transport.launcher import mpirun_command
from tests.accel.reports.recorded_run import write_run
from tests.accel.sweep.sweeping import trials_of, worker
from tests.contracts.ranks import need_mpirun
from tests.environments.held import GATE

_TRAIN = """
[train]
env = "CartPole-v1"
algorithm = "impala"
compressor = "int8"
network = "mlp:16x1"
actors = 0
envs_per_actor = 4
total_env_steps = {steps}
calibration_size = 32
stop_window = 5
log_interval_s = 0.05
checkpoint_interval_s = 0.2
"""
_SPACE = """
[space.learning_rate]
type = "float"
low = 1e-4
high = 1e-2
log = true
"""


def write(path: Path, *parts: str, steps: int = 600) -> Path:
    path.write_text("".join(parts).replace("{steps}", str(steps)))
    return path


@pytest.mark.slow
def test_whole_runs_are_swept_over_any_field_with_constraints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compressor = '[space.compressor]\ntype = "categorical"\nchoices = ["int8", "fp32"]\n'
    search = '[sweep]\ntrials = 2\nobjectives = ["actor_s", "bytes"]\nconstraints = ["return>=1"]\nseed = 3\n'
    file = write(tmp_path / "sweep.toml", _TRAIN, _SPACE, compressor, search)
    with caplog.at_level("INFO", "accel"):
        result = sweep_training(file, SearchOptions(out=tmp_path / "out"))
    lines = [record.message for record in caplog.records if record.message.startswith("trial 0")]
    assert lines[0].startswith("trial 0 starts: learning_rate=0.001, compressor=int8; follow it with accel watch ")
    assert result.trials == 2
    document = json.loads((tmp_path / "out" / "pareto.json").read_text())
    runs = tmp_path / "out" / "runs"
    names = sorted(path.name for path in runs.iterdir() if path.is_dir())
    assert names == ["trial-0000", "trial-0001"]
    assert document["trials"][0]["parameters"] == {"learning_rate": 1e-3, "compressor": "int8"}, "the base comes first"
    for trial in document["trials"]:
        summary = json.loads((runs / trial["run"] / "summary.json").read_text())
        assert trial["values"]["return"] == pytest.approx(summary["return_mean"])
        assert trial["values"]["bytes"] == (runs / trial["run"] / "policy" / "final.accel").stat().st_size
        assert trial["values"]["actor_s"] > 0
    table = (tmp_path / "out" / "pareto.md").read_text()
    assert (
        "One run per trial, one seed (0); return: mean of the last 5 training episodes; runs stop at 600 env" in table
    )
    assert "algorithm impala, compressor int8; searched: learning_rate, compressor." in table
    assert result.exports == () and "accel export" not in table
    for row, path in zip(result.front, result.configurations, strict=True):
        config = TrainConfig.create(**tomllib.loads(path.read_text()))
        options = config.options()
        assert {name: options[name] for name in row.parameters} == row.parameters
        assert (config.policy.network, config.run.name) == ("mlp:16x1", None)


@pytest.mark.long
@pytest.mark.parametrize("actors", [0, pytest.param(1, marks=[pytest.mark.mpi, pytest.mark.long])])
def test_a_killed_sweep_goes_on_with_the_run_that_it_had_begun(
    actors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    monkeypatch.setenv(GATE, str(gate))
    train = _TRAIN.replace("checkpoint_interval_s = 0.2", "checkpoint_interval_s = 1e-6")
    train = train.replace("actors = 0", f"actors = {actors}")
    held = 'wrapper = ["tests.environments.held:Held"]\n'
    file = write(tmp_path / "sweep.toml", train, held, _SPACE, "[sweep]\ntrials = 1\n", steps=1600)
    checkpoints = out / "runs" / "trial-0000" / "checkpoints"
    with worker("--config", file, "--out", out) as killed:
        while not any(checkpoints.glob("*.safetensors")):
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.02)
        child = _child_of(killed.pid)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    (left,) = trials_of(default_url(out), "out")
    assert left.state.name == "RUNNING"
    gate.touch()
    while is_running(child):  # the run ends with its sweep, and in good order
        time.sleep(0.02)
    run = out / "runs" / "trial-0000"
    assert json.loads((run / "summary.json").read_text())["reason"] == "stopped on request"
    result = sweep_training(file, SearchOptions(out=out))
    trials = trials_of(default_url(out), "out")
    assert result.trials == 1
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE"]
    assert trials[1].params == left.params
    assert trials[1].user_attrs["run"] == "trial-0000"
    assert len((run / "starts.jsonl").read_text().splitlines()) == 2
    summary = json.loads((run / "summary.json").read_text())
    assert "reached" in summary["reason"]
    assert trials[1].user_attrs["measured"]["training_s"] > summary["training_s"], "both parts count"


@pytest.mark.parametrize(
    ("starts", "records", "training_s"),
    [
        ((1000.0, 1002.0), ((1001.0, 0.5), (1010.0, 5.0), (1011.0, 6.0)), 6.5),
        ((1000.0, 1002.0), ((1001.0, 0.5), (1010.0, 0.1)), 0.6),
        ((1000.0, 1002.0, 1003.0), ((1001.0, 0.5), (1010.0, 5.0)), 5.5),
        ((1000.0,), ((1001.0, 0.5), (1030.0, 0.6)), 0.6),
        ((1000.0, 990.0), ((1001.0, 0.5), (995.0, 0.3)), 0.8),
    ],
    ids=["a long time to its first record", "a short one", "a try without any", "written late", "a clock behind"],
)
def test_the_parts_of_a_run_add_up(
    starts: tuple[float, ...], records: tuple[tuple[float, float], ...], training_s: float, tmp_path: Path
) -> None:
    path = write_run(tmp_path, "run", records=1)
    (path / "starts.jsonl").write_text("".join(json.dumps({"unix_time_s": start}) + "\n" for start in starts))
    lines = [
        {"env_steps": 1000 * n, "wall_time_s": wall_s, "elapsed_s": elapsed_s, "return_mean": 3.0}
        for n, (wall_s, elapsed_s) in enumerate(records, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((path / "summary.json").read_text())
    own = {"training_s": records[-1][1], "env_steps_per_s": 1000 / records[-1][1], "actor_s": {"env": 0.1}}
    (path / "summary.json").write_text(json.dumps(summary | own | {"env_steps": 1000 * len(records)}))
    measured = measured_values(path)
    assert measured["training_s"] == pytest.approx(training_s)
    assert measured["env_steps_per_s"] == pytest.approx(1000 * len(records) / training_s)
    assert measured["actor_s"] == pytest.approx(1e5 / 1000), "of the last part"


@pytest.mark.long
def test_an_interrupted_worker_queues_its_trial_again(tmp_path: Path) -> None:
    file = write(tmp_path / "sweep.toml", _TRAIN, _SPACE, "[sweep]\ntrials = 2\n", steps=10_000_000)
    out = tmp_path / "out"
    metrics = out / "runs" / "trial-0000" / "metrics.jsonl"
    with worker("--config", file, "--out", out) as stopped:
        while not (metrics.exists() and metrics.stat().st_size):
            assert stopped.poll() is None, stopped.communicate()
            time.sleep(0.05)
        stopped.send_signal(signal.SIGTERM)
        stopped.communicate()
    assert stopped.returncode == 130
    states = [trial.state.name for trial in trials_of(default_url(out), "out")]
    assert states == ["FAIL", "WAITING"]
    summary = json.loads((out / "runs" / "trial-0000" / "summary.json").read_text())
    assert summary["reason"] == "stopped on request"


@pytest.mark.slow
def test_a_run_of_another_configuration_is_not_gone_on_with(tmp_path: Path) -> None:
    config = load_sweep_file(write(tmp_path / "sweep.toml", _TRAIN, _SPACE)).base
    run = TrainingRun(config, tmp_path, "trial-0000")
    assert run.train().env_steps >= 600
    assert TrainingRun(config, tmp_path, "trial-0000").train().reason == "total_env_steps = 600 reached"
    for change in ({"learning_rate": 0.5}, {"max_seconds": 5.0}):
        other = TrainingRun(config.replace(**change), tmp_path, "trial-0000")
        with pytest.raises(SweepError, match=f"of another study, which differs in {next(iter(change))}: give another"):
            other.train()


@pytest.mark.long
def test_torch_actors_have_no_bytes(tmp_path: Path) -> None:
    search = '[sweep]\ntrials = 3\nobjectives = ["return"]\nconstraints = ["bytes<=1e9"]\n'
    train = _TRAIN.replace("int8", "fp32")
    with pytest.raises(ConfigError, match=r"actor_runtime = 'torch', which publishes no ONNX policy: leave bytes out"):
        file = write(tmp_path / "alone.toml", train, 'actor_runtime = "torch"\n', _SPACE, search)
        sweep_training(file, SearchOptions(out=tmp_path / "alone"))
    runtimes = '[space.actor_runtime]\ntype = "categorical"\nchoices = ["torch"]\n'
    file = write(tmp_path / "space.toml", train, _SPACE, runtimes, search)
    with pytest.raises(SweepError, match=r"all of the first 3 trials failed.*has no bytes, as its actors ran torch"):
        sweep_training(file, SearchOptions(out=tmp_path / "space"))


def test_failing_runs_are_recorded_and_end_a_sweep_in_which_nothing_works(tmp_path: Path) -> None:
    broken = '[space.clip_c]\ntype = "float"\nlow = 1.5\nhigh = 3.0\n'
    file = write(tmp_path / "sweep.toml", _TRAIN, broken, "[sweep]\ntrials = 9\n")
    with pytest.raises(SweepError, match=r"all of the first 3 trials failed.*must not exceed clip_rho"):
        sweep_training(file, SearchOptions(out=tmp_path / "out"))
    trials = trials_of(default_url(tmp_path / "out"), "out")
    assert [trial.state.name for trial in trials] == ["FAIL"] * 3
    assert all("clip_rho" in trial.user_attrs["error"] for trial in trials)


@pytest.mark.slow
def test_a_time_to_a_threshold_that_is_not_reached_is_infeasible(tmp_path: Path) -> None:
    search = '[sweep]\ntrials = 1\nobjectives = ["training_s"]\n'
    file = write(tmp_path / "sweep.toml", _TRAIN, "stop_at_return = 450.0\n", _SPACE, search)
    with pytest.raises(SweepError, match="none of 1 trials"):
        sweep_training(file, SearchOptions(out=tmp_path / "out"))
    (trial,) = trials_of(default_url(tmp_path / "out"), "out")
    assert trial.constraints["stop_at_return"] > 0


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ('objectives = ["training_s"]', "set stop_at_return in"),
        ('constraints = ["return>=0.9*fp32"]', "not compared with fp32: give a number"),
        ("trails = 3", "unknown key 'trails' .did you mean 'trials'"),
        ("trials = 0", "trials = 0"),
        ('objectives = ["latency"]', "unknown objective 'latency'"),
    ],
)
def test_a_search_that_cannot_work_is_refused_at_once(tmp_path: Path, search: str, message: str) -> None:
    file = write(tmp_path / "sweep.toml", _TRAIN, _SPACE, f"[sweep]\n{search}\n")
    with pytest.raises(ConfigError, match=message):
        sweep_training(file, SearchOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.mpi
@pytest.mark.long
def test_ranks_of_mpirun_are_workers_of_one_study(tmp_path: Path) -> None:
    need_mpirun()
    file = write(tmp_path / "sweep.toml", _TRAIN, _SPACE, "[sweep]\ntrials = 2\n", steps=600)
    out = tmp_path / "out"
    program = [sys.executable, "-m", "tests.accel.sweep.sweep_worker", "meeting"]
    command = [*mpirun_command(2), *program, "--config", str(file), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    trials = trials_of(default_url(out), "out")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    assert len({trial.user_attrs["worker"]["pid"] for trial in trials}) == 2
    assert len({trial.params["learning_rate"] for trial in trials}) == 2


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])
