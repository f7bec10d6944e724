"""One job of ``bench_inference``: real actors under mpirun, and a learner that takes unrolls and learns nothing.

An update takes one unroll of each actor and no time, and publishes another policy, so that acting is never held up by
learning. No torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from accel.bench.rows import Value
from accel.config.actor import ActorAgreement, ActorConfig
from accel.errors import LaunchError, TransportError
from accel.experience.unroll import UnrollLayout
from accel.json_object import Json
from accel.launch.learners import FORMATS
from accel.launch.roles import act
from accel.learning.handshake import wait_for_actors
from accel.supervision.processes import cpu_seconds, descendants
from accel.system.request import REQUEST, take_request, with_request
from accel.transport import Topology, TransportOptions, detect_launch, join_world, mpirun_command
from accel.transport.learners import give_roles
from accel.transport.remote_learner import RemoteLearner

_START_S = 120.0
_RECEIVE_S = 0.05
_WARM_UP_S = 0.5
_WARM_UP_UNROLLS = 4


@dataclass(frozen=True)
class ActingResult:
    """What a job's actors did in its measured seconds.

    Attributes:
        env_steps, seconds: valid steps that arrived, and in what time.
        cpu_s: CPU-seconds of all processes but the learner's; None where the system does not tell.
        lag: mean over unrolls of the versions published since the oldest step. step_lag: the same over all steps.
    """

    env_steps: int
    seconds: float
    cpu_s: float | None
    lag: float
    step_lag: float


@dataclass(frozen=True)
class ActingJob:
    """What is acted, and for how long.

    Attributes:
        config, agreement: what actors are told.
        policies: files of two policies that are published in turn; they differ in some byte.
        seconds: measured, after a warm-up.
    """

    config: Json
    agreement: Json
    policies: Sequence[str]
    seconds: float

    def run(self) -> ActingResult:
        """Start mpirun and wait for its end. Raises LaunchError: no mpirun, or the job failed."""
        config = ActorConfig.from_json(self.config)
        command = mpirun_command(1 + config.central + config.actors, exports=(REQUEST,))
        program = [sys.executable, "-P", "-m", "accel.bench.inference_job"]
        limit_s = _START_S + 10.0 * self.seconds
        # A file, as a pipe would be held open by whatever outlives mpirun.
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            try:
                subprocess.run(
                    [*command, *program], env=with_request(json.dumps(asdict(self))), stdin=subprocess.DEVNULL,
                    stdout=output, stderr=errors, timeout=limit_s, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise LaunchError(f"the benchmark's actors did not end within {limit_s:g} s") from error
            output.seek(0)
            errors.seek(0)
            found = [line for line in output if line.startswith("{")]
            if not found:  # The launcher's status is of the ranks' end, which is not what was measured.
                raise LaunchError(f"the benchmark's actors failed:\n{errors.read().strip()}")
            return ActingResult(**json.loads(found[-1]))


def _learn(job: ActingJob) -> ActingResult:
    endpoint = join_world(detect_launch())
    config, agreement = ActorConfig.from_json(job.config), ActorAgreement.from_json(job.agreement)
    topology = Topology.of(endpoint.size, 1, config.central)
    given = give_roles(endpoint, topology)
    options = TransportOptions(config.unrolls_in_flight, 2, config.actors)
    transport = RemoteLearner(endpoint, topology.groups[0], options=options, formats=FORMATS)
    try:
        transport.welcome(job.config)
        spec = wait_for_actors(transport, _START_S, lambda: None).spec
        layout = UnrollLayout(
            spec, config.unroll_length, config.envs_per_actor * spec.agents, agreement.state_shapes,
            agreement.output_size, agreement.explores, agreement.priorities is not None,
        )  # fmt: skip
        transport.welcome(job.agreement)
        transport.configure(layout.nbytes)
        receiver = _UnrollReceiver(transport, layout, [Path(file).read_bytes() for file in job.policies])
        receiver.warm_up()
        return receiver.take(job.seconds)
    finally:
        transport.close()
        del given


class _UnrollReceiver:
    """Takes unrolls, and publishes after as many as there are actors."""

    def __init__(self, transport: RemoteLearner, layout: UnrollLayout, policies: Sequence[bytes]) -> None:
        self._transport, self._layout, self._policies = transport, layout, policies
        self._unrolls = self._version = 0
        self._lags: list[tuple[float, float]] = []
        transport.publish(0, policies[0])

    def warm_up(self) -> None:
        """Until every actor has certainly acted, for a while."""
        began = time.perf_counter()
        while self._unrolls < _WARM_UP_UNROLLS * self._transport.actors or time.perf_counter() - began < _WARM_UP_S:
            self._take_one()
            if time.perf_counter() - began > _START_S:
                raise TransportError(f"{self._unrolls} unrolls arrived within {_START_S:g} s")

    def take(self, seconds: float) -> ActingResult:
        """Measure, for longer where few unrolls arrive: one of each actor is the least that says anything."""
        self._lags.clear()
        cpu_s, began, env_steps = _acting_cpu_s(), time.perf_counter(), 0
        while (elapsed_s := time.perf_counter() - began) < seconds or len(self._lags) < self._transport.actors:
            env_steps += self._take_one()
            if elapsed_s > _START_S:
                raise TransportError(f"{len(self._lags)} unrolls arrived within {_START_S:g} s")
        after_s = _acting_cpu_s()
        used_s = None if cpu_s is None or after_s is None else after_s - cpu_s
        lag, step_lag = np.mean(self._lags, axis=0).tolist() if self._lags else (0.0, 0.0)
        return ActingResult(env_steps, elapsed_s, used_s, lag, step_lag)

    def _take_one(self) -> int:
        """Environment steps of the next unroll; 0 where none came."""
        arrival = self._transport.receive(_RECEIVE_S)
        if arrival is None:
            if self._transport.dead() or not self._transport.alive():
                raise TransportError("an actor died; see its message")
            return 0
        unroll = self._layout.view(arrival.buffer)
        versions = unroll["policy_version"]
        self._lags.append((self._version - unroll.oldest_version, self._version - float(versions.mean())))
        env_steps = unroll.valid_steps
        self._transport.release(arrival)
        self._unrolls += 1
        if self._unrolls % self._transport.actors == 0:
            self._version += 1
            self._transport.publish(self._version, self._policies[self._version % len(self._policies)])
        return env_steps


def _acting_cpu_s() -> float | None:
    """CPU-seconds of everything that this rank's launcher has started, without this rank."""
    others = descendants(os.getppid()) - descendants(os.getpid()) - {os.getpid()}
    used = [cpu_seconds(pid) for pid in others]
    return sum(used) if used else None


def _main() -> int:
    info, asked = detect_launch(), take_request()
    if info.rank > 0:
        return act(info)
    found: dict[str, Value] = asdict(_learn(ActingJob(**json.loads(asked))))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
