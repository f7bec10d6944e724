"""Headlines and verdicts claim what the intervals show, count seeds that failed, and say where a gain comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.runs import Run
from accel.reports.tables import speedup_table
from accel.reports.wording import headline, verdicts
from tests.accel.recorded_run import run_record

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


def test_no_speed_is_claimed_that_the_interval_denies() -> None:
    scattered = [(2.0, 200.0), (12.0, 1200.0), (3.0, 300.0), (14.0, 1400.0), (4.0, 400.0)]
    text = headline(compared({"fp32": SLOW, "int8": scattered}))
    assert text.startswith("No difference in speed to a return of 100 between int8 and fp32 is shown: 1.9× [0.")
    assert "as fast" not in text


def test_a_speed_that_is_shown_is_told_with_its_cause() -> None:
    text = headline(compared({"fp32": SLOW, "int8": divided(2, 2)}))
    assert text.startswith("int8 is 2× [1.")
    assert "as fast as fp32 to a return of 100 (2× by the number of steps, 1× by steps per second)" in text
    assert text.endswith("without loss of return (E)")
    faster, both, slower = (compared({"fp32": SLOW, "int8": divided(*by)}) for by in ((2, 1), (4, 2), (0.5, 1)))
    assert "(1× by the number of steps, 2× by steps per second)" in headline(faster)
    assert "(2× by the number of steps, 2× by steps per second)" in headline(both)
    assert "(1× by the number of steps, 0.5× by steps per second)" in headline(slower)


def test_the_best_is_the_one_whose_lower_end_is_highest() -> None:
    lucky = [(1.0, 100.0), (12.0, 1200.0), (2.0, 200.0), (14.0, 1400.0), (1.5, 150.0)]
    text = headline(compared({"fp32": SLOW, "lucky": lucky, "sure": divided(1.5, 1.5)}))
    assert text.startswith("sure is 1.5×")


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_too_few_seeds_are_one_line_without_an_interval(seeds: int) -> None:
    analysis = compared({"fp32": SLOW, "int8": divided(2, 1)[:seeds]})
    line = f"int8 against fp32: 2× in speed to a return of 100, too few seeds to compare: {seeds} of at least 5"
    ((outcome, _, told, _),) = verdicts(analysis)
    assert outcome == "too_few_seeds"
    assert re.sub(r"[\d.]+×", "2×", told) == f"{line}."
    assert re.sub(r"[\d.]+×", "2×", headline(analysis)) == f"{line} (E)"


@pytest.mark.parametrize("final", [100.0, 50.0])
def test_a_verdict_has_at_most_two_sentences(final: float) -> None:
    for seeds in (2, 5):
        groups = {"fp32": SLOW, "int8": divided(2, 1)[:seeds], "fp16": divided(1, 1)[:seeds]}
        for _, _, told, _ in verdicts(compared(groups, final)):
            assert len(re.findall(r"\.(?:\s|$)", told)) <= 2, told


def test_failed_seeds_are_counted_in_every_verdict() -> None:
    analysis = compared({"fp32": SLOW, "int8": divided(2, 1)}, final=50.0)
    assert "int8 reached 100 in 4 of 5 runs" in headline(analysis)
    assert "as fast as fp32 to" not in headline(analysis)
    untargeted = [
        replace(run, config={k: v for k, v in run.config.items() if k != "stop_at_return"})
        for group in analysis.groups
        for run in group.runs
    ]
    assert " reached " not in headline(analyse(untargeted, Choices(), untargeted[0])), "nobody asked for that return"
    ((_, _, told, _),) = verdicts(analysis)
    assert told.endswith("int8 reached 100 in 4 of 5 runs, fp32 in 5 of 5.")
    bound = "int8 is at most 2× as fast as fp32 to a return of 100, counting 1 failed seed at its budget."
    assert bound in told
    table = speedup_table(analysis)
    assert table is not None
    assert {row[0]: row[2] for row in table.rows}["Wall-clock to the threshold"] == "at most 2×"
    ((_, _, told, _),) = verdicts(compared({"fp32": SLOW, "int8": divided(2, 1)}))
    assert "reached" not in told
