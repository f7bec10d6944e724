"""Headlines and verdicts claim what the intervals show, count seeds that failed, and say where a gain comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.runs import Run
from accel.reports.tables import speedup_table
from accel.reports.wording import headline, verdict
from tests.accel.reports.recorded_run import run_record

Seeds = Sequence[tuple[float, float]]


def run(scheme: str, seed: int, seconds: float, steps: float, final: float = 100.0) -> Run:
    """Reaches 100, its target, at its end, or never."""
    columns = {"elapsed_s": [0.1 * seconds, seconds], "env_steps": [0.1 * steps, steps], "return_mean": [0.0, final]}
    return run_record(columns, summary={"reason": "done"}, compressor=scheme, seed=seed, stop_at_return=100.0)


def compared(groups: Mapping[str, Seeds], final: float = 100.0) -> Analysis:
    """Seeds by scheme as (seconds, steps), the first scheme being the baseline; ``final`` is the very last seed's."""
    runs = [run(scheme, i, *seed) for scheme, seeds in groups.items() for i, seed in enumerate(seeds)]
    scheme, seeds = list(groups.items())[-1]
    runs[-1] = run(scheme, len(seeds) - 1, *seeds[-1], final)
    return analyse(runs, Choices(), runs[0])


SLOW: Seeds = [(10.0, 1000.0), (11.0, 1050.0), (9.0, 950.0), (10.5, 1000.0), (9.5, 1000.0)]


def divided(seconds: float, steps: float) -> Seeds:
    return [(s / seconds, n / steps) for s, n in SLOW]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ((2, 2), "(2× by the number of steps, 1× by steps per second)"),
        ((2, 1), "(1× by the number of steps, 2× by steps per second)"),
        ((4, 2), "(2× by the number of steps, 2× by steps per second)"),
        ((0.5, 1), "(1× by the number of steps, 0.5× by steps per second)"),
    ],
)
def test_a_speed_that_is_shown_is_told_with_its_cause(by: tuple[float, float], said: str) -> None:
    text = headline(compared({"fp32": SLOW, "int8": divided(*by)}))
    assert text.startswith(f"int8: {by[0]:g}× [")
    assert f"] the speed of fp32 to a return of 100 {said}; no loss of return (E)" in text


def test_no_speed_is_claimed_that_the_interval_denies() -> None:
    scattered = [(2.0, 200.0), (12.0, 1200.0), (3.0, 300.0), (14.0, 1400.0), (4.0, 400.0)]
    text = headline(compared({"fp32": SLOW, "int8": scattered}))
    assert text.startswith("int8: 1.9× [0.") and "to a return of 100, which shows no difference; " in text


def test_the_best_is_the_one_whose_lower_end_is_highest() -> None:
    lucky = [(1.0, 100.0), (12.0, 1200.0), (2.0, 200.0), (14.0, 1400.0), (1.5, 150.0)]
    assert headline(compared({"fp32": SLOW, "lucky": lucky, "sure": divided(1.5, 1.5)})).startswith("sure: 1.5×")


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_too_few_seeds_have_an_estimate_and_no_claim(seeds: int) -> None:
    analysis = compared({"fp32": SLOW, "int8": divided(2, 1)[:seeds]})
    (found,) = analysis.comparisons
    assert found.verdict.outcome == "too_few_seeds"
    told = re.sub(r"[\d.]+× ", "2× ", verdict(found, analysis))
    assert told.startswith("2× the speed of fp32 to a return of 100")
    assert told.endswith(f"; too few seeds to compare: {seeds} of at least 5.")
    assert headline(analysis).endswith("; too few seeds to compare (E)")


def test_failed_seeds_are_counted_in_every_verdict() -> None:
    analysis = compared({"fp32": SLOW, "int8": divided(2, 1)}, final=50.0)
    said = "at most 2× the speed of fp32 to a return of 100, failed seeds counted at their budget: 1"
    assert headline(analysis).startswith(f"int8: {said}")
    told = verdict(analysis.comparisons[0], analysis)
    assert told.startswith(said) and told.endswith("100 was reached by fp32 in 5 of 5 runs, int8 in 4 of 5 runs.")
    table = speedup_table(analysis)
    assert {row[0]: row[2] for row in table.rows}["Wall-clock to the threshold"] == "at most 2×"
    untargeted = [
        replace(run, config={k: v for k, v in run.config.items() if k != "stop_at_return"}) for run in analysis.runs
    ]
    assert " to a return of " not in headline(analyse(untargeted, Choices(), untargeted[0])), "nobody asked for it"
    analysis = compared({"fp32": SLOW, "int8": divided(2, 1)})
    assert "reached" not in verdict(analysis.comparisons[0], analysis)
