"""Which cores a rank runs on: one for an actor, the rest for the learner. Only where the launcher has not bound it.

A container's or a batch job's cpuset binds nothing: all ranks of the host share it. A launcher's binding is narrower.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from accel.system.machine import control_group_values
from accel.transport.launcher import LaunchInfo

_LOCAL_SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
)


def cores_for(
    info: LaunchInfo, local_size: int | None, cores: Sequence[int], place: tuple[int, int] | None
) -> tuple[int, ...]:
    """The cores of a rank on its host: one each, the last ones; learners share out the rest.

    Args:
        info: the rank. local_size: ranks on this host, None when unknown. cores: what this process may use.
        place: of a learner, its number among so many on its host; None: an actor.
    Returns:
        All ``cores`` when their number does not suffice, or nobody knows how many ranks share them.
    """
    if local_size is None or not 0 < local_size <= len(cores):
        return tuple(cores)
    first = len(cores) - local_size
    free = () if place is None else cores[:first][place[0] :: place[1]]
    return (*free, cores[first + info.local_rank])


def local_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks the launcher started on this host, where it says so.

    Slurm's srun says how many tasks each node of the step has, as ``2(x3),1``. Of a job of several components it counts
    by component, which is not asked for here.
    """
    for name in _LOCAL_SIZE_VARIABLES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    nodes: list[int] = []
    if "SLURM_PROCID" in environment and "SLURM_HET_SIZE" not in environment:
        for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
            nodes += [int(tasks)] * int(times or 1)
    node = environment.get("SLURM_NODEID", "")
    return nodes[int(node)] if node.isdigit() and int(node) < len(nodes) else None


def pin_rank(info: LaunchInfo, place: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Pin this process and return its cores; one that was bound already is left alone. Args: as for ``cores_for``."""
    allowed, shared = all_cores(), shared_cores(Path("/")) or range(os.cpu_count() or 1)
    if not hasattr(os, "sched_setaffinity") or len(allowed) < len(shared):
        return allowed
    ranks = info.size if info.launcher == "local" else local_size(os.environ)
    use_cores(chosen := cores_for(info, ranks, allowed, place))
    return chosen


def use_cores(cores: Sequence[int]) -> None:
    """Have this thread and those that it starts run on these cores; nothing where the system has no such call."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def shared_cores(root: Path) -> frozenset[int]:
    """The cores of this process's cpuset, empty where the kernel names none.

    Args:
        root: of the file system with ``proc`` and ``sys``.
    """
    for controller, name in (("cpuset", "cpuset.effective_cpus"), ("", "cpuset.cpus.effective")):
        for text in control_group_values(root, name, controller):
            with suppress(ValueError):  # such as "0-2,5"
                spans = [[int(core) for core in span.split("-")] for span in text.split(",")]
                return frozenset(core for span in spans for core in range(span[0], span[-1] + 1))
    return frozenset()


def free_cores(cores: Sequence[int], local_size: int | None) -> tuple[int, ...]:
    """The cores, at least one, that this host's actors leave to the learner.

    A thread more than that costs far more than it computes: torch's threads wait for each other spinning, and one that
    shares its core with an actor holds all of them up.

    Args:
        cores: what the ranks of this host may use together. local_size: how many they are, None when unknown.
    """
    return tuple(cores[: max(len(cores) - (local_size or 1) + 1, 1)])


def all_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return (
        tuple(sorted(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else tuple(range(os.cpu_count() or 1))
    )
