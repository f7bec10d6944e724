"""Whole runs in one process: the same twice, stopped and resumed, refused with the reason, diverged without damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import accel
from accel.algorithms.base import Update
from accel.algorithms.state_tree import flatten
from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import (
    CheckpointError,
    ConfigError,
    DivergenceError,
    EnvError,
    MissingExtraError,
    RunDirectoryError,
    TransportError,
)
from accel.experience.stores.base import Sample
from accel.experience.stores.prioritised import PrioritisedReplay
from accel.learning.handshake import wait_for_actors
from accel.learning.loop import Loop
from accel.monitor.decisions import DecisionLog, read_decisions
from accel.runs.checkpoint import CheckpointState, load_checkpoint
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from accel.transport.local import LocalActor, LocalLearner
from tests.accel.learning import late_report
from tests.accel.learning.test_resume import RUNS, same
from tests.contracts.ranks import ROOT

SMALL: Mapping[str, object] = {
    "algorithm": "impala", "normalise_observations": False, "network": "mlp:16x1", "learner_threads": 1,
    "actors": 0, "envs_per_actor": 8, "unroll_length": 16, "compressor": "int8",
    "total_env_steps": 3000, "log_interval_s": 0.02, "calibration_size": 256,
}  # fmt: skip


def configure(path: Path, name: str = "run", **options: object) -> TrainConfig:
    return TrainConfig.create(**(SMALL | {"results_dir": path, "name": name} | options))


def checkpoint(run: Path) -> CheckpointState:
    return RunDirectory.open(run, read_only=True).load_checkpoint()


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def whole(state: CheckpointState) -> tuple[object, dict[str, torch.Tensor]]:
    tensors = dict(state.tensors)
    return flatten({"algorithm": state.algorithm, "counters": state.counters}, tensors, "state"), tensors


@pytest.mark.slow
@pytest.mark.few(4)
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_the_same_seed_gives_the_same_run_bit_for_bit(options: dict[str, object], tmp_path: Path) -> None:
    seeds_and_intervals = {"a": (3, 0.1, 60.0), "b": (3, 0.5, 0.15), "c": (4, 0.5, 60.0)}
    found = {}
    for name, (seed, log_s, checkpoint_s) in seeds_and_intervals.items():
        brief = {"total_env_steps": 800 if "learning_starts" in options else 1500}
        config = configure(
            tmp_path, name, seed=seed, log_interval_s=log_s, checkpoint_interval_s=checkpoint_s, **brief | options
        )
        torch.seed()  # Whatever torch's own generator was at before, as in a process of its own.
        accel.train(config)
        found[name] = checkpoint(tmp_path / name)
    assert same(whole(found["a"]), whole(found["b"]))
    assert not same((None, dict(found["a"].tensors)), (None, dict(found["c"].tensors)))
    policies = [(tmp_path / name / "policy/final.accel").read_bytes() for name in "abc"]
    assert policies[0] == policies[1] != policies[2]


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["dppo", "a2c", "impala"])
def test_a_policys_own_steps_have_importance_weights_of_one(algorithm: str, tmp_path: Path) -> None:
    """While the normaliser moves, from the second update on: the first takes in the first statistics before it."""
    config = configure(
        tmp_path, algorithm=algorithm, env="Pendulum-v1", compressor="fp32", normalise_observations=True,
        learning_rate=0.01, log_interval_s=1e-6,
    )  # fmt: skip
    accel.train(config)
    later = [record for record in records(tmp_path / "run") if record["updates"] > 1]
    assert len(later) > 5 and any(record["kl_from_batch"] or record["gradient_norm"] for record in later)
    for record in later:
        assert record["rho_mean"] == pytest.approx(1.0, abs=1e-5) and record["rho_clipped"] == 0.0, record
        assert abs(record["behaviour_kl"]) < 1e-5, record


COMPRESSED = [
    ("dqn", "prune(0.5)+int8"), ("apex", "qat"), ("r2d2", "int8"), ("sac", "prune(0.5)+int8"), ("sac", "qat"),
    ("d4pg", "prune(0.5)+int8"), ("d4pg", "qat"), ("td3", "qat"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.few(3)
@pytest.mark.parametrize(("algorithm", "scheme"), COMPRESSED)
def test_policies_of_every_action_rule_act_compressed(algorithm: str, scheme: str, tmp_path: Path) -> None:
    """Published, checked by the rule's own divergence, measured against the learner's, and evaluated at the end."""
    network = "mlp:16x1+lstm:8" if algorithm == "r2d2" else "mlp:64x2"
    env = "Pendulum-v1" if algorithm in {"sac", "d4pg", "td3"} else "CartPole-v1"
    options = {"env": env, "network": network, "compressor": scheme, "learning_starts": 300, "batch_size": 16,
               "samples_per_insert": 4.0, "total_env_steps": 1200, "unroll_length": 8,
               "calibration_size": 64}  # fmt: skip
    summary = accel.train(configure(tmp_path, algorithm=algorithm, **options))
    assert summary.scheme == scheme and summary.comparison is not None
    last = records(tmp_path / "run")[-1]
    assert last["scheme"] == scheme and last.get(f"publish_kl/{scheme}", 0.0) <= 0.5
    measured = [r for r in records(tmp_path / "run") if f"compression_kl/{scheme}" in r]
    assert all(0 <= r[f"compression_kl/{scheme}"] < 1 for r in measured)  # sampled as time allows
    policy = CompressedPolicy.from_bytes((tmp_path / "run/policy/final.accel").read_bytes())
    assert policy.scheme == scheme


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    directory = tmp_path_factory.mktemp("runs")
    return directory, accel.train(configure(directory))


@pytest.fixture
def run(finished: tuple[Path, Summary], tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished[0] / "run", tmp_path / "run"))


def test_a_finished_run_leaves_its_directory_complete(finished: tuple[Path, Summary]) -> None:
    directory, summary = finished
    config, run = configure(directory), directory / "run"
    assert Summary.read(run) == replace(summary, path=str(run))
    assert summary.learner_graphs == "off: the learner is on no CUDA device" or summary.device != "cpu"
    assert summary.env_steps >= 3000 and "total_env_steps = 3000" in summary.reason and summary.actors == 0
    assert summary.lag == {"lag_min": 0, "lag_mean": 0.0, "lag_max": 0}
    assert TrainConfig.create(**load_toml(run / "config.toml")) == config
    machine = json.loads((run / "machine.json").read_text())
    assert {"command", "versions"} <= machine.keys() or {"command", "packages"} <= machine.keys(), machine.keys()
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    for name, scheme in (("final", "int8"), ("fp32", "fp32")):
        policy = CompressedPolicy.from_bytes((run / f"policy/{name}.accel").read_bytes())
        assert (policy.scheme, policy.version) == (scheme, summary.updates)
    rows = records(run)
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(set(steps)) and steps[-1] == summary.env_steps
    for row in rows:
        assert sum(value for key, value in row.items() if key.startswith("learner_") and key.endswith("_share")) < 1.001
    assert summary.comparison is not None and summary.comparison.scheme == "int8"
    assert sum(summary.learner_s.values()) == pytest.approx(summary.training_s, rel=0.01)
    assert 0 < sum(summary.actor_s.values()) <= summary.learner_s["wait"] * 1.02


def test_the_last_record_counts_every_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without a new environment step too: five hundred updates for every unroll here."""
    options = {"algorithm": "dqn", "learning_starts": 128, "batch_size": 64, "samples_per_insert": 256.0}
    limits = {"total_env_steps": 10**6, "log_interval_s": 1e-6}
    monkeypatch.setattr(Loop, "finished", lambda loop: "enough" if loop.counters.updates >= 150 else None)
    summary = accel.train(configure(tmp_path, **options | limits))
    steps = [row["env_steps"] for row in records(tmp_path / "run")]
    assert len(steps) > len(set(steps)), "no record between two unrolls"
    assert records(tmp_path / "run")[-1]["updates"] == summary.updates >= 150


def test_a_resumed_run_goes_on_where_it_stopped(run: Path, tmp_path: Path) -> None:
    first = Summary.read(run)
    config = configure(tmp_path, total_env_steps=6000, learning_rate=0.125, actors=0)
    second = accel.train(config, resume=run)
    assert second.env_steps >= 6000 and second.updates > first.updates and second.episodes > first.episodes
    steps = [row["env_steps"] for row in records(run)]
    assert steps == sorted(set(steps)) and first.env_steps in steps
    later = [row for row in records(run) if row["env_steps"] > first.env_steps]
    assert later and all(row["learning_rate"] == 0.125 for row in later)
    assert later[0]["updates"] > first.updates and later[0]["episodes"] >= first.episodes
    assert TrainConfig.create(**load_toml(run / "config.toml")) == config
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "starts.jsonl"}
    with pytest.raises(ConfigError, match="nothing left to do"):
        accel.train(config, resume=run)
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_run_that_stops_before_its_first_update_goes_on(tmp_path: Path) -> None:
    options = {"algorithm": "dqn", "learning_starts": 600, "batch_size": 64, "samples_per_insert": 8.0}
    first = accel.train(configure(tmp_path, stop_at_env_steps=300, **options))
    assert first.env_steps >= 300 and first.updates == 0 and "no checkpoint" not in first.text()
    assert checkpoint(tmp_path / "run").env_steps == first.env_steps
    second = accel.train(configure(tmp_path, total_env_steps=1000, **options), resume=tmp_path / "run")
    assert second.env_steps >= 1000 and second.updates > 0


def test_a_run_trained_in_parts_keeps_to_one_schedule(tmp_path: Path) -> None:
    options = {"learning_rate": 0.5, "learning_rate_schedule": "linear", "total_env_steps": 4000}
    summary = accel.train(configure(tmp_path, stop_at_env_steps=2000, **options))
    assert summary.reason == "stop_at_env_steps = 2000 reached" and 2000 <= summary.env_steps < 3000
    config = configure(tmp_path, stop_at_env_steps=2000, **options)
    with pytest.raises(ConfigError, match="nothing left to do: stop_at_env_steps"):
        accel.train(config, resume=tmp_path / "run")
    assert "total_env_steps = 4000" in accel.train(configure(tmp_path, **options), resume=tmp_path / "run").reason
    rates = [(row["env_steps"] / 4000, row["learning_rate"]) for row in records(tmp_path / "run")]
    assert all(rate == pytest.approx(0.5 * (1 - done), abs=0.05) for done, rate in rates), rates
    assert min(done for done, _ in rates) < 0.4 and max(done for done, _ in rates) > 0.9


def test_records_and_decisions_after_the_last_checkpoint_are_cut_off(tmp_path: Path) -> None:
    """As after a kill: the newest checkpoint is older than the newest record and decision."""
    run, options = tmp_path / "run", {"compressor": "auto(fp32;int8)"}
    accel.train(configure(tmp_path, checkpoint_interval_s=1e-6, keep_checkpoints=50, **options))
    log = DecisionLog(run)
    log.go_on(0, "fp32")
    for env_steps, kind, before, after in ((500, "take", "fp32", "int8"), (2500, "leave", "int8", "fp32")):
        log.write(env_steps, kind, before, after, "")
    for path in (run / "checkpoints").iterdir():
        if load_checkpoint(path).env_steps >= 1800:
            path.unlink()
    left = checkpoint(run).env_steps
    assert 500 < left < 2500 < records(run)[-1]["env_steps"]
    accel.train(configure(tmp_path, **options), resume=run)
    steps = [row["env_steps"] for row in records(run)]
    assert steps == sorted(set(steps)) and steps[-1] >= 3000
    (taken, resumed, *others), damaged = read_decisions(run)
    assert [(d.kind, d.before, d.after) for d in (taken, resumed)] == [
        ("take", "fp32", "int8"), ("resume", "int8", "fp32")
    ]  # fmt: skip
    assert damaged == 0 and all(decision.before == "fp32" for decision in others)


def test_both_policies_of_a_run_are_of_the_same_weights(run: Path, tmp_path: Path) -> None:
    """Also where a resumed part ends before its scheme is calibrated again."""
    total = Summary.read(run).env_steps + 10
    accel.train(configure(tmp_path, total_env_steps=total, calibration_size=10**6), resume=run)
    final, fp32 = (
        CompressedPolicy.from_bytes((run / f"policy/{name}.accel").read_bytes()) for name in ("final", "fp32")
    )
    assert final.scheme == fp32.scheme == "fp32" and final.version == fp32.version
    assert final.model == fp32.model


def test_options_that_do_not_go_with_a_checkpoint_leave_the_run_as_it_was(run: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (run / "config.toml", run / "summary.json", run / "metrics.jsonl")}
    for options, message in (({"env": "Acrobot-v1"}, "other spaces"), ({"network": "mlp:17x1"}, "another network")):
        with pytest.raises(CheckpointError, match=message):
            accel.train(configure(tmp_path, **options), resume=run)
        assert {path: path.read_bytes() for path in before} == before
    newest = max((run / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        accel.train(configure(tmp_path), resume=run)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"env": "NoSuchEnv-v0"}, EnvError, "unknown environment 'NoSuchEnv-v0'"),
        ({"env": "tests.environments.troubled:Nameless-v0"}, EnvError, "Text"),
        ({"results_dir": Path("/proc/nowhere")}, RunDirectoryError, "another --results-dir"),
        ({"corrector": "retrace", "env": "Pendulum-v1"}, ConfigError, "vtrace"),
        ({"network": "nature-cnn"}, ConfigError, "images"),
    ],
)
def test_what_cannot_be_run_is_one_clear_error_and_leaves_nothing(
    options: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        accel.train(configure(tmp_path, **options))
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)  # An earlier test may have made such an environment.
    with pytest.raises(MissingExtraError, match=r"pip install .*\[box2d\]"):
        accel.train(configure(tmp_path, env="LunarLander-v3"))


TROUBLE = "tests.environments.troubled:"


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [("NanReward", {"normalise_rewards": True}), ("NanObservation", {"normalise_observations": True})],
)
def test_numbers_that_are_not_finite_cost_their_environment_and_end_a_run_that_keeps_giving_them(
    wrapper: str, options: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configure(
        tmp_path, wrapper=(TROUBLE + wrapper,), total_env_steps=10**6, checkpoint_interval_s=1e-6, **options
    )
    with pytest.raises(
        EnvError, match=r"actor 0: environment \d gave (a reward|an observation) that is not finite"
    ) as found:
        accel.train(config)
    assert "learning rate" not in str(found.value) and "after 100 others" in str(found.value)
    run = tmp_path / "run"
    state = checkpoint(run)
    assert 0 < state.env_steps < 10**6
    assert all(value.isfinite().all() for value in state.tensors.values() if value.is_floating_point())
    assert not (run / "summary.json").exists()
    for path in (run / "policy").glob("*"):
        CompressedPolicy.from_bytes(path.read_bytes())
    again = accel.train(configure(tmp_path, total_env_steps=state.env_steps + 500, **options), resume=run)
    assert again.env_steps >= state.env_steps + 500


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "impala", "network": "mlp:8x1+lstm:8"},
        {"algorithm": "impala", "network": "mlp:8x1+gru:8", "env_workers": 2},
        {"algorithm": "r2d2", "network": "mlp:8x1+transformer:8x1", "learning_starts": 200},
    ],
)
def test_an_observation_that_is_not_finite_does_not_stay_in_a_recurrent_state(
    options: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(
        tmp_path, wrapper=(f"{TROUBLE}OneNanObservation",), compressor="fp32", total_env_steps=2400, **options
    )
    summary = accel.train(config)
    assert summary.env_steps >= 2400
    # It is the last row of one unroll and the first of the next at most.
    assert 0 < capsys.readouterr().out.count("is not finite") <= 2 * config.acting.envs_per_actor


def test_a_resumed_run_forgives_as_many_numbers_as_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, wrapper=(f"{TROUBLE}NanReward",), total_env_steps=10**6)
    for resume in (None, tmp_path / "run"):
        with pytest.raises(EnvError, match="after 100 others"):
            accel.train(config, resume=resume)
        assert capsys.readouterr().out.count("is left out") == 7, "the first, and ever fewer of those that follow"


def test_a_run_that_diverges_keeps_its_batch_and_what_was_sound(tmp_path: Path) -> None:
    """Steps so large that the loss overflows: the batch is kept, and so is the last sound state."""
    config = configure(
        tmp_path, total_env_steps=10**6, checkpoint_interval_s=1e-6, compressor="fp32", learning_rate=1e30,
        max_gradient_norm=None, max_publish_kl=None,
    )  # fmt: skip
    with pytest.raises(DivergenceError, match=r"diverged\.safetensors.*learning_rate") as caught:
        accel.train(config)
    assert caught.value.exit_code == 1
    batch = load_file(tmp_path / "run" / "diverged.safetensors")
    assert {"observations", "valid", "actions", "behaviour_log_prob", "transformed_rewards"} <= set(batch)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_batch_that_is_reported_an_update_late_is_the_one_that_is_kept(tmp_path: Path) -> None:
    config = configure(
        tmp_path, algorithm="tests.accel.learning.late_report:factory", env="Pendulum-v1", reward_scale=0.1
    )
    with pytest.raises(DivergenceError, match=r"at update 1; the batch is saved in .*diverged\.safetensors"):
        accel.train(config)
    kept = load_file(tmp_path / "run" / "diverged.safetensors")["transformed_rewards"]
    first, second, third = late_report.REWARDS
    assert torch.equal(kept, second) and not (torch.equal(kept, first) or torch.equal(kept, third))


def test_unrolls_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    config = configure(tmp_path, publish_interval_updates=6, max_policy_lag=2, compressor="fp32")
    summary = accel.train(config)
    assert summary.env_steps >= 3000
    counters: Any = checkpoint(tmp_path / "run").counters["loop"]
    assert summary.dropped_unrolls == counters["dropped_unrolls"] > 0 < counters["dropped_env_steps"]
    assert records(tmp_path / "run")[-1]["dropped_unrolls"] == summary.dropped_unrolls
    assert summary.lag["lag_max"] == 3 and summary.lag["lag_min"] == 0
    assert summary.env_steps + counters["dropped_env_steps"] <= counters["unrolls"] * 8 * 16


@pytest.mark.parametrize("algorithm", ["ppo", "dppo"])
def test_unrolls_of_resets_alone_teach_nothing(algorithm: str, tmp_path: Path) -> None:
    """They are no batch, or, where an actor waits for the policy learned from it, an empty one."""
    options = {"unroll_length": 1, "envs_per_actor": 1, "algorithm": algorithm, "total_env_steps": 60}
    summary = accel.train(configure(tmp_path, **options, normalise_advantages=False))
    assert summary.env_steps == 60 and summary.episodes >= 1
    assert (summary.updates == 60) == (algorithm == "ppo")


@pytest.mark.parametrize("schedule", ["asynchronous", "synchronous"])
def test_a_withheld_policy_keeps_no_actor_waiting(schedule: str, tmp_path: Path) -> None:
    """An actor that waits gets the version without a policy, and acts on with the one that it has."""
    options = {"algorithm": "tests.contracts.broken_for_a_moment:factory", "compressor": "fp32", "schedule": schedule}
    summary = accel.train(configure(tmp_path, **options))
    assert summary.env_steps >= 3000 and summary.updates > 8
    assert summary.lag["lag_max"] == (schedule == "asynchronous")
    assert records(tmp_path / "run")[-1]["withheld/fp32"] > 0


def test_limits_end_a_run(tmp_path: Path) -> None:
    timed = accel.train(configure(tmp_path, "a", max_seconds=0.3, total_env_steps=10**9))
    assert "max_seconds" in timed.reason and timed.training_s >= 0.3 and timed.env_steps < 10**9
    assert f"accel train --resume {tmp_path / 'a'}" in timed.text()
    reached = accel.train(configure(tmp_path, "b", stop_at_return=5.0, stop_window=20, total_env_steps=10**6))
    assert "reached 5" in reached.reason and reached.return_mean is not None and reached.return_mean >= 5
    assert 20 <= reached.episodes < 200


def test_a_learner_that_gives_up_lets_the_import_of_torch_end(tmp_path: Path) -> None:
    """Torch, cut off in its import by the end of the process, prints tracebacks below the error of the run."""
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); print('imported', flush=True)")
    program = (
        "import sys\nfrom accel.learning.run import begin_import\nbegin_import('slow')\nsys.exit('the actors failed')"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "imported\n", "the actors failed\n")


def test_actors_that_disagree_or_stay_silent_are_named() -> None:
    learner = LocalLearner(2)
    first, second = (LocalActor(learner, index) for index in range(2))
    spec = EnvSpec((3,), "float32", ActionSpec("categorical", (2,))).to_json()
    answer = {"spec": spec, "cpu_features": [], "host": "here"}
    first.hello(answer)
    with pytest.raises(TransportError, match=r"actors 1 did not answer within 0\.05 s: look at their nodes"):
        wait_for_actors(learner, 0.05, lambda: None)
    first.hello(answer)
    second.report({"down": "its process left through exit(0)", "failures": 4, "again_in_s": 0.8})
    with pytest.raises(TransportError, match=r"within 0\.05 s; actor 1 failed 4 times: its process left through exit"):
        wait_for_actors(learner, 0.05, lambda: None)
    first.hello(answer)
    second.hello(answer | {"spec": spec | {"observation_shape": [4]}, "host": "there"})
    with pytest.raises(TransportError, match=r"actor 1 on there has another environment .*shape=\(4,\).*shape=\(3,\)"):
        wait_for_actors(learner, 5, lambda: None)
    second.hello({"error": "no such thing", "kind": "MissingExtraError"})
    with pytest.raises(MissingExtraError, match="actor 1: no such thing"):
        wait_for_actors(learner, 5, lambda: None)


@pytest.mark.parametrize("options", [{"algorithm": "dppo", "passes": 2, "minibatches": 2}, {"algorithm": "impala"}])
def test_actors_are_looked_after_in_the_middle_of_an_update(
    options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One may take longer than an actor may be silent, and most of a run's time."""
    run, unread = Loop.run, []

    def watched(loop: Loop) -> str:
        transport, learn = loop.transport, loop.algorithm.update

        def update(*arguments: Any) -> Update:
            transport.inbox.append((0, {"warning": "the simulator is warm"}))
            done = learn(*arguments)
            unread.append(len(transport.inbox))
            return done

        monkeypatch.setattr(loop.algorithm, "update", update)
        return run(loop)

    monkeypatch.setattr(Loop, "run", watched)
    monkeypatch.setattr("accel.learning.loop.LOOK_S", 0.0)
    accel.train(configure(tmp_path, **options, total_env_steps=500))
    assert unread and not any(unread)
    assert capsys.readouterr().out.count("actor 0: the simulator is warm") == len(unread)


def test_priorities_of_every_update_reach_the_store_with_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Sample | None] = []
    ended: list[tuple[Sample, torch.Tensor | None]] = []
    sample, feedback = PrioritisedReplay.sample, PrioritisedReplay.feedback

    def take(store: PrioritisedReplay) -> Sample | None:
        taken.append(sample(store))
        return taken[-1]

    def end(store: PrioritisedReplay, given: Sample, priorities: torch.Tensor | None) -> None:
        ended.append((given, priorities))
        feedback(store, given, priorities)

    monkeypatch.setattr(PrioritisedReplay, "sample", take)
    monkeypatch.setattr(PrioritisedReplay, "feedback", end)
    replay = {"learning_starts": 200, "batch_size": 32, "samples_per_insert": 2}
    summary = accel.train(configure(tmp_path, algorithm="apex", compressor="fp32", total_env_steps=600, **replay))
    assert len(ended) == summary.updates > 10
    assert all(given is found for (given, _), found in zip(ended, taken, strict=True))
    assert all(priorities is not None and priorities.shape == (32,) for _, priorities in ended)
