"""The page that lays published figures beside kept ones: from samples alone, whichever are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from accel.reports.runs import Run
from accel.reports.samples import run_to_json
from accel.reports.series import Series

PROJECT = Path(__file__).parents[1]
ACTOR = {"env": "E-v1", "network": "mlp:8x2", "cpu": "CPU", "cores": 2, "env_only_us": 10.0}


def make_run(variant: str, seed: int, training_s: float, policy_s: float, **options: object) -> Run:
    """Ten thousand steps in three records; the environment takes a second, taking over policies half of one."""
    columns = {"elapsed_s": training_s * np.array([0.25, 0.5, 1.0]), "env_steps": np.array([2500.0, 5000.0, 10_000.0])}
    columns |= {"return_mean": np.array([1.0, 5.0, 9.0]), "episodes": np.array([200.0, 300.0, 400.0])}
    summary = {
        "reason": "done",
        "training_s": training_s,
        "env_steps_per_s": 10_000 / training_s,
        "env_steps": 10_000,
        "updates": 20,
        "device": "cpu",
        "actor_s": {"env": 1.0, "policy": policy_s, "load": 0.5, "wait": 0.01},
        "learner_s": {"wait": 0.8 * training_s, "backward": 0.2 * training_s},
    }
    acting = {
        "torch": ("fp32", "torch"),
        "fp32": ("fp32", "onnxruntime"),
        "int8": ("int8", "onnxruntime"),
        "other": ("int8", "onnxruntime"),
        "prune": ("prune(0.5)+int8", "onnxruntime"),
        "auto": ("auto", "onnxruntime"),
    }[variant]
    config = {"env": "E-v1", "network": "mlp:8x2", "seed": seed, "compressor": acting[0], "actor_runtime": acting[1]}
    config |= {"corrector": "vtrace"}
    machine = {"cpu": "CPU", "cores": 2, "gpus": [], "commit": "abc", "versions": {}}
    return Run(f"{variant}-s{seed}", "/r", config | options, machine, summary, Series(columns, 3))


def keep(results: Path, case: str, *runs: Run) -> None:
    samples = {run.name: {**run_to_json(run), "variant": run.name.partition("-")[0]} for run in runs}
    (results / case).mkdir()
    (results / case / "runs.json").write_text(json.dumps({"case": case, "runs": samples}))


def page(results: Path) -> str:
    script = str(PROJECT / "scripts/evidence/published.py")
    done = subprocess.run([sys.executable, script, "--results-dir", str(results)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (results / "published" / "README.md").read_text()


def table_rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_figures_are_those_of_the_samples(tmp_path: Path) -> None:
    torch = [make_run("torch", seed, 10.0 + 0.01 * seed, 7.5) for seed in range(5)]
    int8 = [make_run("int8", seed, 6.25 + 0.01 * seed, 3.5) for seed in range(5)]
    others = [make_run("other", 0, 1.0, 1.0, corrector="none"), make_run("fp32", 0, 9.0, 5.0)]
    keep(tmp_path, "case", *torch, *int8, *others)
    rows = tmp_path / "actor_time" / "rows"
    rows.mkdir(parents=True)
    times = {
        ("torch", "fp32"): 100.0,
        ("onnxruntime", "fp32"): 50.0,
        ("onnxruntime", "int8"): 20.0,
        ("onnxruntime", "distill(2x1)+int8"): 10.0,
        ("native", "fp32"): 40.0,
    }
    measured = [
        {**ACTOR, "runtime": runtime, "scheme": scheme, "envs": 1, "us_per_env_step": us, "policy_us": 0.75 * us}
        for (runtime, scheme), us in times.items()
    ]
    (rows / "actor-e.json").write_text(json.dumps(measured))

    text = page(tmp_path)
    (actor,) = table_rows(text, "Actor time")
    assert actor[:7] == ["E-v1", "mlp:8x2", "1", "2.00×", "2.50×", "5.00×", "–"]
    assert actor[7:] == ["5.00× int8", "10.00×", "policy, 75%", "above"]
    step = {row[1]: row for row in table_rows(text, "Step and pull")}
    assert step["int8"][2:] == [
        *("500", "850 → 450", "50 → 50", "1.80×", "within", "actors (policy) → actors (policy)"),
    ]
    training = {row[1]: row for row in table_rows(text, "Whole training")}
    assert training["int8"][2:5] == ["torch eager", "5 / 5", "equal steps"]
    assert training["int8"][5].startswith("1.6×")
    assert training["int8"][6:9] == ["37.4%", "within", "within"]
    assert training["fp32"][6:9] == ["not shown"] * 3, "one seed is too few"
    assert "other" not in training, "another correction is another question"
    missing = [row[0] for row in table_rows(text, "Not measured")]
    assert "Exported policies" in missing
    assert any("2048×3 end to end with a learner on a GPU" in what for what in missing)
    assert any(what.startswith("halfcheetah-512x3:") for what in missing)
    for citation in ("arXiv:2211.15023", "arXiv:1910.01055"):
        assert citation in text


def test_samples_that_are_of_no_table_of_trainings_are_left_alone(tmp_path: Path) -> None:
    keep(tmp_path, "e", make_run("torch", 0, 10.0, 5.0), make_run("int8", 0, 5.0, 1.0))
    before = page(tmp_path)
    (tmp_path / "actorq").mkdir()
    (tmp_path / "actorq" / "runs.json").write_text(json.dumps({"runs": {"int8, 30, 0": {"us": {"policy": 1.0}}}}))
    assert page(tmp_path) == before


def test_what_was_measured_since_is_no_longer_missing(tmp_path: Path) -> None:
    options = {"network": "mlp:2048x3", "env": "ALE/Pong-v5", "stop_at_return": 9.0, "publish_interval_updates": 3}
    training_s = {"torch": 9.0, "fp32": 7.0, "int8": 6.0, "prune": 7.0, "auto": 6.5}
    runs = [make_run(variant, seed, s, 1.0, **options) for variant, s in training_s.items() for seed in range(3)]
    on_gpu = [Run(r.name, r.path, r.config, r.machine, {**(r.summary or {}), "device": "cuda"}, r.series) for r in runs]
    keep(tmp_path, "gpu-halfcheetah-2048x3", *on_gpu)
    text = page(tmp_path)
    missing = [row[0] for row in table_rows(text, "Not measured")]
    gone = ("ActorQ's 2048×3 end to end", "Pong to a given return", "a 512×3 or larger", "gpu-halfcheetah-2048x3:")
    assert not [what for what in missing if what.startswith(gone)]
    assert any(what.startswith("gpu-halfcheetah-512x3:") for what in missing)
    (row,) = (row for row in table_rows(text, "Whole training") if row[1] == "int8")
    assert row[4] == "to 9" and row[5].startswith("1.5×")
    assert {row[2] for row in table_rows(text, "Step and pull")} == {"1,500"}, "published after every third update"


def test_pong_is_measured_once_every_compression_reached_its_return(tmp_path: Path) -> None:
    def why() -> str | None:
        reasons = dict(row[:2] for row in table_rows(page(tmp_path), "Not measured"))
        return reasons.get("Pong to a given return with every compression")

    pong: dict[str, object] = {"env": "ALE/Pong-v5"}
    keep(tmp_path, "steps", *(make_run(v, 0, 9.0, 1.0, **pong) for v in ("torch", "fp32", "int8", "prune", "auto")))
    assert why() == "only trainings of equal steps are kept"
    pong |= {"stop_at_return": 9.0}
    keep(tmp_path, "some", *(make_run(v, 0, 9.0, 1.0, **pong) for v in ("torch", "int8")))
    assert why() == "no run is kept with fp32, prune, auto"
    keep(tmp_path, "others", *(make_run(v, 0, 9.0, 1.0, **pong) for v in ("fp32", "prune", "auto")))
    assert why() == "no run is kept with torch, int8", "two cases are no comparison"
    keep(tmp_path, "all", *(make_run(v, 0, 9.0, 1.0, **pong) for v in ("torch", "fp32", "int8", "prune", "auto")))
    assert why() is None


def test_exported_policies_are_read_wherever_their_reports_are_kept(tmp_path: Path) -> None:
    contract = {"environment": {"id": "E-v1"}, "source": {"network": "mlp:8x2"}}
    report = {"bytes": {"ratio": 3.97}, "latency": {"speed_up_p50": 1.5}, "returns": None}
    played = {"difference": {"estimate": -5.0, "low": -9.5, "high": -0.5}, "fp32": {"mean": 100.0}}
    rows = tmp_path / "export-table" / "rows"
    rows.mkdir(parents=True)
    for scheme, format, returns in (("int8", "onnx", played), ("int8", "c", None), ("int4", "c", None)):
        kept = {"contract": {**contract, "scheme": scheme, "target": {"format": format}}}
        (rows / f"{scheme}-{format}.json").write_text(json.dumps({**kept, "report": {**report, "returns": returns}}))
    (rows / "refused.json").write_text(json.dumps({"refused": "too large"}))
    found = [row[2:] for row in table_rows(page(tmp_path), "Exported policies")]
    assert found == [
        ["int8", "c", "3.97×", "within", "1.50×", "not played"],
        ["int8", "onnx", "3.97×", "within", "1.50×", "-5 \\[-9.5, -0.5\\] of 100"],
    ]


def test_nothing_kept_is_no_error_and_damage_is_one(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "## Actor time" not in text and "## Whole training" not in text
    assert {"Actor time", "Step and pull", "Whole training"} <= {row[0] for row in table_rows(text, "Not measured")}
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "runs.json").write_text("{")
    script = str(PROJECT / "scripts/evidence/published.py")
    done = subprocess.run([sys.executable, script, "--results-dir", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "runs.json holds no samples" in done.stderr and "Traceback" not in done.stderr
