"""``accel bench``: tables, plots, JSON files, closing lines; bad input ends before anything is measured."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from accel.bench.advice import advise
from accel.bench.commands import integers, texts
from accel.bench.rows import Row
from accel.bench.tables import TABLES, Column, fitting, table_text
from accel.cli import main
from accel.cli.bench import encode, interference

QUICK = "--seconds 0.05 --repeats 3"
COMMANDS = {
    "policy": f"{QUICK} --network mlp:16x1 --batch 1,2 --schemes int8 --runtimes torch,onnxruntime",
    "actor": f"{QUICK} --network mlp:16x1 --envs-per-actor 2 --schemes int8",
    "refresh": f"{QUICK} --network mlp:16x1 --schemes int8",
    "learner": f"{QUICK} --network mlp:16x1,mlp:8x1 --envs 4 --passes 2 --device cpu",
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_each_benchmark_prints_a_table_and_writes_rows(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_path = tmp_path / "rows.json"
    assert main(["bench", kind, *COMMANDS[kind].split(), "--json", str(rows_path)]) == 0
    rows = json.loads(rows_path.read_text())
    assert rows and all(row["command"].startswith(f"accel bench {kind} ") and "commit" in row for row in rows)
    printed = capsys.readouterr().out.splitlines()
    title, headings = printed[:2]
    assert (title and "µs" in headings) or "ms" in headings
    closing = " ".join(printed[2 + len(rows) :])
    assert "onnxruntime" in closing and " cores" in closing, "machine and versions"
    assert len(printed) >= len(rows) + 4, "a closing line"
    if kind == "refresh":
        assert {"per M", "load", "break-even"} <= set(re.split("  +", headings))
    assert max(map(len, printed)) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy", "--json", "{dir}/missing/rows.json"], "no directory"),
        (["policy", "--json", "{dir}"], "is a directory"),
        (["policy", "--network", "mpl:64x2"], "unknown torso"),
        (["policy", "--network", ""], "no network"),
        (["policy", "--batch", "0"], "batch 0"),
        (["policy", "--batch", "eight"], "whole numbers"),
        (["policy", "--batch", ""], "no batch"),
        (["policy", "--schemes", "int9"], "unknown method 'int9'"),
        (["policy", "--schemes", "prune(2)"], "prune"),
        (["policy", "--runtimes", "tensorrt"], "unknown runtimes"),
        (["policy", "--seconds", "0"], "must be positive"),
        (["policy", "--repeats", "0"], "must be positive"),
        (["policy", "--network", "nature-cnn", "--env", "CartPole-v1"], "images"),
        (["policy", "--run", "{dir}/none"], "no directory"),
        (["actor", "--envs-per-actor", "0"], "envs-per-actor 0"),
        (["actor", "--runtimes", "torch.compile"], "unknown runtimes"),
        (["refresh", "--envs", "0"], "envs 0"),
        (["refresh", "--schemes", "int8+prune(0.5)"], "last"),
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
        (["refresh", "--schemes", ""], "no scheme"),
        (["learner", "--network", ""], "no network"),
        (["learner", "--preset", "png"], "unknown preset 'png'"),
        (["learner", "--preset", "pong", "--env", "CartPole-v1", "--run", "{dir}"], "leave out --run, --env"),
        (["learner", "--preset", "pong", "--squash-actions"], "leave out --squash-actions"),
        (["learner", "--network", "mlp:8x1,nature-cnn"], "observations of different shapes"),
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
    assert texts("fp32, prune(0.5,torso.0=0.25)+int8 ,,int8") == [
        "fp32", "prune(0.5,torso.0=0.25)+int8", "int8",
    ]  # fmt: skip
    assert texts("") == [] and integers("1, 8") == [1, 8]


def policy_row(runtime: str, scheme: str, us: float, **changes: float | str) -> Row:
    row: Row = {
        "network": "mlp:64x2", "batch": 8, "runtime": runtime, "scheme": scheme, "us": us, "us_low": 0.95 * us,
        "bytes": 1000, "weights": "trained", "kl": 0.001, "ess": 0.99, "holds": True,
    }  # fmt: skip
    return row | changes


def test_advice_names_the_fastest_scheme_and_its_figures() -> None:
    rows = [
        policy_row("torch", "fp32", 100.0),
        policy_row("onnxruntime", "fp32", 50.0),
        policy_row("native", "fp32", 40.0),
        policy_row("onnxruntime", "prune(0.5)+int8", 10.0),
        policy_row("onnxruntime", "int8", 20.0),
    ]
    best = (
        "mlp:64x2, batch 8: {} is {} times as fast as fp32 (40 µs per call); its actions are within the bar, KL 0.001 "
        "nats, ESS 0.99"
    )
    assert advise("policy", rows) == [best.format("prune(0.5)+int8 (10 µs)", "4.00")]
    rows[3]["kl"] = 0.2
    assert advise("policy", rows) == [best.format("int8 (20 µs)", "2.00")], "its mismatch is beyond the alarm level"
    rows[4]["ess"] = 0.1
    assert "no compression" in advise("policy", rows)[0] and "differs too much" in advise("policy", rows)[0]
    greedy = [row | {"kl": None, "ess": None, "holds": row["scheme"] != "int8"} for row in rows]
    assert "prune(0.5)+int8 (10 µs)" in advise("policy", greedy)[0] and "KL" not in advise("policy", greedy)[0]
    rows[3]["weights"] = "random"
    assert "by speed alone" in advise("policy", rows)[1]
    assert "nothing to recommend" in advise("policy", rows[:1])[0]


@pytest.mark.parametrize(
    ("scheme", "us", "weights"),
    [
        ("int8", 41.0, "trained"),
        ("int8", 39.0, "trained"),
        ("fp16", 20.0, "trained"),
        ("prune(0.5)+fp16", 20.0, "trained"),
        ("distill(8x1)+int8", 20.0, "random"),
    ],
    ids=["slower", "within the spread", "half precision", "with it", "an untrained student"],
)
def test_advice_is_no_compression_where_nothing_is_worth_it(scheme: str, us: float, weights: str) -> None:
    rows = [policy_row("onnxruntime", "fp32", 40.0), policy_row("onnxruntime", scheme, us, weights=weights)]
    assert "no compression: nothing else is worth more than fp32 (40 µs per call)" in advise("policy", rows)[0]
    assert ("measure longer" in advise("policy", rows)[0]) == (us == 39.0)
    better = [*rows, policy_row("onnxruntime", "int8(w4)", 30.0)]
    assert "int8(w4) (30 µs) is 1.33 times as fast" in advise("policy", better)[0]
    taught = policy_row("onnxruntime", "distill(8x1)+int8", 20.0)
    assert "distill(8x1)+int8 (20 µs)" in advise("policy", [rows[0], taught])[0], "a student that was taught"


def test_advice_says_where_the_spread_hides_a_gain() -> None:
    rows = [policy_row("onnxruntime", "fp32", 40.0) | {"us_low": 15.0}, policy_row("onnxruntime", "int8", 20.0)]
    (advice,) = advise("policy", rows)
    assert advice.endswith("in which int8 (20 µs) lies: measure longer, or on an idle machine")


def test_texts_are_to_the_left_numbers_to_the_right() -> None:
    rows: list[Row] = [{"scheme": "fp32", "us": 10.0}, {"scheme": "int8", "us": 9.5}, {"scheme": "x"}]
    table = table_text(rows, [Column("scheme", "scheme"), Column("µs", "us", "number")], "title", 80)
    assert table.splitlines() == ["title", "scheme   µs", "fp32     10", "int8    9.5", "x         -"]


def test_long_texts_are_folded_whole() -> None:
    rows: list[Row] = [{"scheme": "prune(0.5)+int8(reduce_r)", "us": 10.0}, {"scheme": "[fp32]", "us": 9.5}]
    columns = [Column("scheme", "scheme"), Column("µs", "us", "number")]
    lines = table_text(rows, columns, "title", 22).splitlines()
    assert lines[2:] == ["prune(0.5)+int8(r   10", "educe_r)", "[fp32]             9.5"]


def test_narrow_terminals_lose_the_extra_columns_from_the_right() -> None:
    columns = [Column("a", "a"), Column("bb", "b", "text", True), Column("c", "c"), Column("d", "d", "text", True)]
    rows: list[Row] = [{"a": "12345", "b": "1", "c": "1", "d": "1234567"}]
    widths = (80, 21, 20, 12, 11, 5)
    shown = {width: "".join(column.key for column in fitting(rows, columns, width)) for width in widths}
    assert shown == {80: "abcd", 21: "abcd", 20: "abc", 12: "abc", 11: "ac", 5: "ac"}
    _title, _, _, *told = table_text(rows, columns, "title", 11).splitlines()
    assert "".join(told).replace(" ", "") == "notshown:bb,d;--jsonwriteseverycolumn", "wrapped, however narrow"


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
