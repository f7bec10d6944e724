"""What a bundle's model card and the printed lines say: one meaning a figure, no claim beyond the figures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from accel.exporting.build import Bundle, export
from accel.exporting.model_card import model_card, summary
from tests.accel.runs.trained_runs import make_run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory = tmp_path_factory.mktemp("card")
    run = make_run(directory / "runs", env="CartPole-v1", network="mlp:16x1", calibration_size=64)
    return export(run, directory / "bundle", scheme="int8", episodes=4, max_mismatch=0.5)


@pytest.fixture
def report(bundle: Bundle) -> dict[str, Any]:
    return copy.deepcopy(dict(bundle.report))


def test_every_row_of_the_report_is_in_the_table(bundle: Bundle, report: dict[str, Any]) -> None:
    card = model_card(bundle.contract, report)
    made = f"{bundle.contract['scheme']} as onnx"
    for row in report["parity"]:
        model = made if row["model"] == "onnx" else "fp32 as ONNX"
        assert f"| {model} | {row['inputs']} | {row['relative']:.2e} | {row['greatest']:.2e} |\n" in card
    assert len(report["parity"]) == 4 and "inputs of each kind, in batches of 1, 4, 32" in card


@pytest.mark.parametrize(
    ("ratio", "speed", "size"),
    [
        (2.0, "2.00{} faster", "2.00{} smaller"),
        (1.0051, "1.01{} faster", "1.01{} smaller"),
        (0.5, "2.00{} slower", "2.00{} larger"),
        *((ratio, "as fast as fp32", "as large as fp32") for ratio in (1.0049, 1.0, 0.996)),
    ],
)
def test_a_slower_policy_is_called_slower_and_an_equal_one_neither(
    ratio: float, speed: str, size: str, bundle: Bundle, report: dict[str, Any]
) -> None:
    report["latency"]["speed_up_p50"] = report["bytes"]["ratio"] = ratio
    assert f"{size}, {speed} in the median".format("×", "×") in model_card(bundle.contract, report)
    printed = summary(bundle.contract, report).splitlines()
    assert printed[0].endswith(f", {size}".format("x")) and printed[1].endswith(f", {speed}".format("x"))


def test_equal_returns_everywhere_are_said_to_tell_nothing_apart(bundle: Bundle, report: dict[str, Any]) -> None:
    note = "very episode of both returned 500: if that is the most that the environment gives"
    report["returns"]["model"]["returns"] = report["returns"]["fp32"]["returns"] = [500.0] * 4
    assert note in model_card(bundle.contract, report) and note in summary(bundle.contract, report)
    report["returns"]["fp32"]["returns"] = [500.0, 500.0, 500.0, 499.0]
    assert note not in model_card(bundle.contract, report) + summary(bundle.contract, report)
    report["returns"] = None
    assert "Not measured." in model_card(bundle.contract, report) and "mean return" not in summary(
        bundle.contract, report
    )


def test_bounds_that_were_held_are_named(bundle: Bundle, report: dict[str, Any]) -> None:
    assert "holds what was asked of it: max-mismatch 0.5." in model_card(bundle.contract, report)
    report["gate"] = {"max_return_loss": None, "max_mismatch": None, "accept_loss": False}
    assert "No bound was set on what compression may cost" in model_card(bundle.contract, report)


def test_the_card_says_whether_the_policy_is_kept(bundle: Bundle, report: dict[str, Any]) -> None:
    card = model_card(bundle.contract, report)
    assert report["quality"]["holds"] and f"**{bundle.contract['scheme']} keeps the policy.**" in card
    assert "| 2,048 of own episodes | " in card and "in integers: " in card
    report["quality"]["verdict"] = "int8 does not keep the policy: 58 %"
    assert "does not keep" in model_card(bundle.contract, report) and "does not keep" in summary(
        bundle.contract, report
    )


def test_the_cpu_that_is_assumed_is_named(bundle: Bundle, report: dict[str, Any]) -> None:
    contract = copy.deepcopy(bundle.contract)
    contract["model"]["cpu_features"] = contract["target"]["cpu_features"] = ["vnni"]
    assert "The model assumes a CPU with vnni, and `run_policy.py` refuses others" in model_card(contract, report)
    contract["target"]["cpu_features"] = []
    assert "assumed by target onnx; `model.onnx` assumes a CPU with vnni" in model_card(contract, report)
    contract["model"]["cpu_features"] = []
    assert "- No feature of the CPU is assumed.\n" in model_card(contract, report)


def test_the_printed_lines_say_where_to_check(bundle: Bundle) -> None:
    assert Path(bundle.path, "MODEL_CARD.md").exists()
    assert bundle.text().endswith("or its own run_policy.py --verify checks it where it is going to run")
