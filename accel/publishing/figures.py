"""The publisher's numbers for the metrics record.

Per level, as ``name/scheme``:

    payload_bytes         bytes of the last artifact
    refresh_ms            requantise and patch, mean since the last record; serialise_ms: header, checksum, copy
    changed_codes         share of integer weight codes that the last refresh changed, in [0, 1]
    calibrations          how often activation ranges were measured
    drifted_activations   activations found outside their range, over the whole run
    withheld              publications at which the policy was unfit
    publish_kl            mean KL(policy ‖ artifact) in nats at the last whole check; check_ms: what that took
    quick_check_ms        check of every other publication on few rows, mean since the last record
    inconclusive_checks   quick checks that could not decide and called for a full one; over the whole run
    reselections          selections of channels and bases; reselect_ms: mean of one in the background, over the whole
                          run
    distill_kl            mean KL(policy ‖ student) in nats at the student's last training step
    distill_steps         the student's training steps
    qat_differences       share of activation codes in which a learner at a qat level and its artifact differed at the
                          last check, in [0, 1]; qat_greatest_difference: by how many steps at most

A number is absent where the scheme has no such thing, or there is none yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from compressors.plan import PlanStatistics
from compressors.qat.differences import CodeDifferences


@dataclass
class LevelFigures:
    """What happened at one level so far; see ``Publisher.metrics``."""

    refreshes: int = 0
    refresh_s: float = 0.0
    serialise_s: float = 0.0
    payload_bytes: int = 0
    withheld: int = 0
    distill_steps: int = 0
    reselections: int = 0
    reselect_s: float = 0.0
    check_kl: float | None = None
    check_s: float = 0.0
    quick_checks: int = 0
    quick_check_s: float = 0.0
    inconclusive_checks: int = 0
    student_kl: float | None = None
    code_differences: CodeDifferences | None = None


def level_metrics(figures: LevelFigures, seen: PlanStatistics) -> dict[str, float]:
    """The figures of one level and its plan by name; those since the last call start anew."""
    differences = figures.code_differences
    found: dict[str, float | None] = {
        "payload_bytes": figures.payload_bytes or None,
        "changed_codes": seen.changed_codes,
        "calibrations": seen.calibrations or None,
        "drifted_activations": seen.drifted_activations if seen.calibrations else None,
        "withheld": figures.withheld,
        "publish_kl": figures.check_kl,
        "check_ms": 1e3 * figures.check_s if figures.check_kl is not None else None,
        "inconclusive_checks": figures.inconclusive_checks,
        "reselections": figures.reselections or None,
        "reselect_ms": 1e3 * figures.reselect_s / figures.reselections if figures.reselections else None,
        "distill_kl": figures.student_kl,
        "distill_steps": figures.distill_steps or None,
        "qat_differences": None if differences is None else differences.rate,
        "qat_greatest_difference": None if differences is None else differences.greatest,
    }
    if figures.refreshes:
        found["refresh_ms"] = 1e3 * figures.refresh_s / figures.refreshes
        found["serialise_ms"] = 1e3 * figures.serialise_s / figures.refreshes
        figures.refreshes, figures.refresh_s, figures.serialise_s = 0, 0.0, 0.0
    if figures.quick_checks:
        found["quick_check_ms"] = 1e3 * figures.quick_check_s / figures.quick_checks
        figures.quick_checks, figures.quick_check_s = 0, 0.0
    return {name: float(value) for name, value in found.items() if value is not None}
