"""The batch scripts, with stand-ins for Slurm's own commands; a requeued job goes on with its run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SCRIPTS = PROJECT / "scripts" / "slurm"
# Print their arguments, one a line, behind their name.
STAND_IN = '#!/bin/sh\nprintf "%s" "${0##*/}"\nprintf "|%s" "$@"\necho\n'
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "accel",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8",
    "SLURM_CPUS_PER_TASK_HET_GROUP_1": "1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "b",
    "SLURM_NTASKS_PER_NODE_HET_GROUP_1": "4",
    "SLURM_NTASKS_HET_GROUP_1": "4",
}


@pytest.fixture
def submit(tmp_path: Path) -> Path:
    """A project whose environment has stand-ins for what the scripts start."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("accel", "srun", "scontrol"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    return tmp_path


def run(script: str, submit: Path, *arguments: str, timeout_s: float = 60, **variables: str) -> str:
    environment = os.environ | SLURM | {"SLURM_SUBMIT_DIR": str(submit)} | variables
    command = ["bash", str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", ["cpu.sbatch", "srun.sbatch", "mpirun.sbatch"])
def test_a_run_is_named_after_its_job_unless_told_otherwise(script: str, submit: Path) -> None:
    assert "|--name|accel-77|--env|CartPole-v1" in run(script, submit, "--env", "CartPole-v1")
    assert "accel-77" not in run(script, submit, "--env", "CartPole-v1", "--name", "mine")
    assert "--name" not in run(script, submit, "--resume", "results/mine")


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sbatch")))
def test_a_script_asks_to_be_started_again_and_for_a_signal_before_its_time_is_up(script: str) -> None:
    options = re.findall(r"^#SBATCH (--\S+)", (SCRIPTS / script).read_text(), re.MULTILINE)
    assert {"--requeue", "--open-mode=append"} <= set(options)
    assert any(re.fullmatch(r"--signal=(B:)?TERM@\d+", option) for option in options)


@pytest.mark.mpi
def test_a_job_that_is_started_again_goes_on_with_its_run(submit: Path) -> None:
    """As Slurm does it: the same script with the same options, and the number of starts before."""
    (submit / ".venv" / "bin" / "activate").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
    options = ("--env", "CartPole-v1", "--network", "mlp:8x1", "--results-dir", str(submit / "results"))
    first = run("cpu.sbatch", submit, *options, "--total-env-steps", "3000", timeout_s=400)
    assert "accel-77" in first
    again = run("cpu.sbatch", submit, *options, "--total-env-steps", "6000", timeout_s=400, SLURM_RESTART_COUNT="1")
    assert f"going on with {submit / 'results' / 'accel-77'}" in again
    assert [path.name for path in (submit / "results").iterdir()] == ["accel-77"]
    assert "total_env_steps = 6000 reached" in again
