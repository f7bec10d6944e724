"""Headlines and verdicts claim what the intervals show, count seeds that failed, and say where a gain comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from monitor.report.analysis import Analysis, Choices, analyse
from monitor.report.runs import Run
from monitor.report.series import Series
from monitor.report.tables import speedup_table
from monitor.report.wording import headline, verdicts

Seeds = Sequence[tuple[float, float]]


def run(scheme: str, seed: int, seconds: float, steps: float, final: float = 100.0) -> Run:
    """Reaches 100, its target, at its end, or never."""
    columns = {
        "elapsed_s": np.array([0.1, 1.0]) * seconds,
        "env_steps": np.array([0.1, 1.0]) * steps,
        "return_mean": np.array([0.0, final]),
    }
    config = {"env": "E", "compressor": scheme, "seed": seed, "stop_at_return": 100.0}
    return Run(f"{scheme}-{seed}", "/r", config, {"cpu": "A"}, {"reason": "done"}, Series(columns, 2))


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
    assert text.startswith("No difference in speed to a return of 100 shown between int8 and fp32 (0.")
    assert "as fast" not in text
    ((_, _, told, _),) = verdicts(compared({"fp32": SLOW, "int8": scattered}))
    assert "The estimate of 1.9× is" in told and "× by steps per second" in told


def test_a_speed_that_is_shown_is_told_with_its_cause() -> None:
    text = headline(compared({"fp32": SLOW, "int8": divided(2, 2)}))
    assert text.startswith("int8 is 2× [1.")
    assert "as fast as fp32 to a return of 100, through fewer steps rather than more steps per second" in text
    assert text.endswith("at the same return (E)")
    faster, both, slower = (compared({"fp32": SLOW, "int8": divided(*by)}) for by in ((2, 1), (4, 2), (0.5, 1)))
    assert "through more steps per second rather than fewer steps" in headline(faster)
    assert "through fewer steps and more steps per second" in headline(both)
    assert "through fewer steps per second rather than more steps" in headline(slower)
    ((_, _, told, _),) = verdicts(both)
    assert "by the number of steps, times 2× by steps per second." in told


def test_the_best_is_the_one_whose_lower_end_is_highest() -> None:
    lucky = [(1.0, 100.0), (12.0, 1200.0), (2.0, 200.0), (14.0, 1400.0), (1.5, 150.0)]
    text = headline(compared({"fp32": SLOW, "lucky": lucky, "sure": divided(1.5, 1.5)}))
    assert text.startswith("sure is 1.5×")


def test_few_seeds_claim_no_return_and_two_have_no_interval() -> None:
    three, two = (compared({"fp32": SLOW, "int8": divided(2, 1)[:seeds]}) for seeds in (3, 2))
    assert "with too few seeds for a claim about the return" in headline(three)
    assert headline(three).startswith("int8 is ")
    assert headline(two).startswith("int8 against fp32: ")
    assert "× [–] in speed to a return of 100, too few seeds for an interval" in headline(two)
    for analysis in (three, two):
        ((outcome, _, told, _),) = verdicts(analysis)
        assert outcome == "few"
        assert "same return" not in headline(analysis) + told
        assert "higher return" not in headline(analysis) + told


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
    assert "int8 reached 100 in 4 of 5 runs, fp32 reached 100 in 5 of 5 runs." in told
    bound = "To a return of 100, int8 is at most 2× as fast as fp32 by time, counting 1 failed seed at its budget."
    assert bound in told
    table = speedup_table(analysis)
    assert table is not None
    assert {row[0]: row[2] for row in table.rows}["Wall-clock to the threshold"] == "at most 2×"
    ((_, _, told, _),) = verdicts(compared({"fp32": SLOW, "int8": divided(2, 1)}))
    assert "reached 100 in 5 of 5 runs, fp32 reached 100 in 5 of 5 runs" in told
