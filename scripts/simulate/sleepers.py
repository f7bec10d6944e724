"""Is the simulation right about many actors? Ranks that sleep for as long as an unroll or an update would take.

    python scripts/simulate/sleepers.py       a minute or two; writes results/simulate/sleepers.json

One learner and up to 40 actors on this machine, over the transport itself, with relays. They take no processor to speak
of, so that ranks without a core of their own do not wait for one: what is tested is who waits for whom, and the age of
policies, not what anything costs. Beside each, what ``pipeline.py`` predicts from the same times.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from pipeline import Costs, Setting, simulate  # noqa: E402

from accel.bench.rows import provenance  # noqa: E402
from accel.system.signals import end_with_parent  # noqa: E402
from accel.transport import (  # noqa: E402
    Stopped,
    Topology,
    TransportOptions,
    detect_launch,
    join_world,
    mpirun_command,
)  # fmt: skip
from accel.transport.endpoint import Endpoint  # noqa: E402
from accel.transport.remote_actor import RemoteActor  # noqa: E402
from accel.transport.remote_learner import RemoteLearner  # noqa: E402

OUT = PROJECT / "results" / "simulate" / "sleepers.json"
UNROLL_BYTES, POLICY_BYTES = 85_376, 540_000
LOOK_S, TAKE_S, RELAY_S = 2e-3, 50e-6, 5e-3
MEASURED_S = 9.0


@dataclass(frozen=True)
class Case:
    """Sleeps: ``unroll_s`` of an actor, ``update_s`` of the learner for each unroll of a batch."""

    actors: int
    unroll_s: float = 0.25
    update_s: float = 0.025
    batch_unrolls: int = 8
    publish_interval: int = 1


CASES = (
    Case(1, batch_unrolls=1),
    Case(4, batch_unrolls=4),
    Case(10),
    Case(40),
    Case(40, publish_interval=4),
    Case(40, update_s=0.004),
)


def main() -> None:
    """Measure every case, and predict it."""
    if detect_launch().is_launched:
        play(Case(**json.loads(sys.argv[1])))
        return
    rows = []
    for case in CASES:
        command = [*mpirun_command(case.actors + 1), sys.executable, __file__, json.dumps(asdict(case))]
        done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=True)
        (measured,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = predict(case)
        ratio = found["unrolls_per_s"] / measured["unrolls_per_s"]
        print(case, measured, found, f"{ratio:.2f}", flush=True)
        rows.append({"case": asdict(case), "measured": measured, "predicted": found, "ratio": ratio})
    OUT.write_text(json.dumps({"made": provenance(), "rows": rows}, indent=1) + "\n")


def predict(case: Case) -> dict[str, float]:
    """The simulation's answer."""
    costs = Costs(case.unroll_s, 0.0, TAKE_S, case.update_s, 0.0, 0.0, 0.0, 0.0, 1.0, relay_s=RELAY_S)
    setting = Setting(case.actors, case.batch_unrolls, case.publish_interval, receivers=1)
    found = simulate(costs, setting, 2000)
    return {"unrolls_per_s": found.env_steps_per_s, "lag": found.lag, "learner_wait": found.learner_wait}


def play(case: Case) -> None:
    """One rank."""
    end_with_parent(9)
    endpoint = join_world(detect_launch(), 300.0)
    if endpoint.rank == 0:
        learn(endpoint, case)
    else:
        act(endpoint, case)


def learn(endpoint: Endpoint, case: Case) -> None:
    """Takes batches, sleeps, publishes; counts once a quarter of the time is over."""
    options = TransportOptions(max_held=case.batch_unrolls + 1, prefetch=case.batch_unrolls)
    transport = RemoteLearner(endpoint, Topology.single_learner(endpoint.size).groups[0], options=options)
    transport.welcome({})
    heard = 0
    while heard < transport.actors:
        heard += len(transport.messages())
        time.sleep(1e-3)
    transport.configure(UNROLL_BYTES)
    policy = bytearray(POLICY_BYTES)
    transport.publish(0, {"int8": bytes(policy)})
    updates, unrolls, waited_s, lags = 0, 0, 0.0, list[int]()
    began_s = since_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + MEASURED_S * 4 / 3:
        if since_s == began_s and now_s > began_s + MEASURED_S / 3:
            since_s, unrolls, waited_s, lags = now_s, 0, 0.0, []
        for _ in range(case.batch_unrolls):
            arrival = transport.receive(60.0)
            if arrival is None:
                raise TimeoutError("no unroll came")
            lags.append(updates - int(arrival.buffer[:8].view(np.int64)[0]))
            transport.release(arrival)
        waited_s += time.monotonic() - now_s
        time.sleep(case.update_s * case.batch_unrolls)
        updates, unrolls = updates + 1, unrolls + case.batch_unrolls
        if updates % case.publish_interval == 0:
            policy[:8] = updates.to_bytes(8, "little")
            transport.publish(updates, {"int8": bytes(policy)})
    seconds = time.monotonic() - since_s
    row = {"unrolls_per_s": unrolls / seconds, "lag": float(np.mean(lags)), "learner_wait": waited_s / seconds}
    sys.stdout.write(json.dumps(row) + "\n")
    transport.stop(60.0)
    transport.close()


def act(endpoint: Endpoint, case: Case) -> None:
    """Sleeps for an unroll with the newest policy, and sends it."""
    group = Topology.single_learner(endpoint.size).groups[0]
    transport = RemoteActor(endpoint, group, options=TransportOptions(in_flight=1))
    transport.welcome(300.0)
    transport.hello({})
    transport.configure(UNROLL_BYTES)
    rng = np.random.default_rng(endpoint.rank)
    try:
        version = transport.wait_policy(300.0).version
        sleep(transport, rng.uniform(0.0, case.unroll_s))
        for seconds in unroll_times(rng, case.unroll_s):
            buffer = transport.acquire()
            if (update := transport.pull()) is not None:
                version = update.version
            buffer[:8] = np.frombuffer(version.to_bytes(8, "little"), np.uint8)
            sleep(transport, seconds)
            transport.push(buffer)
    except Stopped:
        pass
    transport.close(60.0)


def sleep(transport: RemoteActor, seconds: float) -> None:
    """Time that passes as in an actor's rank, which looks at its transport now and then."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        transport.pump()
        time.sleep(max(min(LOOK_S, until_s - time.monotonic()), 0.0))


def unroll_times(rng: np.random.Generator, seconds: float, spread: float = Costs.spread) -> Iterator[float]:
    """As the simulation draws them."""
    deviation = math.sqrt(math.log1p(spread**2))
    while True:
        yield seconds * math.exp(deviation * rng.standard_normal() - deviation**2 / 2)


if __name__ == "__main__":
    main()
