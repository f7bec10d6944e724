"""Latency and throughput of unrolls and policies between one actor and the learner.

Both ends are on one machine, so one monotonic clock stamps sending and receiving, and no round trip is halved. Over MPI
they are two ranks, started with mpirun unless the caller is a rank already; locally they are two threads.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from accel.bench.checks import check_counts
from accel.bench.rows import Row, provenance, spread
from accel.bench.timing import CoreShare
from accel.errors import ConfigError, LaunchError, TransportError
from accel.transport import (
    ActorTransport,
    LearnerTransport,
    LocalTransport,
    Stopped,
    Topology,
    connect,
    detect_launch,
    join_world,
    mpirun_command,
)
from accel.transport.remote_learner import RemoteLearner

Samples = dict[str, list[float]]

_STAMPS = struct.Struct("<qq")
_TIMEOUT_S = 30.0
_JOB_TIMEOUT_S = 120.0
_WARM_UP = 5
_IDLE_CALLS = 100
_STREAMED = 8
_CORES = 2


def bench_transport(
    sizes: Sequence[int] = (65536, 1 << 20), repeats: int = 50, carriers: Sequence[str] = ("local", "mpi")
) -> list[Row]:
    """Time transfers of several sizes over several carriers, between one actor and one learner on this machine.

    Args:
        sizes: bytes of an unroll and of a policy, each at least 16.
        repeats: timed transfers of each size, after five of warm-up.
        carriers: ``local`` (threads of this process) and ``mpi`` (ranks). Within a launch of two ranks both call this,
            with ``mpi`` only; the learner gets the rows, the actor none.
    Returns:
        Flat rows: ``carrier``, ``direction``, ``bytes``; ``us``, ``us_low``, ``us_high`` (median, 10th and 90th
        percentile, microseconds) and ``mb_per_s`` (bytes / median; None on ``local``, which copies nothing);
        ``cpu_share``, this process's lowest share of two cores before and after each carrier. Directions: ``policy``
        from publish() until the actor has it, ``unroll`` from push() until the learner has it, ``round trip`` both,
        ``unroll stream`` between two arrivals when the actor only pushes, ``idle receive`` and ``idle pump`` one call
        with nothing pending (0 bytes).
    Raises:
        LaunchError: no mpirun, or its job failed. TransportError: a size too small, an unknown carrier.
        ConfigError: an empty list, a number that is not positive.
    """
    check_counts(sizes, "size")
    check_counts((repeats,), "repeats")
    if not carriers:
        raise ConfigError("no carrier is given: name at least one")
    if min(sizes) < _STAMPS.size:
        raise TransportError(f"sizes must be at least {_STAMPS.size} bytes, got {min(sizes)}")
    benches: dict[str, Callable[[Sequence[int], int], list[Row]]] = {"local": _bench_local, "mpi": _bench_mpi}
    unknown = sorted(set(carriers) - set(benches))
    if unknown:
        raise TransportError(f"unknown carriers {unknown}; there are {sorted(benches)}")
    rows: list[Row] = []
    share = CoreShare(1 if detect_launch().is_launched else _CORES)
    share.probe()
    for carrier in carriers:
        rows += [_of_carrier(carrier, row) for row in benches[carrier](sizes, repeats)]
        share.probe()
    shared: Row = provenance() if rows else {}
    return [row | shared | {"cpu_share": share.least} for row in rows]


def _of_carrier(carrier: str, row: Row) -> Row:
    """A row of one carrier; bytes that are not copied have no speed."""
    return {"carrier": carrier, **row} | ({"mb_per_s": None} if carrier == "local" or not row["bytes"] else {})


def _bench_local(sizes: Sequence[int], repeats: int) -> list[Row]:
    rows: list[Row] = []
    for size in sizes:
        transport = LocalTransport(1, threaded=True)
        actor = threading.Thread(target=_act, args=(transport.actor(0),))
        actor.start()
        try:
            rows += _learn(transport.learner, size, repeats)
        finally:
            transport.learner.close()
            actor.join(_TIMEOUT_S)
    return rows


def _bench_mpi(sizes: Sequence[int], repeats: int) -> list[Row]:
    if detect_launch().is_launched:
        return _bench_rank(sizes, repeats)
    program = [
        sys.executable,
        "-P",
        "-m",
        "accel.bench.transport",
        json.dumps({"sizes": list(sizes), "repeats": repeats}),
    ]
    try:
        done = subprocess.run(
            [*mpirun_command(2), *program],
            capture_output=True,
            text=True,
            timeout=_JOB_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"the benchmark's two ranks did not end within {_JOB_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise LaunchError(f"the benchmark's two ranks failed:\n{done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _bench_rank(sizes: Sequence[int], repeats: int) -> list[Row]:
    endpoint = join_world(detect_launch())
    topology = Topology.single_learner(endpoint.size)
    if endpoint.size != 2:
        raise LaunchError(f"the transport benchmark takes two ranks, not {endpoint.size}")
    rows: list[Row] = []
    for size in sizes:
        transport = connect(endpoint, topology)
        try:
            if isinstance(transport, RemoteLearner):
                rows += _learn(transport, size, repeats)
            else:
                _act(transport)
        finally:
            transport.close()
    return rows


def _learn(transport: LearnerTransport, size: int, repeats: int) -> list[Row]:
    """The learner's side: idle calls, then round trips, then a stream of unrolls."""
    transport.welcome({"bytes": size, "round_trips": repeats + _WARM_UP})
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not transport.messages():
        time.sleep(1e-3)
        if time.monotonic() > deadline_s:
            raise TransportError(f"the actor did not answer within {_TIMEOUT_S:g} s")
    transport.configure(size)
    time.sleep(0.01)
    samples: Samples = {
        "idle receive": _time_calls(transport.receive),
        "idle pump": _time_calls(transport.pump),
        **_round_trips(transport, size, repeats),
        "unroll stream": _stream(transport, repeats),
    }
    transport.stop()
    return [_row(direction, 0 if "idle" in direction else size, times_us) for direction, times_us in samples.items()]


def _round_trips(transport: LearnerTransport, size: int, repeats: int) -> Samples:
    samples: Samples = {"policy": [], "unroll": [], "round trip": []}
    payload = bytearray(size)
    for number in range(-_WARM_UP, repeats):
        _STAMPS.pack_into(payload, 0, number, 0)  # Unique: an unchanged payload would not be sent.
        encoded = bytes(payload)
        published_ns = time.monotonic_ns()
        transport.publish(number + _WARM_UP, {"fp32": encoded})
        arrival = transport.receive(_TIMEOUT_S)
        arrived_ns = time.monotonic_ns()
        if arrival is None:
            raise TransportError(f"no unroll came back within {_TIMEOUT_S:g} s")
        got_policy_ns, pushed_ns = _STAMPS.unpack_from(arrival.buffer.data)
        transport.release(arrival)
        if number >= 0:
            samples["policy"].append((got_policy_ns - published_ns) / 1e3)
            samples["unroll"].append((arrived_ns - pushed_ns) / 1e3)
            samples["round trip"].append((arrived_ns - published_ns) / 1e3)
    return samples


def _stream(transport: LearnerTransport, repeats: int) -> list[float]:
    """Microseconds per unroll, averaged over a few at a time."""
    times_us: list[float] = []
    for number in range(-1, repeats):
        began_ns = time.monotonic_ns()
        for _ in range(_STREAMED):
            arrival = transport.receive(_TIMEOUT_S)
            if arrival is None:
                raise TransportError(f"no unroll of the stream arrived within {_TIMEOUT_S:g} s")
            transport.release(arrival)
        if number >= 0:
            times_us.append((time.monotonic_ns() - began_ns) / 1e3 / _STREAMED)
    return times_us


def _act(transport: ActorTransport) -> None:
    """The actor's side: one unroll in reply to each policy, then unrolls until the learner stops."""
    config = transport.welcome(_TIMEOUT_S)
    transport.hello({})
    transport.configure(int(str(config["bytes"])))
    try:
        for _ in range(int(str(config["round_trips"]))):
            buffer = transport.acquire()
            transport.wait_policy(_TIMEOUT_S)
            got_policy_ns = time.monotonic_ns()
            _STAMPS.pack_into(buffer.data, 0, got_policy_ns, time.monotonic_ns())
            transport.push(buffer)
            transport.pump()
        while True:
            transport.push(transport.acquire())
    except Stopped:
        pass
    finally:
        transport.close()


def _time_calls(call: Callable[[], object]) -> list[float]:
    times_us: list[float] = []
    for _ in range(_IDLE_CALLS):
        began_ns = time.perf_counter_ns()
        call()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return times_us


def _row(direction: str, size: int, times_us: Sequence[float]) -> Row:
    speed: Row = {"mb_per_s": size / float(np.median(times_us)), "samples": len(times_us)}
    row: Row = {"direction": direction, "bytes": size}
    return row | spread("us", times_us) | speed


def _main() -> None:
    """One rank of the job that ``bench_transport`` starts; prints rows as lines of JSON."""
    options = json.loads(sys.argv[1])
    for row in _bench_rank(options["sizes"], options["repeats"]):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
