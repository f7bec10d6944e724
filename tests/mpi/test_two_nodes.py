"""Faults of a cluster, on two nodes that are namespaces of this machine: see ``scripts/two_nodes``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel.supervision.processes import is_running
from tests.contracts.ranks import need_mpirun
from tests.mpi.training_runs import ENDLESS, TrainingRun, rank_of
from tests.mpi.two_nodes import ADDRESSES, SCRIPT, Nodes, NoNodesError

SILENCE = "25"  # Seconds after which a rank counts as dead.


def train(nodes: Nodes, results_dir: Path, *more: str) -> TrainingRun:
    """A run over both nodes that ends when it is told to: a learner and an actor on node a, two actors on node b."""
    words = ("--hosts", f"{ADDRESSES[0]}:2,{ADDRESSES[1]}:2", "--actors", "3", *ENDLESS)
    return nodes.train(results_dir, *words, "--checkpoint-interval-s", "0.2", "--peer-timeout-s", SILENCE, *more)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    need_mpirun()
    try:
        made = Nodes(tmp_path / "nodes")
    except NoNodesError as reason:
        pytest.skip(str(reason))
    yield made
    made.down()


def alive(job: TrainingRun) -> int:
    return int(job.records()[-1]["actors_alive"])


def steps_come_from_two(job: TrainingRun) -> bool:
    """Whether at least two of three actors brought steps in the last window of five seconds."""
    return float(job.records()[-1].get("actor_steps_per_s_median", 0.0)) > 0.0


def test_a_remote_actor_is_killed_and_the_link_is_down_for_ten_seconds(nodes: Nodes, tmp_path: Path) -> None:
    """The run goes on without the first, and with all others; one that was silent for too long starts anew."""
    with train(nodes, tmp_path) as job:
        job.wait_for_records(2)
        os.kill(nodes.processes("b", "accel.launch.rank")[0], signal.SIGKILL)
        job.wait_for(lambda: alive(job) == 2, "noticing the dead actor")
        nodes.do("unplug")
        time.sleep(10.0)
        nodes.do("plug")
        # TCP tries again only seconds later: until then the actor is silent, and a run that ended would call it dead.
        job.wait_for(lambda: steps_come_from_two(job), "steps of the other one behind the link")
        job.wait_for(lambda: alive(job) == 2, "having the other one behind the link back")
        job.stop()
        assert job.summary().dead_actors == 1 and job.summary().reason == "stopped on request"
        assert "did not stop" not in job.output
        assert "ranks of 2 hosts listen for each other on the network" in job.output
        assert nodes.is_quiet("a") and nodes.is_quiet("b")


def test_actors_of_a_node_share_policies_and_go_on_without_the_one_that_relays_them(
    nodes: Nodes, tmp_path: Path
) -> None:
    """With the default algorithm, whose rounds wait for every actor to have the next policy."""
    words = ("--algorithm", "dppo", "--passes", "1", "--minibatches", "1")
    with train(nodes, tmp_path, *words) as job:
        job.wait_for_records(2)
        ranks = {node: {rank_of(pid): pid for pid in nodes.processes(node, "accel.launch.rank")} for node in "ab"}
        relay, follower = (pid for _, pid in sorted(ranks["b"].items(), key=lambda item: item[0] or 0))
        job.wait_for(lambda: memories(relay) & memories(follower), "sharing memory on node b")
        alone = max((rank or 0, pid) for rank, pid in ranks["a"].items())[1]
        assert not memories(alone) & memories(relay)
        os.kill(relay, signal.SIGKILL)
        job.wait_for(lambda: alive(job) == 2, "noticing the dead actor")
        updates = job.records()[-1]["updates"]
        job.wait_for(lambda: job.records()[-1]["updates"] > updates + 3, "rounds without it")
        job.stop()
        assert job.summary().dead_actors == 1
        assert nodes.is_quiet("a") and nodes.is_quiet("b")


def memories(pid: int) -> set[int]:
    """Files of memory that a process has open."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(file).startswith("/memfd:accel"):
            found.add(file.stat().st_ino)
    return found


@pytest.mark.long
def test_actors_behind_a_link_that_comes_back_start_anew(nodes: Nodes, tmp_path: Path) -> None:
    """They are ignored while they are silent: what they sent meanwhile is from another time."""
    with train(nodes, tmp_path) as job:
        job.wait_for_records(2)
        nodes.do("unplug")
        job.wait_for(lambda: "actor 2 gives no sign of life" in job.output, "noticing the silence")
        job.wait_for(lambda: alive(job) == 1, "counting the silent ones out")
        nodes.do("plug")
        job.wait_for(lambda: alive(job) == 3, "having all actors back")
        assert "actor 1 is heard again, and starts anew" in job.output
        job.wait_for_records(2)
        job.stop()
        assert job.summary().dead_actors == 0 and job.summary().actor_restarts == 2
        assert nodes.is_quiet("a") and nodes.is_quiet("b")


@pytest.mark.long
def test_the_link_is_down_for_good(nodes: Nodes, tmp_path: Path) -> None:
    """The run goes on with the actors on this side, and the others end by themselves."""
    with train(nodes, tmp_path) as job:
        job.wait_for_records(2)
        nodes.do("unplug")
        job.wait_for(lambda: alive(job) == 1, "noticing that both actors are silent")
        job.wait_for(lambda: not nodes.processes("b", "accel.launch.rank"), "ending on the other side")
        job.stop()
        assert job.summary().dead_actors == 2 and job.summary().reason == "stopped on request"
        assert nodes.is_quiet("a")


def test_a_node_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    """Open MPI's launcher ends the job, with an exit status of its choice; the command says how to go on.

    The run goes on on the node that is left, with all actors; a later part would be on both again.
    """
    with train(nodes, tmp_path) as job:
        job.wait_for_records(2)
        job.wait_for(job.checkpoints, "a checkpoint")
        nodes.do("kill", "b")
        assert job.finish() != 0, job.output
        assert f"accel train --resume {job.path}" in job.output and "Traceback" not in job.output
        assert not (job.path / "summary.json").exists() and job.checkpoints()
        assert nodes.is_quiet("a")
        kept = job.checkpoints()[-1]
    with nodes.train(tmp_path, "--resume", str(job.path)) as job:
        job.wait_for_records(2)
        assert "10.77.0.2:2 does not answer; its ranks start on the other hosts" in job.output
        assert f"going on at {kept} environment steps" in job.output and alive(job) == 3
        assert f"{ADDRESSES[1]}:2" in (job.path / "config.toml").read_text()
        job.stop()


@pytest.mark.parametrize("victim", [*(pytest.param(v, marks=pytest.mark.long) for v in ("starter", "mpirun")), "prted"])
def test_whatever_dies_nothing_is_left_on_either_node(victim: str, nodes: Nodes, tmp_path: Path) -> None:
    with train(nodes, tmp_path) as job:
        job.wait_for_records(1)
        launchers = {"mpirun": nodes.processes("a", "prterun"), "prted": nodes.processes("b", "bin/prted")}
        for pid in launchers.get(victim, [job.process.pid]):
            os.kill(pid, signal.SIGKILL)
        assert job.finish() != 0
        assert nodes.is_quiet("a") and nodes.is_quiet("b")


def test_each_node_has_a_learner_and_its_actor_and_one_learner_dies(nodes: Nodes, tmp_path: Path) -> None:
    """Learners find each other over the cable, and noise on their ports disturbs nothing; the job ends with a
    checkpoint, soon after the one on node b."""
    with train(nodes, tmp_path, "--learners", "2", "--actors", "2") as job:
        job.wait_for_records(3)
        job.wait_for(job.checkpoints, "a checkpoint")
        ranks = {node: {rank_of(pid): pid for pid in nodes.processes(node, "accel.launch.rank")} for node in "ab"}
        assert set(ranks["a"]) - {None} == {0, 2} and set(ranks["b"]) - {None} == {1, 3}
        assert alive(job) == 2
        for node, rank, address in (("a", 0, ADDRESSES[0]), ("b", 1, ADDRESSES[1])):
            seen = nodes.do("run", node, "ss", "-Hlntp").splitlines()
            places = [line.split()[3] for line in seen if f"pid={ranks[node][rank]}," in line]
            # Open MPI's own listen on all addresses
            ours = [place for place in places if not place.startswith(("0.0.0.0:", "[::]:", "*:"))]
            assert ours and all(place.startswith(f"{address}:") for place in ours), seen
            for port in (place.rpartition(":")[2] for place in ours):
                noise = f"head -c 10000 /dev/urandom >/dev/tcp/{address}/{port} || true"
                nodes.do("run", "b" if node == "a" else "a", "bash", "-c", noise)
        updates = job.records()[-1]["updates"]
        job.wait_for(lambda: job.records()[-1]["updates"] > updates + 3, "learning on after noise")
        os.kill(ranks["b"][1], signal.SIGKILL)
        assert job.finish() != 0, job.output
        assert f"accel train --resume {job.path}" in job.output and "Traceback" not in job.output
        assert nodes.is_quiet("a") and nodes.is_quiet("b")


def test_nodes_whose_owner_is_gone_are_removed(nodes: Nodes, tmp_path: Path) -> None:
    """A killed test cannot remove its own; those of a living one stay."""
    with subprocess.Popen(["sleep", "3600"]) as owner:
        stale = tmp_path / "stale"
        subprocess.run([SCRIPT, "up", str(stale), str(owner.pid)], check=True)
        (of_stale,) = map(int, subprocess.run([SCRIPT, "pids", str(stale), "b"], stdout=subprocess.PIPE).stdout.split())
        owner.kill()
    before = nodes.do("pids", "b").split()
    Nodes(tmp_path / "next").down()
    assert subprocess.run([SCRIPT, "pids", str(stale), "b"], capture_output=True).returncode != 0
    assert not is_running(of_stale) and nodes.do("pids", "b").split() == before != []
