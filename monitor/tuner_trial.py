"""How a trial of a level ends, before its gain is weighed."""

from __future__ import annotations

from monitor.tuner_measurements import Measurements, TunerOptions
from monitor.tuner_returns import ReturnComparison


def is_over(m: Measurements, candidate: str, elapsed_s: float, options: TunerOptions) -> bool:
    """Whether a trial can be judged: at once by ruin, else once enough is measured, or patience is at its end."""
    returns = m.returns or ReturnComparison()
    if options.is_ruin(returns):
        return True
    is_late = elapsed_s >= options.trial_patience
    return elapsed_s >= options.dwell and (
        is_late or (_is_measured(m, candidate, options) and options.is_enough(returns))
    )


def objection(m: Measurements, candidate: str, quality: float, options: TunerOptions) -> str:
    """What speaks against a candidate whatever it gains, as a sentence; empty when nothing does.

    Args:
        quality: ESS × retention of its compression, as last measured.
    """
    returns = m.returns or ReturnComparison()
    if options.is_ruin(returns):
        return f"{candidate} ruins returns: {returns}"
    if not _is_measured(m, candidate, options):
        return f"{candidate} could not be measured in {options.trial_patience:.0f} s"
    if options.is_loss(returns):
        return f"{candidate} loses return: {returns}"
    if returns.episodes < options.min_episodes and quality < options.blind_quality:
        few = f"only {returns.episodes} whole episodes in {options.trial_patience:.0f} s"
        return f"{few} to judge {candidate} by, and its quality is {quality:.2f}"
    return ""


def _is_measured(m: Measurements, candidate: str, options: TunerOptions) -> bool:
    measured = m.levels[candidate]
    return measured.samples >= options.min_samples and measured.rate is not None
