"""An actor whose environments are shared out among several compression levels, and which times levels. No torch.

What an actor is assigned is one text, which the transport carries as the scheme:

    int8                  every environment; the payload is the artifact
    int8:6;fp32:2         the first six act with int8, the others with fp32
    fp32:8;int8:0         all act with fp32; int8 is timed on this machine, once, and never acts

The payload of a shared assignment holds its artifacts one after the other, each behind its length. Sharing costs one
more call a step, so it lasts only as long as a comparison does.

A change of level takes effect between two unrolls, in the middle of episodes. A recurrent state then goes on as it is:
all levels keep it in the full policy's own shape, a pruned one with zeros where its units are gone. What was recorded
stays exact, as each unroll starts with the state that acted and holds the level's own log-probabilities; but until the
episode ends the state is not one that the new level would have come to. So that this judges no level, an episode that
saw two of them is left out of their returns.

Waiting for every environment's next episode instead would keep two sessions and an old policy in use for as long as the
longest episode lasts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

from accel.acting.policy import Array, Bools, Floats, SessionPolicy
from accel.acting.rules import ActionArray, Sampler
from accel.experience.unroll import UnrollLayout
from accel.json_object import Json
from accel.transport.base import PolicyUpdate
from compressors.artifact import CompressedPolicy
from compressors.errors import ArtifactError
from compressors.runtime import PolicySession

Assignment = tuple[tuple[str, int], ...]

_LENGTH = struct.Struct("<Q")
MEASURE_S = 0.02
"""Most seconds spent on timing one level."""
_ROUNDS = 5


def assignment_text(assignment: Assignment) -> str:
    """The text of an assignment; a single level's is its own name."""
    if len(assignment) == 1:
        return assignment[0][0]
    return ";".join(f"{level}:{envs}" for level, envs in assignment)


def parse_assignment(text: str, envs: int) -> Assignment:
    """Inverse of ``assignment_text`` for an actor of so many environments. Raises ArtifactError."""
    if ":" not in text:
        return ((text, envs),)
    parts = [part.rpartition(":") for part in text.split(";")]
    if not all(count.isdigit() for _, _, count in parts) or sum(int(count) for _, _, count in parts) != envs:
        raise ArtifactError(f"assignment {text!r} does not share out {envs} environments")
    return tuple((level, int(count)) for level, _, count in parts)


def join_payloads(assignment: Assignment, payloads: Mapping[str, bytes]) -> bytes:
    """What travels for an assignment: one level's payload as it is, several behind their lengths."""
    if len(assignment) == 1:
        return payloads[assignment[0][0]]
    parts = [payloads[level] for level, _ in assignment]
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def split_payload(assignment: Assignment, payload: bytes) -> list[memoryview]:
    """Inverse of ``join_payloads``. Raises ArtifactError when the lengths are not those of the assignment."""
    rest = memoryview(payload)
    if len(assignment) == 1:
        return [rest]
    parts = []
    for _ in assignment:
        size = _LENGTH.unpack_from(rest)[0] if len(rest) >= _LENGTH.size else len(rest)
        if len(rest) < _LENGTH.size + size:
            raise ArtifactError(f"a payload for {assignment_text(assignment)!r} is cut short")
        parts.append(rest[_LENGTH.size : _LENGTH.size + size])
        rest = rest[_LENGTH.size + size :]
    if len(rest):
        raise ArtifactError(f"a payload for {assignment_text(assignment)!r} is followed by {len(rest)} bytes too many")
    return parts


class SharedPolicy:
    """Acts with one session for each level that has environments.

    Args:
        layout, sampler: as for ``SessionPolicy``.
        report: takes ``{"timed": {level: [policy_us, load_us]}}`` after levels were timed.
    """

    def __init__(self, layout: UnrollLayout, sampler: Sampler, report: Callable[[Json], None]) -> None:
        self.version = -1
        self.scheme = ""
        self._layout = layout
        self._envs = layout.envs
        self._sampler = sampler
        self._report = report
        self._text = ""
        self._parts: list[tuple[slice, SessionPolicy]] = []

    def load(self, update: PolicyUpdate) -> float:
        """Take a newer assignment or newer policies for the same one; on any error everything old stays.

        Returns:
            Seconds that reading the payloads took.
        Raises:
            ArtifactError: the assignment is not for this actor, or one of its policies does not load here.
        """
        deserialise_s = 0.0
        if update.payload is not None:
            assignment = parse_assignment(update.scheme, self._envs)
            payloads = split_payload(assignment, update.payload)
            parts, deserialise_s = self._load_parts(update.version, assignment, payloads)
            if len(assignment) > 1 and update.scheme != self._text and any(envs == 0 for _, envs in assignment):
                levels = [level for level, _ in assignment]
                self._report({"timed": time_levels([bytes(part) for part in payloads], levels, self._envs)})
            self._parts = parts
            self._text = update.scheme
        self.version = update.version
        self.scheme = ";".join(dict.fromkeys(policy.scheme for _, policy in self._parts))
        return deserialise_s

    def scheme_ids(self, schemes: Sequence[str]) -> int | npt.NDArray[np.int16]:
        """The acting schemes' places in ``schemes``: one for all environments, or [B]."""
        if len(self._parts) == 1:
            return schemes.index(self._parts[0][1].scheme)
        ids = np.empty(self._envs, np.int16)
        for rows, policy in self._parts:
            ids[rows] = schemes.index(policy.scheme)
        return ids

    def act(self, observations: Array, first: Bools | None, t: int, actions: ActionArray, params: Floats) -> None:
        """See ``ActingPolicy.act``."""
        for rows, policy in self._parts:
            policy.infer(observations[rows], None if first is None else first[rows], params[rows])
        self._sampler.sample(params, t, actions)

    def states(self) -> tuple[Floats, ...]:
        """The recurrent state [B, *shape] before the next ``act``."""
        if len(self._parts) == 1:
            return self._parts[0][1].states()
        parts = [policy.states() for _, policy in self._parts]
        if not parts:
            return tuple(np.zeros((self._envs, *shape), np.float32) for shape in self._layout.state_shapes)
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

    def _load_parts(
        self, version: int, assignment: Assignment, payloads: Sequence[memoryview]
    ) -> tuple[list[tuple[slice, SessionPolicy]], float]:
        """New sessions that go on from the present recurrent state, and the seconds that reading took."""
        states = self.states()
        parts = []
        deserialise_s = 0.0
        start = 0
        for (level, envs), payload in zip(assignment, payloads, strict=True):
            if envs == 0:
                continue
            rows = slice(start, start + envs)
            policy = SessionPolicy(self._layout, self._sampler, envs)
            for target, source in zip(policy.states(), states, strict=True):
                target[...] = source[rows]
            deserialise_s += policy.load(PolicyUpdate(version, level, bytes(payload)))
            parts.append((rows, policy))
            start += envs
        return parts, deserialise_s


def time_levels(payloads: Sequence[bytes], levels: Sequence[str], envs: int) -> dict[str, list[float]]:
    """Microseconds of a policy call on all environments and of loading, medians over rounds that take levels in turns.

    A payload that stands in for its level's is left out: it says so itself.
    """
    sessions: dict[str, PolicySession] = {}
    load_us: dict[str, list[float]] = {}
    call_us: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for level, payload in zip(levels, payloads, strict=True):
            started = perf_counter()
            artifact = CompressedPolicy.from_bytes(payload)
            if artifact.scheme != level:
                continue
            session = sessions[level] = PolicySession(artifact, batch=envs)
            load_us.setdefault(level, []).append((perf_counter() - started) * 1e6)
            session.run()
            ends = perf_counter() + MEASURE_S / _ROUNDS
            while True:
                started = perf_counter()
                session.run()
                now = perf_counter()
                call_us.setdefault(level, []).append((now - started) * 1e6)
                if now >= ends:
                    break
    return {level: [median(call_us[level]), median(load_us[level])] for level in sessions}
