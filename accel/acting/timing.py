"""An actor times compression levels on its own last unroll, while it acts with one of them. No torch.

What an actor is assigned is one text, which the transport carries as the scheme:

    int8                       it acts with int8; the payload is the artifact
    int8;fp32;prune(0.5);#2    the same, and for the run's second request it times all three once; their artifacts
                               follow one another behind lengths

Before its next unroll each level's session answers the rows of the last one, on all of the actor's environments and
from the recurrent state at its start, in rounds that take the levels in turns; noise of the machine then meets all
alike. The same answers tell how far a level is from full precision where this actor really is:

    ess      mean over rows of 1/(1 + χ²(π‖μ)), π full precision and μ the level, both of the same version
    overlap  mean over rows of min(1, μ/π) on the actions taken; to the power of the trace's horizon it is the trace's
             retention, as if rows were independent

A change of level takes effect between two unrolls, in the middle of episodes. A recurrent state then goes on as it is:
all levels keep it in the full policy's own shape, a pruned one with zeros where its units are gone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import cast

import numpy as np

from accel.acting.policy import Array, Bools, SessionPolicy
from accel.acting.rules import ActionRule, FloatArray, Sampler
from accel.compressors.errors import ArtifactError
from accel.compressors.runtime import Runtime
from accel.experience.unroll import Unroll, UnrollLayout, restack_frames
from accel.json_object import Json
from accel.monitor.divergence import divergences
from accel.transport.base import PolicyUpdate

ROUNDS = 15
ROUND_S = 0.002
"""Least time of a level in a round; at least one call."""
ANSWERS_S = 0.1
"""Most time of a level's answers for its mismatch; at least one row."""
FAR = 1e9
"""Nats, for a divergence that is infinite or no number: JSON has neither."""

_LENGTH = struct.Struct("<Q")


def assignment(levels: Sequence[str], request: int) -> str:
    """The text for an actor that acts with the first level and, where there are more, times all for this request."""
    return ";".join(levels) if len(levels) == 1 else ";".join((*levels, f"#{request}"))


def join_levels(levels: Sequence[str], payloads: Mapping[str, bytes]) -> bytes:
    """What travels for an assignment: one level's payload as it is, several behind their lengths."""
    if len(levels) == 1:
        return payloads[levels[0]]
    return b"".join(piece for level in levels for piece in (_LENGTH.pack(len(payloads[level])), payloads[level]))


def split_update(update: PolicyUpdate) -> tuple[PolicyUpdate, dict[str, bytes]]:
    """What an actor is to act with, and the payloads that it is to time, by level; none where it only acts.

    Raises: ArtifactError: the lengths are not those of the assignment.
    """
    levels = [part for part in update.scheme.split(";") if not part.startswith("#")]
    if len(levels) == 1 or update.payload is None:
        return replace(update, scheme=levels[0]), {}
    rest, parts = update.payload, []
    for _ in levels:
        size = _LENGTH.unpack_from(rest)[0] if len(rest) >= _LENGTH.size else len(rest)
        if len(rest) < _LENGTH.size + size:
            raise ArtifactError(f"a payload for {update.scheme!r} is cut short")
        parts.append(rest[_LENGTH.size : _LENGTH.size + size])
        rest = rest[_LENGTH.size + size :]
    if rest:
        raise ArtifactError(f"a payload for {update.scheme!r} is followed by {len(rest)} bytes too many")
    return replace(update, scheme=levels[0], payload=parts[0]), dict(zip(levels, parts, strict=True))


class LevelTimer:
    """Times levels for one actor.

    Args:
        layout: of the unrolls. rule, sampler: what the actor chooses actions with.
        runtime: see ``PolicySession``.
        reference: the level that the others' mismatch is measured against.
    """

    def __init__(
        self,
        layout: UnrollLayout,
        rule: ActionRule,
        sampler: Sampler,
        runtime: Runtime = "native",
        reference: str = "fp32",
    ) -> None:
        self._layout = layout
        self._rule = rule
        self._sampler = sampler
        self._runtime = runtime
        self._reference = reference

    def time(self, payloads: Mapping[str, bytes], unroll: Unroll) -> Json:
        """``{level: {"call_us": [µs of a call on all environments, by round], "load_us", "kl", "ess", "overlap"}}``.

        A payload that stands in for its level's is left out: it says so itself. Nothing is found where no mismatch
        can be told: without the reference among the levels, or without a valid row.

        Raises: ArtifactError: a payload does not load here.
        """
        policies: dict[str, SessionPolicy] = {}
        load_us: dict[str, float] = {}
        for level, payload in payloads.items():
            before = perf_counter()
            policy = SessionPolicy(self._layout, self._sampler, runtime=self._runtime)
            policy.load(PolicyUpdate(0, level, payload))
            if policy.scheme == level:
                policies[level], load_us[level] = policy, 1e6 * (perf_counter() - before)
        observations, first = self._inputs(unroll)
        rows = {level: self._rows(policy, observations, first, ROUND_S) for level, policy in policies.items()}
        call_us: dict[str, list[float]] = {level: [] for level in policies}
        for turn in range(ROUNDS):
            for level in list(policies)[:: 1 if turn % 2 else -1]:
                elapsed_s, _ = self._replay(policies[level], observations, first, rows[level])
                call_us[level].append(1e6 * elapsed_s / rows[level])
        mismatches = self._mismatch(policies, unroll, observations, first)
        times = {level: {"call_us": call_us[level], "load_us": load_us[level]} for level in mismatches}
        return cast(Json, {level: times[level] | mismatch for level, mismatch in mismatches.items()})

    def _mismatch(
        self, policies: Mapping[str, SessionPolicy], unroll: Unroll, observations: Array, first: Bools | None
    ) -> dict[str, dict[str, float]]:
        """Of every level from the reference, on as many rows as the slowest answers in ``ANSWERS_S``."""
        if self._reference not in policies:
            return {}
        count = min(self._rows(policy, observations, first, ANSWERS_S) for policy in policies.values())
        count = min(count, self._layout.unroll_length)
        actions = unroll["actions"][:count]
        exploration = unroll["exploration"][:count] if "exploration" in unroll else None
        outputs: dict[str, FloatArray] = {}
        for level, policy in policies.items():
            for state, start in zip(policy.states(), unroll.states, strict=True):
                state[...] = start
            outputs[level] = self._replay(policy, observations, first, count)[1]
        valid = unroll["valid"][:count].astype(np.bool_)
        params = {
            level: self._rule.action_params(found, exploration)[valid]  # type: ignore[arg-type]
            for level, found in outputs.items()
        }
        log_probs = {level: self._sampler.log_prob(o, actions)[valid] for level, o in outputs.items()}  # type: ignore[arg-type]
        found = {}
        for level in policies if valid.any() else ():
            divergence = divergences(self._layout.spec.action, params[self._reference], params[level])
            weights = np.exp(np.minimum(log_probs[level] - log_probs[self._reference], 0.0))
            found[level] = {
                "kl": float(np.nan_to_num(divergence.kl, nan=FAR, posinf=FAR).mean()),
                "ess": float(np.nan_to_num(divergence.ess).mean()),
                "overlap": float(np.nan_to_num(weights).mean()),
            }
        return found

    def _inputs(self, unroll: Unroll) -> tuple[Array, Bools | None]:
        """Observations [T+1, B, …], and the rows' first steps where a recurrent state is reset there."""
        spec = self._layout.spec
        first: Bools = unroll["first"]  # type: ignore[assignment]
        if "frames" in unroll:
            observations = restack_frames(unroll["frames"], first, spec.frame_stack, spec.frame_fill)
        else:
            observations = unroll["observations"]
        return observations, first if unroll.states else None

    def _rows(self, policy: SessionPolicy, observations: Array, first: Bools | None, seconds: float) -> int:
        """How many calls last so long, at least one, after a warm-up."""
        self._replay(policy, observations, first, 2)
        return max(int(2.0 * seconds / max(self._replay(policy, observations, first, 2)[0], 1e-7)), 1)

    def _replay(
        self, policy: SessionPolicy, observations: Array, first: Bools | None, rows: int
    ) -> tuple[float, FloatArray]:
        """Seconds of ``rows`` calls, row after row and again from the first, and the last answers [rows ≤ T, B, P]."""
        length = self._layout.unroll_length
        params = np.zeros((min(rows, length), self._layout.envs, self._layout.outputs), np.float32)
        before = perf_counter()
        for row in range(rows):
            t = row % length
            starts = None if first is None or not first[t].any() else first[t]
            policy.infer(observations[t], starts, params[t])
        return perf_counter() - before, params
