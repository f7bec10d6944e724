"""Central inference: actors step environments, one rank runs the newest policy for all of them in batches. No torch.

An actor's policy (``CentralPolicy``) is a session whose ``run`` asks the inference rank: the inputs of one step of its
environments go there, the outputs come back. Everything else is the actor's, as with a policy of its own: sampling, μ,
exploration, priorities, unrolls, the recurrent state. So the inference rank (``InferenceServer``) keeps nothing of an
actor, and one that is replaced starts anew by itself.

The server answers whatever has arrived since its last batch in the next one; a policy that comes meanwhile acts from
the next batch on, in the middle of unrolls too: their rows name the version and scheme that chose each action.

A question is a header of words, then for each environment the policy's inputs, in the order of their names; an answer
is the same with its outputs:

    question    [rows, 0]             observations, state_0 … of each
    answer      [version, scheme]     next_state_0 …, params of each

Source: Espeholt et al. 2020 (SEED RL), arXiv:1910.06591; Babaeizadeh et al. 2017 (GA3C), arXiv:1611.06256. Deviations:
the recurrent state stays with the actor, which stores it in unrolls; a compressed policy runs on a CPU, and torch's
(``torch_policy.TorchBatcher``) on the learner's device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from accel.acting.policy import (
    Array,
    Bools,
    Floats,
    InPlaceSession,
    LoadedPolicy,
    SessionPolicy,
    Tensors,
    read_artifact,
    tensors_of,
)
from accel.acting.rules import ActionArray, Sampler
from accel.acting.supervisor import BEAT_S
from accel.compressors.runtime import PolicySession, Runtime
from accel.config.actor import ActorConfig
from accel.errors import EXIT_ABORTED, TransportError
from accel.experience.unroll import Unroll, UnrollLayout
from accel.transport.base import Bytes
from accel.transport.child_actor import ChildActor
from accel.transport.endpoint import Backoff
from accel.transport.inference import Questions
from accel.transport.remote_actor import RemoteActor

_WORDS = 2
_HEADER_BYTES = 8 * _WORDS

Row: TypeAlias = np.dtype[np.void]
"""What a message holds of one environment: a field for each tensor."""


def row_of(tensors: Tensors) -> Row:
    """Of the inputs or outputs of a policy."""
    return np.dtype([(name, *tensors[name]) for name in sorted(tensors)], align=True)


def message_bytes(row: Row, rows: int) -> int:
    """Bytes of a message of so many rows."""
    return _HEADER_BYTES + rows * row.itemsize


def open_message(message: Bytes, row: Row, rows: int) -> tuple[Array, dict[str, Array]]:
    """The header and the tensors [rows, …] of a message. Raises TransportError: it is for another policy."""
    if message.nbytes != message_bytes(row, rows):
        raise TransportError(
            f"a message of {message.nbytes} bytes for inference on {rows} environments, not of "
            f"{message_bytes(row, rows)}: the two ends have other policies"
        )
    found = message[_HEADER_BYTES:].view(row)
    return message[:_HEADER_BYTES].view(np.int64), {name: found[name] for name in row.names or ()}


class CentralPolicy(SessionPolicy):
    """Acts with the policy that the inference rank has at each step.

    Args:
        timeout_s: how long an answer may take; the first one includes the learner's preparation.
    """

    def __init__(self, layout: UnrollLayout, sampler: Sampler, transport: ChildActor, timeout_s: float) -> None:
        super().__init__(layout, sampler)
        self._transport, self._timeout_s, rows = transport, timeout_s, layout.envs
        question, answer = map(row_of, tensors_of(layout))
        buffers = transport.open_inference(message_bytes(question, rows), message_bytes(answer, rows))
        self.inputs: Mapping[str, Array]
        self.outputs: Mapping[str, Array]
        header, self.inputs = open_message(buffers[0], question, rows)
        header[...] = rows, 0
        self._source, self.outputs = open_message(buffers[1], answer, rows)
        self._sources = np.zeros((layout.unroll_length, _WORDS), np.int64)
        self._use(self)

    def run(self) -> None:
        """Ask; see ``InPlaceSession.run``. Raises Stopped, TransportError."""
        self._transport.ask(self._timeout_s)

    def act(self, observations: Array, first: Bools | None, t: int, actions: ActionArray, params: Floats) -> None:
        """See ``SessionPolicy.act``."""
        super().act(observations, first, t, actions, params)
        self._sources[t] = self._source

    def sign(self, unroll: Unroll) -> None:
        """See ``SessionPolicy.sign``."""
        unroll["policy_version"][...] = self._sources[:, :1]
        unroll["scheme_id"][...] = self._sources[:, 1:]


class InferenceServer:
    """Runs the newest policy, which its transport brings, for a learner's actors.

    Args:
        pin: binds this process to its core. make: what answers with the policies of a run.
    """

    def __init__(
        self,
        transport: RemoteActor,
        questions: Questions,
        pin: Callable[[], object],
        make: Callable[[ActorConfig], PolicyBatcher],
    ) -> None:
        self._transport, self._questions, self._pin, self._make = transport, questions, pin, make
        self._batcher: PolicyBatcher | None = None

    def serve(self) -> int:
        """Answer until the learner stops this rank; returns the exit status.

        Raises:
            TransportError: the learner is gone, or a question is no actor's. CompressorError: the first policy does not
                load here.
        """
        asked: list[tuple[int, Bytes]] = []
        backoff, beat_s = Backoff(None), 0.0
        while not self._transport.stopping:
            self._hear_learner()
            asked += self._questions.receive()
            if self._batcher is not None and time.monotonic() >= beat_s:
                beat_s = time.monotonic() + BEAT_S
                self._transport.beat()
            if asked and self._batcher is not None and self._batcher.version >= 0:
                for rank, answer in self._batcher.answer(asked):
                    self._questions.answer(rank, answer)
                asked.clear()
                backoff = Backoff(None)
            else:
                backoff.pause()
        return EXIT_ABORTED if self._transport.aborted else 0

    def _hear_learner(self) -> None:
        self._transport.pump()
        if not self._transport.has_news:
            return
        while (message := self._transport.poll_welcome()) is not None:
            if self._batcher is None:
                config = ActorConfig.from_json(message)
                self._batcher = self._make(config)
                if config.pin_cores:
                    self._pin()
        if (update := self._transport.pull()) is not None and self._batcher is not None:
            self._batcher.load_or_keep(update, "inference", self._transport.report)


class PolicyBatcher(LoadedPolicy):
    """The newest policy, applied to the questions of many actors at once; answers name schemes by their place."""

    def __init__(self, schemes: tuple[str, ...], runtime: Runtime = "native") -> None:
        self._schemes, self._wanted_runtime = schemes, runtime
        self._scheme_id = 0
        self._sessions: dict[int, InPlaceSession] = {}
        self._answers: dict[int, Bytes] = {}

    def _take(self, payload: bytes) -> float:
        artifact, deserialise_s = read_artifact(payload)
        session = PolicySession(artifact, batch=1, runtime=self._wanted_runtime)
        self._scheme_id = self._schemes.index(artifact.scheme)
        self._question, self._answer = (
            row_of({spec.name: (spec.dtype, spec.with_batch(1)[1:]) for spec in specs})
            for specs in (artifact.inputs, artifact.outputs)
        )
        self._first, self._sessions = session, {1: session}
        self.scheme, self.runtime = artifact.scheme, session.ran_on
        return deserialise_s

    def _session(self, rows: int) -> InPlaceSession:
        """The newest policy for at least so many rows."""
        if rows not in self._sessions:
            self._sessions[rows] = self._first.with_batch(rows)
        return self._sessions[rows]

    def answer(self, asked: list[tuple[int, Bytes]]) -> list[tuple[int, Bytes]]:
        """(rank, answer) to each (rank, question); an answer's buffer is that rank's until it asks again.

        Raises:
            TransportError: a question is for another policy. ArtifactError: the policy fails on this batch.
        """
        rows = [_rows(question) for _, question in asked]
        session, start = self._session(sum(rows)), 0
        for (_, question), count in zip(asked, rows, strict=True):
            for name, tensor in open_message(question, self._question, count)[1].items():
                session.inputs[name][start : start + count] = tensor
            start += count
        session.run()
        start, found = 0, []
        for (rank, _), count in zip(asked, rows, strict=True):
            nbytes = message_bytes(self._answer, count)
            if rank not in self._answers or self._answers[rank].nbytes != nbytes:
                self._answers[rank] = np.zeros(nbytes, np.uint8)
            header, tensors = open_message(self._answers[rank], self._answer, count)
            header[...] = self.version, self._scheme_id
            for name, tensor in tensors.items():
                tensor[...] = session.outputs[name][start : start + count]
            start += count
            found.append((rank, self._answers[rank]))
        return found


def _rows(question: Bytes) -> int:
    if question.nbytes < _HEADER_BYTES:
        raise TransportError(f"a question of {question.nbytes} bytes for inference has no header")
    return int(question[:8].view(np.int64)[0])
