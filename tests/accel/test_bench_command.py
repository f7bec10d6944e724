"""``accel bench``: tables, plots, JSON files, closing lines; bad input ends before anything is measured."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from accel.bench.advice import advise_actor, advise_bits, advise_policy, advise_refresh
from accel.bench.commands import PolicyOptions, integers, texts
from accel.bench.rows import Row
from accel.bench.tables import TABLES, Column, fitting, table_text
from accel.cli import main
from accel.cli.bench import encode, interference
from accel.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n"
QUICK = "--seconds 0.05 --repeats 3"
COMMANDS = {
    "policy": f"{QUICK} --network mlp:16x1 --batch 1,2 --schemes int8 --runtimes torch,onnxruntime",
    "actor": f"{QUICK} --network mlp:16x1 --envs-per-actor 2 --schemes int8",
    "refresh": f"{QUICK} --network mlp:16x1 --schemes int8 --observation-shape 5 --actions 3,2",
    "bits": "--env CartPole-v1 --network mlp:16x1 --bits 3,8 --episodes 2",
    "learner": f"{QUICK} --network mlp:16x1,mlp:8x1 --envs 4 --passes 2 --device cpu",
}
KEYS = {
    "policy": {"network", "batch", "runtime", "scheme", "us", "bytes"},
    "actor": {"env", "network", "runtime", "scheme", "envs", "us_per_env_step", "env_us", "policy_us", "overhead_us"},
    "refresh": {"network", "scheme", "bind_ms", "requantise_ms", "serialise_ms", "load_ms", "schedule_ms"},
    "bits": {"network", "bits", "rounded", "simulated", "kl", "greedy_agreement", "bytes", "return", "return_low"},
    "learner": {"network", "precision", "T", "B", "passes", "us_per_env_step", "forward_us", "backward_us"},
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_each_benchmark_prints_a_table_writes_rows_and_draws(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_path, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    arguments = ["bench", kind, *COMMANDS[kind].split(), "--json", str(rows_path), "--plot", str(plot)]
    assert main(arguments) == 0
    rows = json.loads(rows_path.read_text())
    assert rows and all(KEYS[kind] <= row.keys() for row in rows)
    assert all(row["command"].startswith(f"accel bench {kind} ") and "commit" in row for row in rows)
    assert plot.read_bytes().startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.png", "rows.json"]
    printed = capsys.readouterr().out.splitlines()
    title, headings = printed[:2]
    assert (title and "µs" in headings) or "ms" in headings or kind == "bits"
    closing = " ".join(printed[2 + len(rows) :])
    assert "onnxruntime" in closing and " cores" in closing, "machine and versions"
    assert len(printed) >= len(rows) + 4, "a closing line"
    if kind == "refresh":
        assert {"per M", "schedule", "upkeep"} <= set(re.split("  +", headings))
    assert max(map(len, printed)) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy", "--json", "{dir}/missing/rows.json"], "no directory"),
        (["policy", "--json", "{dir}"], "is a directory"),
        (["bits", "--plot", "{dir}/missing/plot.png"], "no directory"),
        (["policy", "--network", "mpl:64x2"], "unknown torso"),
        (["policy", "--network", ""], "no network"),
        (["policy", "--batch", "0"], "batch 0"),
        (["policy", "--batch", "eight"], "whole numbers"),
        (["policy", "--batch", ""], "no batch"),
        (["policy", "--schemes", "int9"], "unknown method 'int9'"),
        (["policy", "--observation-shape", "4"], "together"),
        (["policy", "--observation-shape", "4", "--actions", "2", "--env", "CartPole-v1"], "no two of them"),
        (["policy", "--observation-shape", "4", "--actions", "0"], "positive"),
        (["policy", "--run", "{dir}", "--network", "mlp:8x1"], "its own network"),
        (["policy", "--env-arg", "a=1"], "--env-arg: these need an environment"),
        (["refresh", "--normalise-observations"], "give --env too"),
        (["refresh", "--run", "{dir}", "--activation", "relu"], "leave out --activation"),
        (["actor", "--run", "{dir}", "--env", "X-v0", "--wrapper", "a:b"], "leave out --env, --wrapper"),
        (["actor", "--run", "{dir}", "--network", "mlp:8x1"], "its own network"),
        (["actor", "--run", "{dir}", "--unroll-length", "9"], "its own unrolls"),
        (["policy", "--env", "CartPole-v1", "--env-arg", "no_such_argument=1"], "no_such_argument"),
        (["actor", "--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["actor", "--unroll-length", "0"], "unroll_length"),
        (["actor", "--actors", "2"], "--actors is for --inference central"),
        (["actor", "--inference", "central", "--runtimes", "torch"], "leave out --runtimes"),
        (["actor", "--inference", "central", "--actors", "0"], "actors 0 is not positive"),
        (["refresh", "--schemes", ""], "no scheme"),
        (["bits", "--bits", "1"], "from 2 to 16"),
        (["bits", "--bits", ""], "no width"),
        (["bits", "--episodes", "3"], "need an environment"),
        (["bits", "--env", "CartPole-v1", "--episodes", "1"], "at least 2"),
        (["learner", "--precisions", "fp8"], "unknown precision 'fp8'"),
        (["learner", "--precisions", ""], "no precision"),
        (["learner", "--network", ""], "no network"),
        (["learner", "--preset", "png"], "unknown preset 'png'"),
        (["learner", "--preset", "pong", "--env", "CartPole-v1", "--run", "{dir}"], "leave out --run, --env"),
        (["learner", "--preset", "pong", "--squash-actions"], "leave out --squash-actions"),
        (["learner", "--network", "mlp:8x1,nature-cnn"], "observations of different shapes"),
        (["learner", "--run", "{dir}", "--network", "mlp:8x1"], "its own network"),
        (["learner", "--envs", "0"], "envs_per_actor"),
        (["learner", "--threads", "-1"], "learner_threads"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *(argument.format(dir=tmp_path) for argument in arguments)]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    error = captured.err.strip().splitlines()
    assert message in " ".join(error) and error[-1].startswith("accel: ")
    assert not any(tmp_path.iterdir())


def test_lists_split_at_commas_outside_parentheses() -> None:
    assert texts("fp32, prune(0.5,torso.0=0.25)+int8(per_channel) ,,int8") == [
        "fp32", "prune(0.5,torso.0=0.25)+int8(per_channel)", "int8",
    ]  # fmt: skip
    assert texts("") == [] and integers("1, 8") == [1, 8]


@pytest.mark.parametrize(
    ("shape", "actions", "dtype", "kind", "sizes"),
    [
        ("17", "box:6", "float32", "gaussian", (6,)),
        ("4,84,84", "6", "uint8", "categorical", (6,)),
        ("3,4", "3,2", "float32", "multi_categorical", (3, 2)),
    ],
)
def test_layouts_are_read_from_shape_and_actions(
    shape: str, actions: str, dtype: str, kind: str, sizes: tuple[int, ...]
) -> None:
    spec = PolicyOptions(observation_shape=shape, actions=actions).spec()
    assert spec is not None
    assert (spec.observation_dtype, spec.action.kind, spec.action.sizes) == (dtype, kind, sizes)
    assert ",".join(map(str, spec.observation_shape)) == shape
    with pytest.raises(ConfigError, match="one number"):
        PolicyOptions(observation_shape="3", actions="box:2,2").spec()


def policy_row(runtime: str, scheme: str, us: float, **changes: float | str) -> Row:
    row: Row = {
        "network": "mlp:64x2", "batch": 8, "runtime": runtime, "scheme": scheme, "us": us, "us_low": 0.95 * us,
        "bytes": 1000, "weights": "trained", "kl": 0.001, "ess": 0.99,
    }  # fmt: skip
    return row | changes


def bits_row(bits: int, kl: float, **changes: float | str) -> Row:
    row: Row = {"network": "mlp:64x2", "bits": bits, "rounded": "weights", "kl": kl, "ess": 0.9, "weights": "trained"}
    return row | changes


def test_advice_names_the_fewest_bits_of_a_trained_policy_and_what_is_simulated() -> None:
    rows = [bits_row(2, 3.0), bits_row(4, 0.05, ess=0.1), bits_row(5, 0.04), bits_row(8, 0.001)]
    found, simulated = advise_bits(rows)
    assert found == "mlp:64x2, weights: 5 bits stay within KL 0.1, ESS 0.3" and simulated.startswith("simulated: ")
    assert advise_bits(rows[:2])[0].startswith("mlp:64x2, weights: none of these widths stays")
    assert advise_bits([row | {"weights": "random"} for row in rows]) == [simulated]


def test_advice_names_the_fastest_scheme_and_its_figures() -> None:
    rows = [
        policy_row("torch", "fp32", 100.0),
        policy_row("onnxruntime", "fp32", 40.0, bytes=4000),
        policy_row("onnxruntime", "prune(0.5)+int8", 10.0),
        policy_row("onnxruntime", "int8", 20.0),
    ]
    (line,) = advise_policy(rows)
    assert line == (
        "mlp:64x2, batch 8: prune(0.5)+int8 takes 10 µs per call against 40 µs in fp32, 4.00 times as fast "
        "(int8, which keeps the whole network, 20 µs), 100 µs on torch eager; 1,000 bytes instead of 4,000; KL 0.001 "
        "nats, ESS 0.99"
    )
    rows[2]["kl"] = 0.2
    assert advise_policy(rows)[0].startswith("mlp:64x2, batch 8: int8 takes 20 µs")
    rows[3]["ess"] = 0.1
    assert "no compression" in advise_policy(rows)[0] and "alarm level" in advise_policy(rows)[0]
    rows[2]["weights"] = "random"
    assert "by speed alone" in advise_policy(rows)[1]


@pytest.mark.parametrize("us", [41.0, 39.0])
def test_advice_is_no_compression_where_nothing_is_clearly_faster(us: float) -> None:
    rows = [policy_row("onnxruntime", "fp32", 40.0), policy_row("onnxruntime", "int8", us)]
    (line,) = advise_policy(rows)
    spread = " (within the spread)" if us < 40.0 else ""
    assert (
        line
        == f"mlp:64x2, batch 8: no compression. fp32 takes 40 µs per call, the fastest scheme, int8, {us:g} µs{spread}"
    )
    assert "nothing to recommend" in advise_policy([policy_row("torch", "fp32", 40.0)])[0]


def test_advice_on_actors_says_how_near_the_limit_is() -> None:
    shared: Row = {"env": "X-v0", "network": "mlp:64x2", "envs": 8, "env_only_us": 20.0, "env_share": 0.8}
    shared |= {"weights": "trained", "kl": 0.01, "ess": 0.9}
    rows: list[Row] = [
        shared | {"runtime": "torch", "scheme": "fp32", "us_per_env_step": 50.0, "us_per_env_step_low": 49.0},
        shared | {"runtime": "onnxruntime", "scheme": "fp32", "us_per_env_step": 30.0, "us_per_env_step_low": 29.0},
        shared | {"runtime": "onnxruntime", "scheme": "int8", "us_per_env_step": 25.0, "us_per_env_step_low": 24.0},
    ]
    (line,) = advise_actor(rows)
    assert line == (
        "X-v0, mlp:64x2, 8 environments per actor: int8 takes 25 µs per environment step against 30 µs in fp32, 1.20 "
        "times as fast, 50 µs on torch eager (2.00 times as long); the environment alone takes 20 µs, 80% of the "
        "actor's time; KL 0.01 nats, ESS 0.90"
    )
    rows[2]["kl"] = 0.2
    assert "no compression" in advise_actor(rows)[0] and "alarm level" in advise_actor(rows)[0]
    assert "by speed alone" in advise_actor([row | {"weights": "random"} for row in rows])[1]


def test_advice_on_refreshes_says_from_when_on_a_scheme_pays() -> None:
    shared: Row = {"network": "mlp:64x2", "envs": 8, "saving_us_per_env_step": 2.5, "load_ms": 1.0}
    shared |= {"weights": "trained", "kl": 0.01, "ess": 0.9}
    fp32 = shared | {"scheme": "fp32", "us": 40.0, "us_low": 39.0}
    int8 = shared | {"scheme": "int8", "us": 20.0, "break_even_env_steps": 0.0, "break_even_shared_env_steps": 1200.0}
    (line,) = advise_refresh([fp32, int8])
    assert "int8 saves 2.5 µs per environment step" in line
    assert "at any refresh interval; where the learner shares the actor's core, from 1,200 environment steps" in line
    assert line.endswith("; KL 0.01 nats, ESS 0.90")
    assert "by speed alone" in advise_refresh([row | {"weights": "random"} for row in (fp32, int8)])[1]
    assert "alarm level" in advise_refresh([fp32, int8 | {"ess": 0.2}])[0]
    assert "alarm level" in advise_refresh([fp32, int8 | {"kl": float("nan")}])[0]


@pytest.mark.parametrize("scheme", ["fp16", "prune(0.5)+fp16"])
def test_half_precision_is_never_recommended_for_its_speed(scheme: str) -> None:
    rows = [policy_row("onnxruntime", "fp32", 40.0), policy_row("onnxruntime", scheme, 20.0)]
    line, half = advise_policy(rows)
    assert "no compression" in line and "20" not in line
    assert half == "fp16: half the bytes, not faster on a CPU"
    line, half = advise_policy([*rows, policy_row("onnxruntime", "int8", 30.0)])
    assert "int8 takes 30 µs" in line


def test_an_untrained_student_is_never_recommended() -> None:
    rows = [policy_row("onnxruntime", "fp32", 40.0), policy_row("onnxruntime", "distill(8x1)+int8", 20.0)]
    assert "distill(8x1)+int8 takes 20 µs" in advise_policy(rows)[0], "a student that was taught"
    untrained = [row | {"weights": "random"} for row in rows]
    line, random, student = advise_policy(untrained)
    assert "no compression" in line and "its student is untrained" in line
    assert random.startswith("weights are random") and student.startswith("distill: ")
    rows = [*untrained, policy_row("onnxruntime", "int8", 30.0, weights="random")]
    assert "int8 takes 30 µs" in advise_policy(rows)[0] and "distill" not in advise_policy(rows)[0]


def test_texts_are_to_the_left_numbers_to_the_right() -> None:
    rows: list[Row] = [{"scheme": "fp32", "us": 10.0}, {"scheme": "int8", "us": 9.5}, {"scheme": "x"}]
    table = table_text(rows, [Column("scheme", "scheme"), Column("µs", "us", "number")], "title", 80)
    assert table.splitlines() == ["title", "scheme   µs", "fp32     10", "int8    9.5", "x         -"]


def test_long_texts_are_folded_whole() -> None:
    rows: list[Row] = [{"scheme": "prune(0.5)+int8(per_channel)", "us": 10.0}, {"scheme": "[fp32]", "us": 9.5}]
    columns = [Column("scheme", "scheme"), Column("µs", "us", "number")]
    lines = table_text(rows, columns, "title", 22).splitlines()
    assert lines[2:] == ["prune(0.5)+int8(p   10", "er_channel)", "[fp32]             9.5"]


def test_narrow_terminals_lose_the_extra_columns_from_the_right() -> None:
    columns = [Column("a", "a"), Column("bb", "b", "text", True), Column("c", "c"), Column("d", "d", "text", True)]
    rows: list[Row] = [{"a": "12345", "b": "1", "c": "1", "d": "1234567"}]
    shown = {
        width: "".join(column.key for column in fitting(rows, columns, width)) for width in (80, 21, 20, 12, 11, 5)
    }
    assert shown == {80: "abcd", 21: "abcd", 20: "abc", 12: "abc", 11: "ac", 5: "ac"}
    same = [rows[0], rows[0] | {"c": "2"}]
    assert [column.key for column in fitting(same, columns, 5)] == ["c"], "columns of one value go next"
    title, *rows_shown = table_text(same, columns, "title", 5).splitlines()
    assert (title, rows_shown[:3]) == ("title", ["c", "1", "2"])
    told = "".join(rows_shown[3:]).replace(" ", "")
    assert told == "notshown:a,bb,d;--jsonwriteseverycolumn", "wrapped, however narrow"


def test_figures_that_are_not_finite_become_null() -> None:
    assert json.loads(encode([{"a": float("inf"), "b": float("nan"), "c": 1.5, "d": "x"}])) == [
        {"a": None, "b": None, "c": 1.5, "d": "x"}
    ]


def test_other_processes_are_told_of() -> None:
    assert "60% of a core" in interference([{"cpu_share": 0.99}, {"cpu_share": 0.6}])[0]
    assert not interference([{"cpu_share": 0.99}])


@pytest.mark.parametrize("columns", TABLES.values(), ids=list(TABLES))
def test_no_table_is_wider_than_asked_for_whatever_it_is_about(columns: Sequence[Column]) -> None:
    """Long names in every text, and figures that differ from row to row."""
    figures = {"count": 65_536.0, "steps": 1_234_567.0, "ratio": 12.3, "share": 0.98, "small": 1e-3}
    rows: list[Row] = []
    for i in range(3):
        row: Row = {}
        for column in columns:
            long = f"my_package.my_module:make_the_network_{i}+lstm:256"
            row[column.key] = long if column.style == "text" else figures.get(column.style, 1234.0) * (1 + 0.01 * i)
            row |= {f"{column.key}_low": 1e3 + i, f"{column.key}_high": 2e3 + i}
        rows.append(row)
    title = "a benchmark of something whose name is long, " * 4
    for width in (100, 120):
        lines = table_text(rows, columns, title, width).splitlines()
        assert max(map(len, lines)) <= width
        headings = next(line for line in lines if columns[0].heading in line.split())
        assert all(column.heading in headings for column in fitting(rows, columns, width))
