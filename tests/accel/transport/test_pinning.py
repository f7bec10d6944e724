"""Which cores a rank gets, and how many torch may use beside the actors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel.transport.launcher import LaunchInfo
from accel.transport.pinning import cores_for, free_cores, local_size, shared_cores

ROOT = Path(__file__).resolve().parents[3]


def info(rank: int, local_rank: int) -> LaunchInfo:
    return LaunchInfo(rank, 8, local_rank, "openmpi")


def test_the_learner_takes_what_single_cores_of_its_actors_leave() -> None:
    assert cores_for(info(0, 0), 3, range(8), (0, 1)) == (0, 1, 2, 3, 4, 5)
    taken = [cores_for(info(rank, rank), 8, range(8), None if rank else (0, 1)) for rank in range(8)]
    assert sorted(taken) == [(core,) for core in range(8)]
    taken = [cores_for(info(4 + local, local), 4, range(4), None) for local in range(4)]
    assert sorted(taken) == [(core,) for core in range(4)], "a host of actors alone"


@pytest.mark.parametrize("size", [None, 0, 5])
@pytest.mark.parametrize("place", [None, (0, 2)])
def test_nobody_is_pinned_where_cores_do_not_suffice_or_ranks_are_unknown(
    size: int | None, place: tuple[int, int] | None
) -> None:
    assert cores_for(info(1, 1), size, range(4), place) == (0, 1, 2, 3)


def test_torch_gets_the_cores_that_actors_leave_and_one_at_least() -> None:
    assert [len(free_cores(range(4), size)) for size in (None, 1, 2, 4, 5, 50)] == [4, 4, 3, 1, 1, 1]


def test_launchers_tell_how_many_ranks_share_a_host() -> None:
    assert local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}) == 3
    assert local_size({"MPI_LOCALNRANKS": "2"}) == 2
    assert local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "many"}) is None
    assert local_size({}) is None


@pytest.mark.parametrize(
    ("told", "node", "more", "size"),
    [
        ("3", "0", {}, 3),
        ("2(x3),1", "2", {}, 2),
        ("2(x3),1", "3", {}, 1),
        ("2(x3),1", "4", {}, None),
        ("3", "", {}, None),
        ("3", "0", {"SLURM_HET_SIZE": "2"}, None),
        ("3", "0", {"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, 5),
    ],
)
def test_slurm_tells_how_many_tasks_each_node_has(told: str, node: str, more: dict[str, str], size: int | None) -> None:
    environment = {"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": told, "SLURM_NODEID": node}
    assert local_size(environment | more) == size
    assert local_size({"SLURM_STEP_TASKS_PER_NODE": told, "SLURM_NODEID": node}) is None, "no task of srun's"


@pytest.mark.parametrize(
    ("groups", "file", "cores"),
    [
        ("0::/job/step", "sys/fs/cgroup/job/cpuset.cpus.effective", {0, 1, 2, 5}),
        ("0::/", "sys/fs/cgroup/cpuset.cpus.effective", {0, 1, 2, 5}),
        ("3:cpuset:/job\n0::/", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus", {0, 1, 2, 5}),
        ("3:cpu,cpuset:/job\n0::/", "sys/fs/cgroup/cpuset/cpuset.effective_cpus", {0, 1, 2, 5}),
        ("3:memory:/job", "sys/fs/cgroup/cpuset.cpus.effective", set()),
        ("0::/job", "sys/fs/cgroup/other", set()),
        ("nonsense", "sys/fs/cgroup/cpuset.cpus.effective", set()),
    ],
)
def test_the_cores_that_ranks_share_are_their_control_groups(
    groups: str, file: str, cores: set[int], tmp_path: Path
) -> None:
    for name, text in (("proc/self/cgroup", groups), (file, "0-2,5\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shared_cores(tmp_path) == cores


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux, where processes can be pinned")
def test_a_process_that_was_bound_is_left_alone_and_a_free_one_pinned() -> None:
    program = (
        "import os; import accel.transport.pinning; from accel.transport.pinning import pin_rank\n"
        "from accel.transport.launcher import LaunchInfo\n"
        "os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'] = '2'\n"
        "free = frozenset(os.sched_getaffinity(0))\n"
        "accel.transport.pinning.shared_cores = lambda root: free  # so that nobody has bound this process yet\n"
        "chosen = pin_rank(LaunchInfo(1, 2, 1, 'openmpi'))\n"
        "assert set(chosen) == os.sched_getaffinity(0), chosen\n"
        "assert len(chosen) == 1, chosen\n"
        "assert pin_rank(LaunchInfo(0, 2, 0, 'openmpi')) == chosen"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_several_learners_share_out_what_no_rank_has() -> None:
    """Two learners and three actors on eight cores: every core once, and three are free for the learners."""
    learners = [cores_for(info(rank, rank), 5, range(8), (rank, 2)) for rank in range(2)]
    actors = [cores_for(info(rank, rank), 5, range(8), None) for rank in range(2, 5)]
    assert [len(cores) for cores in learners] == [3, 2] and all(len(cores) == 1 for cores in actors)
    assert sorted(core for cores in learners + actors for core in cores) == list(range(8))
