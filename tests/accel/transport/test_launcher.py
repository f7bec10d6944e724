"""Launch detection from environments as launchers really set them, and the check against what MPI sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel.errors import LaunchError
from accel.transport.launcher import (
    LaunchInfo,
    Role,
    Topology,
    detect_launch,
    mpirun_command,
    verify_library,
    verify_world,
)
from tests.contracts.ranks import need_mpirun

NONE = LaunchInfo(0, 1, 0, "none")
IN_SLURM_JOB = "SLURM_JOB_ID=77 SLURM_NTASKS=8 SLURM_NPROCS=8 SLURM_JOB_NUM_NODES=2 "
SLURM_TASK = IN_SLURM_JOB + "SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_PROCID=5 SLURM_LOCALID=1 "
OMPI = "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE={} OMPI_COMM_WORLD_LOCAL_RANK={} "

# What is set, of several values of a name the last.
ENVIRONMENTS = {
    "plain shell": ("HOME=/root PATH=/bin", NONE),
    "Open MPI's mpirun": (
        OMPI.format(2, 4, 1) + "PMIX_RANK=2 PMIX_NAMESPACE=prterun-host-1@1",
        LaunchInfo(2, 4, 1, "openmpi"),
    ),
    "mpirun -n 1": ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", LaunchInfo(0, 1, 0, "openmpi")),
    "MPICH's hydra": ("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=3 MPI_LOCALNRANKS=4", LaunchInfo(3, 4, 3, "pmi")),
    "MVAPICH": (
        "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=0",
        LaunchInfo(1, 2, 0, "mvapich"),
    ),
    "Cray PALS": ("PMI_RANK=9 PMI_SIZE=16 PALS_LOCAL_RANKID=1", LaunchInfo(9, 16, 1, "pmi")),
    "Flux": ("FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1", LaunchInfo(1, 2, 1, "flux")),
    "srun": (SLURM_TASK + "SLURM_STEP_NUM_TASKS=8", LaunchInfo(5, 8, 1, "slurm")),
    "srun --mpi=pmix": (
        SLURM_TASK + "SLURM_STEP_NUM_TASKS=8 PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.77.0",
        LaunchInfo(5, 8, 1, "slurm"),
    ),
    "srun --mpi=pmi2": (SLURM_TASK + "SLURM_STEP_NUM_TASKS=8 PMI_RANK=5 PMI_SIZE=8", LaunchInfo(5, 8, 1, "pmi")),
    "srun of fewer tasks than the job has": (
        SLURM_TASK + "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1",
        LaunchInfo(1, 2, 1, "slurm"),
    ),
    "srun --mpi=pmi2 -n 1": (SLURM_TASK + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMI_RANK=0 PMI_SIZE=1", NONE),
    "srun -n 1": (SLURM_TASK + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", NONE),
    "sbatch script": (IN_SLURM_JOB + "SLURM_PROCID=0 SLURM_LOCALID=0", NONE),
    "sbatch script of a Slurm that names its batch step": (
        SLURM_TASK + "SLURM_PROCID=0 SLURM_STEP_ID=4294967291 SLURM_STEP_NUM_TASKS=8",
        NONE,
    ),
    "salloc shell": (IN_SLURM_JOB, NONE),
    "salloc shell in an interactive step": (
        SLURM_TASK + "SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=4",
        NONE,
    ),
    "srun --pty bash": (SLURM_TASK + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PTY_PORT=40123", NONE),
    "mpirun inside a Slurm job, whose daemons are a step": (
        SLURM_TASK + "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 " + OMPI.format(7, 8, 3),
        LaunchInfo(7, 8, 3, "openmpi"),
    ),
    "a PMIx launcher that tells no size": ("PMIX_RANK=1 PMIX_NAMESPACE=x", LaunchInfo(1, None, 0, "pmix")),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_detects(name: str) -> None:
    words, expected = ENVIRONMENTS[name]
    info = detect_launch(dict(word.split("=") for word in words.split()))
    assert info == expected
    assert info.is_launched == (info.launcher != "none")


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"},
        {"PMI_RANK": "one", "PMI_SIZE": "4"},
    ],
)
def test_nonsense_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="clean shell"):
        detect_launch(environment)


@pytest.mark.parametrize(
    ("launcher", "remedy"),
    [("slurm", "--mpi=pmix"), ("openmpi", "--no-binary mpi4py"), ("pmi", "mpiexec"), ("flux", "mpiexec")],
)
def test_fewer_ranks_than_announced(launcher: str, remedy: str) -> None:
    with pytest.raises(LaunchError, match=r"started 8 ranks, but Some MPI 1\.0 sees 1") as caught:
        verify_world(LaunchInfo(3, 8, 0, launcher), 1, "Some MPI 1.0")
    assert remedy in str(caught.value)


@pytest.mark.parametrize("info", [NONE, LaunchInfo(3, 8, 0, "slurm"), LaunchInfo(1, None, 0, "pmix")])
def test_as_many_ranks_as_announced(info: LaunchInfo) -> None:
    verify_world(info, info.size or 5)


def test_a_library_that_would_end_the_process() -> None:
    verify_library(LaunchInfo(0, 2, 0, "openmpi"), "Open MPI 5.0.11")
    verify_library(NONE, "MPICH 5.0.2")
    with pytest.raises(LaunchError, match="--no-binary mpi4py"):
        verify_library(LaunchInfo(0, 2, 0, "openmpi"), "MPICH 5.0.2")


def written(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_silent_ranks_are_noticed_by_open_mpi_5_only(tmp_path: Path) -> None:
    for version, words in (("5.0.11", ["mpi_ft_detector", "true", "mpi_ft_detector_timeout", "60"]), ("4.1.6", [])):
        mpirun = written(tmp_path / version, f"echo 'mpirun (Open MPI) {version}'")
        command = mpirun_command(2, mpirun=mpirun, silence_s=60.0)
        assert set(words) <= set(command) and ("mpi_ft_detector" in command) == bool(words)


@pytest.mark.mpi
def test_mpirun_command_of_this_machine() -> None:
    need_mpirun()
    command = mpirun_command(3, hosts=["a:2", "b"], hostfile=Path("hosts.txt"))
    assert command[-2:] == ["-n", "3"]
    assert Path(command[0]).name == "mpirun"
    text = " ".join(command)
    if "--oversubscribe" in command:
        assert "--bind-to none" in text and "--host a:2,b" in text and "--hostfile hosts.txt" in text
        assert ("--allow-run-as-root" in command) == (os.geteuid() == 0)


def test_mpirun_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="does not run"):
        mpirun_command(2, mpirun=written(tmp_path / "mpirun", "exit 1"))


def test_mpich_command(tmp_path: Path) -> None:
    hydra = written(tmp_path / "mpirun", "echo 'HYDRA build details: Version: 4.2.3'")
    command = mpirun_command(2, mpirun=hydra, hosts=["a", "b"])
    assert command == [str(hydra), "-hosts", "a,b", "-n", "2"]


def test_topology() -> None:
    topology = Topology.of(4, 1)
    assert [topology.role(rank) for rank in range(4)] == [Role.LEARNER, Role.ACTOR, Role.ACTOR, Role.ACTOR]
    assert topology.group(2).actors == (1, 2, 3)
    with pytest.raises(LaunchError, match="outside"):
        topology.role(4)


def test_topology_of_several_learners() -> None:
    """The first ranks learn, and actors are dealt out to them in turns, so that equal nodes hold equal groups."""
    topology = Topology.of(7, 2)
    assert [topology.role(rank) is Role.LEARNER for rank in range(7)] == [True, True] + [False] * 5
    assert topology.group(0).actors == (2, 4, 6) and topology.group(5) == topology.group(1)
    assert topology.group(1).actors == (3, 5)
    with pytest.raises(LaunchError, match=r"too few ranks: 3 for 2 learner"):
        Topology.of(3, 2)


def test_topology_with_central_inference() -> None:
    """As many ranks run the policy as learn; each serves the actors of one learner."""
    topology = Topology.of(8, 2, central=True)
    assert [topology.role(rank) for rank in range(8)] == [Role.LEARNER] * 2 + [Role.INFERENCE] * 2 + [Role.ACTOR] * 4
    assert [(group.inference, group.actors) for group in topology.groups] == [(2, (4, 6)), (3, (5, 7))]
    assert topology.group(3) == topology.group(1) == topology.group(7)
    with pytest.raises(LaunchError, match="a rank for inference; start at least 3"):
        Topology.of(2, 1, central=True)
