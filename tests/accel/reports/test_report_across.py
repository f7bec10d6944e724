"""Scores of several environments: rliable's definitions, and a comparison over all of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import accel
from accel.cli import main
from accel.errors import ReportError
from accel.reports.aggregates import interquartile_mean, performance_profile, stratified_bootstrap
from accel.reports.analysis import Choices
from tests.accel.reports.recorded_run import write_run


def test_the_interquartile_mean_cuts_a_quarter_of_all_runs_at_either_end() -> None:
    assert interquartile_mean([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 1000.0]]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([[-50.0, 1.0, 3.0]]) == pytest.approx(-46 / 3)  # a quarter of three is none


def test_a_stratified_bootstrap_draws_within_environments() -> None:
    """Two environments of equal runs each: nothing varies, however far apart they lie."""
    fixed = stratified_bootstrap([[0.0] * 5, [1.0] * 5])
    assert (fixed.low, fixed.estimate, fixed.high) == (0.5, 0.5, 0.5)
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        tasks = [rng.normal(1.0, 0.3, 10) for _ in range(4)]
        found = stratified_bootstrap(tasks, repeats=100)
        covered += found.low <= 1.0 <= found.high
    assert 0.88 * 200 <= covered <= 0.99 * 200


def test_a_profile_is_the_share_above_and_weighs_environments_equally() -> None:
    shares = performance_profile([[0.0, 1.0], [1.0, 1.0, 1.0, 3.0]], [-1.0, 0.5, 1.0, 2.0, 3.0])
    assert shares.tolist() == [1.0, 0.75, 0.125, 0.125, 0.0]


@pytest.mark.long
def test_configurations_are_compared_over_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for env, level in (("CartPole-v1", 500.0), ("ALE/Pong-v5", 100.0)):
        for seed in range(5):
            name = f"{level:g}-{seed}"
            write_run(tmp_path / "fp32", name, env=env, seed=seed, compressor="fp32", level=level)
            write_run(tmp_path / "int8", name, env=env, seed=seed, level=0.9 * level if env == "ALE/Pong-v5" else level)
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path / "fp32"), str(tmp_path / "int8"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("int8: 0.9") and "of the gain of fp32 over 2 environments" in said
    value = json.loads((out / "report.json").read_text())
    assert np.shape(value["scores"]["int8"]) == (2, 5)
    assert np.mean(value["scores"]["fp32"], axis=1) == pytest.approx([1.0, 1.0])
    assert np.mean(value["scores"]["int8"][0]) == pytest.approx(0.87, abs=0.05)
    assert value["interquartile_mean"]["fp32"]["low"] <= 1.0 <= value["interquartile_mean"]["fp32"]["high"]
    for directory in value["environments"].values():
        assert json.loads((out / directory / "report.json").read_text())["baseline"] == "fp32"
    page = (out / "index.html").read_text()
    assert "Performance profile" in page and "ALE-Pong-v5/index.html" in page

    write_run(tmp_path / "int8", "alone", env="Acrobot-v1")
    with pytest.raises(ReportError, match="Acrobot-v1: the baseline has no run there"):
        accel.compare(tmp_path / "fp32", [tmp_path / "int8"], out=tmp_path / "more")
    write_run(tmp_path / "fp32", "alone", env="Acrobot-v1", compressor="fp32", level=0.0)
    with pytest.raises(ReportError, match="Acrobot-v1: the baseline, fp32, gained"):
        accel.compare(tmp_path / "fp32", [tmp_path / "int8"], out=tmp_path / "more")


def test_a_configuration_without_an_episode_is_named(tmp_path: Path) -> None:
    for env in ("CartPole-v1", "Acrobot-v1"):
        write_run(tmp_path / "fp32", env, env=env, compressor="fp32")
        write_run(tmp_path / "int8", env, env=env)
        metrics = tmp_path / "int8" / env / "metrics.jsonl"
        records = [json.loads(line) | {"return_mean": None} for line in metrics.read_text().splitlines()]
        metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ReportError, match="Acrobot-v1: no run of int8 has finished an episode: leave it out"):
        accel.compare(tmp_path / "fp32", [tmp_path / "int8"], out=tmp_path / "out")


def test_an_environment_without_a_configuration_is_named(tmp_path: Path) -> None:
    for env in ("CartPole-v1", "Acrobot-v1"):
        write_run(tmp_path / "fp32", env, env=env, compressor="fp32")
        write_run(tmp_path / "int8", env, env=env)
    write_run(tmp_path / "int8", "fp16", env="CartPole-v1", compressor="fp16")
    by_scheme = Choices(group_by=("compressor",))
    with pytest.raises(
        ReportError, match=r"other configurations \(Acrobot-v1: fp32, int8; CartPole-v1: fp32, int8, fp16"
    ):
        accel.compare(tmp_path / "fp32", [tmp_path / "int8"], out=tmp_path / "out", choices=by_scheme)
