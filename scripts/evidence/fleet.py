"""What hundreds of actors cost their learner: unrolls taken, policies given out, with and without a relay a node.

    python scripts/evidence/fleet.py --actors 50       about two minutes; more actors take longer
    python scripts/evidence/fleet.py --table --out results/evidence/fleet      the rows as a table

Starts one learner and that many light actors as ranks of one mpirun on this machine: no environment and no network,
only the transport. For every size of policy, with relays and without in turns, the learner

- calls ``receive`` with nothing pending,
- takes unrolls that actors push as fast as they are taken,
- publishes policies one at a time, each when every actor has the last,
- takes unrolls that come at a set pace, and publishes a policy every 16 of them.

Times of the learner are seconds of its processor, which it shares with the actors; how long a policy takes to reach
every actor is by the clock, and on a machine with fewer cores than ranks mostly the time until each actor has had its
turn. Adds to ``OUT/rows.json.gz``. The table has medians without the first two publications, before all follow their
relays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT)]

from accel.bench.rows import provenance  # noqa: E402
from accel.system.signals import end_with_parent  # noqa: E402
from accel.transport.base import TransportOptions  # noqa: E402
from accel.transport.join import join_world  # noqa: E402
from accel.transport.launcher import Topology, detect_launch, mpirun_command  # noqa: E402
from accel.transport.mpi import MpiEndpoint  # noqa: E402
from accel.transport.node_memory import node_name  # noqa: E402
from accel.transport.remote_actor import RemoteActor  # noqa: E402
from accel.transport.remote_learner import RemoteLearner  # noqa: E402
from scripts.evidence.samples import arguments, read_samples, write_samples  # noqa: E402

Row = dict[str, Any]
UNROLL_BYTES = 85_376
"""Of 512 steps of one HalfCheetah-v5."""
POLICY_BYTES = {
    "64×2 int8": 7_000, "64×2 fp32": 23_000, "512×3 int8": 540_000, "512×3 fp32": 2_150_000, "2048×3 int8": 8_450_000,
    "2048×3 fp32": 33_800_000,
}  # fmt: skip
MEMORY_BYTES = 14 << 30
"""Of all copies of a policy that may exist at once; larger cases are left out, and the rows say which."""
IDLE_CALLS, TAKEN = 2000, 1000
PACED_PER_S, PACED, PACED_INTERVAL = 100, 320, 16
PATIENCE_S, UNSETTLED = 120.0, 2
NOTHING, FAST, PACE = 0, 1, 2
_LOOK_S, _LOOK_S_AN_ACTOR = 2e-3, 5e-5


def main() -> None:
    """Start the ranks, and keep what the learner prints."""
    parser = arguments(__doc__, "fleet")
    parser.add_argument("--actors", type=int, default=50)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--repeats", type=int, default=5, help="publications of each size, with relays and without")
    parser.add_argument("--policies", nargs="+", default=list(POLICY_BYTES), choices=list(POLICY_BYTES))
    parser.add_argument("--node", type=int, default=16, help="actors that count as one node; 16")
    parser.add_argument("--tcp", action="store_true", help="ranks talk over TCP, as if each were on a host of its own")
    options = parser.parse_args()
    if detect_launch().is_launched:
        play(options.repeats, options.policies, options.node)
        return
    if options.table:
        print_table(read_samples(options.out / "rows.json.gz")["rows"])
        return
    words = [sys.executable, __file__, *sys.argv[1:]]
    if options.tcp:
        os.environ |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    shared = provenance() | {"cores": os.cpu_count(), "actors_a_node": options.node, "tcp": options.tcp}
    with subprocess.Popen(
        [*mpirun_command(options.actors + 1), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as job:
        for line in job.stdout or ():
            if line.startswith("{"):
                keep(json.loads(line) | shared, options.out)
    if job.returncode:
        sys.exit(job.returncode)


def keep(row: Row, directory: Path) -> None:
    """Add a row to the file."""
    file = directory / "rows.json.gz"
    write_samples(file, {"rows": [*read_samples(file).get("rows", []), row]})


def print_table(rows: list[Row]) -> None:
    """Medians, as Markdown."""
    names = ("publish_call_us", "publish_cpu_us", "half_have_it_ms", "all_have_it_ms")
    for row in rows:
        where = f"{row['actors']}{' over TCP' if row['tcp'] else ''} | {row['policy']}"
        how = "relays" if row["relays"] else "one each"
        if "left_out" in row:
            sys.stdout.write(f"| {where} | {how} | left out: {row['left_out']} |\n")
            continue
        found = [float(np.median(row[name][UNSETTLED:])) for name in names]
        found += [row[name] for name in ("idle_receive_us", "take_us", "paced_cpu_us_per_unroll")]
        sys.stdout.write(f"| {where} | {how} | {' | '.join(f'{number:,.0f}' for number in found)} |\n")


def play(repeats: int, policies: list[str], a_node: int) -> None:
    """One rank: every case in turn, over one endpoint."""
    end_with_parent(9)
    endpoint = join_world(detect_launch(), 600.0)
    actors = endpoint.size - 1
    for policy in policies:
        for relays in (True, False):
            copies = actors * (1 if relays else 2)
            if copies * POLICY_BYTES[policy] > MEMORY_BYTES:
                if endpoint.rank == 0:
                    tell(actors=actors, policy=policy, relays=relays, left_out="memory")
            elif endpoint.rank == 0:
                learn(endpoint, policy, relays, repeats)
            else:
                act(endpoint, a_node if relays else 1)


def tell(**row: object) -> None:
    """One line of results."""
    sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    sys.stderr.write(f"{row}\n")


def learn(endpoint: MpiEndpoint, policy: str, relays: bool, repeats: int) -> None:
    """The learner's case."""
    actors = endpoint.size - 1
    options = TransportOptions(max_held=4, prefetch=32)
    transport = RemoteLearner(endpoint, Topology.of(endpoint.size, 1).groups[0], options=options)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(16 * (actors + 1))
        board = np.memmap(file.name, np.int64, "r+", shape=(actors + 1, 2))
        transport.welcome({"board": file.name})
        heard = 0
        while heard < actors:
            heard += len(transport.messages())
            time.sleep(1e-3)
        transport.configure(UNROLL_BYTES)
        found = Case(transport, board, policy, repeats)
        row = found.idle() | found.published() | found.taken() | found.paced()
        tell(actors=actors, policy=policy, bytes=POLICY_BYTES[policy], relays=relays, **row)
    unfinished = transport.stop(PATIENCE_S)
    if unfinished:
        raise TimeoutError(f"actors {sorted(unfinished)} did not stop")
    transport.close()


class Case:
    """What is measured with one transport.

    ``board`` [actors + 1, 2]: each actor's newest policy and when it came, in nanoseconds; in the last row what actors
    do: push nothing, as fast as they can, or at a pace.
    """

    def __init__(self, transport: RemoteLearner, board: np.memmap, policy: str, repeats: int) -> None:
        self._transport, self._board, self._repeats = transport, board, repeats
        self._payload = bytearray(os.urandom(1 << 16) * (POLICY_BYTES[policy] // (1 << 16) + 1))
        del self._payload[POLICY_BYTES[policy] :]
        self._version = 0

    def idle(self) -> Row:
        """Microseconds of a ``receive`` with nothing pending."""
        time.sleep(0.2)
        self._transport.receive()
        began_s = time.process_time()
        for _ in range(IDLE_CALLS):
            self._transport.receive()
        return {"idle_receive_us": (time.process_time() - began_s) / IDLE_CALLS * 1e6}

    def published(self) -> Row:
        """Publications one at a time: the first, before anyone follows a relay, apart."""
        rows = [self._publish() for _ in range(self._repeats + 2)]
        return {name: [round(row[name], 3) for row in rows] for name in rows[0]}

    def _publish(self) -> dict[str, float]:
        self._version += 1
        self._payload[:8] = self._version.to_bytes(8, "little")
        payload = bytes(self._payload)
        before_s, began_ns = time.process_time(), time.monotonic_ns()
        self._transport.publish(self._version, payload)
        posted_s, until_s = time.process_time(), time.monotonic() + PATIENCE_S
        while self._board[:-1, 0].min() < self._version:
            self._transport.pump()
            time.sleep(2e-4)
            if time.monotonic() > until_s:
                missing = np.flatnonzero(self._board[:-1, 0] < self._version)
                raise TimeoutError(f"version {self._version} has not reached actors {missing.tolist()}")
        cpu_s, ms = time.process_time() - before_s, (self._board[:-1, 1] - began_ns) / 1e6
        return {
            "publish_call_us": (posted_s - before_s) * 1e6, "publish_cpu_us": cpu_s * 1e6,
            "half_have_it_ms": float(np.median(ms)), "all_have_it_ms": float(ms.max()),
        }  # fmt: skip

    def taken(self) -> Row:
        """Microseconds of the learner's processor for an unroll, when there is always one."""
        self._tell_actors(FAST)
        for _ in range(TAKEN // 4):
            self._take()
        began_s, clock_s = time.process_time(), time.monotonic()
        for _ in range(TAKEN):
            self._take()
        row = {"take_us": (time.process_time() - began_s) / TAKEN * 1e6}
        row["taken_per_s"] = TAKEN / (time.monotonic() - clock_s)
        self._tell_actors(NOTHING)
        self._drain()
        return row

    def paced(self) -> Row:
        """The share of a core that the learner takes when unrolls come at a pace, and a policy follows every few."""
        self._tell_actors(PACE)
        for _ in range(PACED // 4):
            self._take()
        began_s, clock_s = time.process_time(), time.monotonic()
        for number in range(PACED):
            self._take()
            if number % PACED_INTERVAL == 0:
                self._version += 1
                self._payload[:8] = self._version.to_bytes(8, "little")
                self._transport.publish(self._version, bytes(self._payload))
        cpu_s, wall_s = time.process_time() - began_s, time.monotonic() - clock_s
        return {"paced_cpu_us_per_unroll": cpu_s / PACED * 1e6, "paced_unrolls_per_s": PACED / wall_s}

    def _take(self) -> None:
        arrival = self._transport.receive(PATIENCE_S)
        if arrival is None:
            raise TimeoutError("no unroll came")
        self._transport.release(arrival)

    def _drain(self) -> None:
        while (arrival := self._transport.receive(0.5)) is not None:
            self._transport.release(arrival)

    def _tell_actors(self, mode: int) -> None:
        self._board[-1, 0] = mode


def act(endpoint: MpiEndpoint, a_node: int) -> None:
    """An actor's case: looks for policies, and pushes unrolls as it is told."""
    group = Topology.of(endpoint.size, 1).groups[0]
    node = f"{node_name()} {(endpoint.rank - 1) // a_node}"
    transport = RemoteActor(endpoint, group, node=node)
    actors = endpoint.size - 1
    while (welcome := transport.poll_welcome()) is None:
        time.sleep(_LOOK_S)
    name = str(welcome["board"])
    board = np.memmap(name, np.int64, "r+", shape=(actors + 1, 2))
    transport.hello({})
    transport.share([np.zeros(UNROLL_BYTES, np.uint8) for _ in range(2)])
    for _ in turns(transport, board, actors):
        pass
    transport.close(PATIENCE_S)


def turns(transport: RemoteActor, board: np.memmap, actors: int) -> Iterator[None]:
    """Looks, until the learner stops this actor."""
    due_s, pause_s = 0.0, _LOOK_S + actors * _LOOK_S_AN_ACTOR
    while not transport.stopping:
        if (update := transport.pull()) is not None:
            board[transport.actor] = update.version, time.monotonic_ns()
            del update
        mode = board[-1, 0]
        if mode == FAST or (mode == PACE and time.monotonic() >= due_s):
            buffer = transport.try_acquire()
            if buffer is not None:
                due_s = max(due_s, time.monotonic() - 1.0) + actors / PACED_PER_S
                transport.push(buffer)
        time.sleep(pause_s)
        yield


if __name__ == "__main__":
    main()
