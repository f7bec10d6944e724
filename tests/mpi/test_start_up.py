"""A rank that dies before MPI has started: the others would wait for it for ever, and nobody would know for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contracts.ranks import ROOT
from tests.mpi.training_runs import TrainingRun

# Python runs this before anything else, so a rank dies where no code of ours can be asked.
DEATHS = {
    "killed at once": ("os.kill(os.getpid(), signal.SIGKILL)", "rank {rank} never started"),
    "killed while starting": (
        """
class Killer:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py":
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
sys.meta_path.insert(0, Killer())
""",
        "rank {rank} on",
    ),
    "package missing": ("sys.modules['mpi4py'] = None", "could not start; its message is above"),
}


def environment(directory: Path, death: str, rank: int = 2) -> dict[str, str]:
    """In which a rank dies."""
    lines = "\n".join(f"    {line}" for line in DEATHS[death][0].splitlines())
    program = f"import os, signal, sys, time\nif os.environ.get('OMPI_COMM_WORLD_RANK') == '{rank}':\n{lines}\n"
    (directory / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}


@pytest.mark.parametrize(
    ("death", "rank"),
    [
        ("killed at once", 2),
        pytest.param("killed at once", 0, marks=pytest.mark.long),
        *(pytest.param("killed while starting", rank, marks=pytest.mark.long) for rank in (2, 0)),
        pytest.param("package missing", 2, marks=pytest.mark.long),
    ],
)
def test_the_command_names_the_rank_and_ends(death: str, rank: int, tmp_path: Path) -> None:
    died = environment(tmp_path, death, rank)
    with TrainingRun(tmp_path, "--actors", "2", "--peer-timeout-s", "10", environment=died) as job:
        ranks = job.wait_for_ranks(1)
        assert job.finish() not in (0, None), job.output
        assert DEATHS[death][1].format(rank=rank) in job.output, job.output
        assert "Traceback" not in job.output and "--resume" not in job.output
        assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.few(1)
@pytest.mark.parametrize("fault_tolerant", [True, False])
def test_under_an_mpirun_of_the_users_own_every_rank_ends(fault_tolerant: bool, tmp_path: Path) -> None:
    words = ("--peer-timeout-s", "6")
    died = environment(tmp_path, "killed at once")
    with TrainingRun(tmp_path, *words, ranks=3, fault_tolerant=fault_tolerant, environment=died) as job:
        ranks = job.wait_for_ranks(1)
        assert job.finish() != 0, job.output
        if fault_tolerant:
            assert "waited 6 s in MPI_Init: another rank did not start" in job.output
        assert job.leaves_no_rank(list(ranks.values()))
