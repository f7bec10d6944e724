"""How trials ended, in the words of tables: which were measured to their end, and why the others were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from optuna.trial import FrozenTrial, TrialState

from accel.sweep.recovery import ERROR

Skip = Literal["too far from fp32", "dominated", "could not be built"]
SKIPS: tuple[Skip, ...] = get_args(Skip)
UNBUILT: Skip = "could not be built"
SAME_AS, SKIP, DRAWN_AT_RANDOM = "same_as", "skip", "drawn_at_random"
_RETURNS = "returns"
_ORDER = ("played", "measured", *SKIPS[:2], "stopped by the pruner", "failed", UNBUILT)


def has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial came to its own end, however that was; not killed ones, nor those that repeat another."""
    ended = trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or ERROR in trial.user_attrs
    return ended and SAME_AS not in trial.user_attrs


def is_done(trial: FrozenTrial) -> bool:
    """Whether a trial counts towards those wanted: it ended, and there was something to measure."""
    return has_ended(trial) and trial.user_attrs.get(SKIP) != UNBUILT


def ending(trial: FrozenTrial) -> str:
    """Of a trial that has ended."""
    if ERROR in trial.user_attrs:
        return "failed"
    if trial.state == TrialState.PRUNED:
        return str(trial.user_attrs.get(SKIP, "stopped by the pruner"))
    return "played" if _RETURNS in trial.user_attrs else "measured"


def tally(trials: Iterable[FrozenTrial]) -> str:
    """``240 candidates: 18 played, 209 too far from fp32, 13 dominated, 0 could not be built; 17 proposals …``"""
    trials = list(trials)
    found = Counter(ending(trial) for trial in trials if has_ended(trial))
    wanted = SKIPS if "played" in found else ()
    parts = [f"{found[name]} {name}" for name in _ORDER if name in found or name in wanted]
    candidates = sum(map(is_done, trials))
    repeated = sum(SAME_AS in trial.user_attrs for trial in trials)
    text = f"{candidates} candidate{'' if candidates == 1 else 's'}: {', '.join(parts) or 'none ended'}"
    text += f"; {repeated} proposals repeated others"
    drawn = sum(DRAWN_AT_RANDOM in trial.user_attrs for trial in trials)
    return text + (f", after which {drawn} proposals were drawn at random" if drawn else "")
