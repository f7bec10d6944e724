"""``accel.cli.doctor`` on this very machine, and ``read_machine`` on files that describe others."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import accel
from accel.cli import main
from accel.errors import AccelError
from accel.supervision.processes import descendants
from accel.system.extras import EXTRAS, install_command
from accel.system.machine import describe_machine, read_machine, read_source

PROJECT = Path(__file__).parents[3]
doctor_module = importlib.import_module("accel.cli.doctor")  # of which the package shows the function


@pytest.mark.mpi
def test_this_machine_is_fit_for_training(tmp_path: Path) -> None:
    program = (
        "import json, sys, accel; from pathlib import Path; report = accel.doctor(Path('runs'), timeout_s=500.0); "
        "print(json.dumps([report.to_json(), report.text(), list(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    report, text, modules = json.loads(done.stdout)
    found = {item["subject"]: item for item in report["findings"]}
    assert report["healthy"], text
    assert found.keys() >= {"torch", "int8", "cores", "GPU", "fault tolerance"}
    assert "mpi4py" in found["MPI"]["value"] and found["ranks"]["status"] == "ok"
    assert found["results"]["value"].startswith(f"{tmp_path}/runs (to be made)") and not any(tmp_path.iterdir())
    assert all(subject in text and item["value"] in text for subject, item in found.items())
    assert report["machine"]["gpus"] or not {"torch", "mpi4py", "onnxruntime", "numpy"}.intersection(modules)


def test_a_probe_that_hangs_is_ended_with_all_that_it_started() -> None:
    nested = "import subprocess, sys; subprocess.run(['sleep', '600'], start_new_session=True)"
    before = descendants(os.getpid())
    with pytest.raises(AccelError, match=r"no answer within 1 s from python"):
        doctor_module.run_probe([sys.executable, "-c", nested], 1.0)
    assert descendants(os.getpid()) <= before


@pytest.mark.mpi
def test_inside_a_job_no_other_job_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    found = {item.subject: item.status for item in accel.doctor(tmp_path).findings}
    assert found["mpirun"] == "note" and "ranks" not in found


def test_a_results_directory_that_cannot_be_written_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", "--json", "--results-dir", str(tmp_path / "file" / "runs"), "--timeout-s", "0.02"]) == 1
    report = json.loads(capsys.readouterr().out)
    (found,) = (item for item in report["findings"] if item["subject"] == "results")
    assert (report["healthy"], found["status"]) == (False, "fail") and "--results-dir" in found["advice"]
    (found,) = doctor_module.check_results(tmp_path / ("a" * 5000))
    assert (found.status, "File name too long" in found.value) == ("fail", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["/no/such/mpirun"], "/no/such/mpirun cannot be started: No such file"),
        (["sh", "-c", r"printf '\377\376 broken' >&2; exit 3"], "broken"),
    ],
)
def test_a_probe_that_does_not_run_is_one_message(words: list[str], told: str) -> None:
    with pytest.raises(AccelError, match=told):
        doctor_module.run_probe(words, 500.0)


def test_answers_that_did_not_come_whole_are_no_answers() -> None:
    output = doctor_module.run_probe(["printf", r"\377\naccel-doctor [1, 2, accel-doctor [0, 2, true]\ntrue]\n"], 500.0)
    with pytest.raises(AccelError, match="of two ranks 0 answered"):
        list(doctor_module.check_ranks(output))


def test_a_machine_with_arm_cores_and_a_container_quota(tmp_path: Path) -> None:
    _write(tmp_path / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm sve\nprocessor\t: 1\n")
    _write(tmp_path / "proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    _write(tmp_path / "sys/fs/cgroup/slurm/job_7/memory.max", f"{1 << 20}\n")
    _write(tmp_path / "sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n")
    _write(tmp_path / "sys/fs/cgroup/slurm/cpu.max", "50000 100000\n")
    machine = read_machine(tmp_path)
    assert machine.int8_flags == ("asimd", "asimddp", "i8mm", "sve")
    assert machine.memory_bytes == machine.available_memory_bytes == 1 << 20
    assert machine.usable_cores == 0.5


def test_a_machine_with_vnni_and_no_limits(tmp_path: Path) -> None:
    _write(tmp_path / "proc/cpuinfo", "model name\t: A: B\nflags\t\t: fpu avx2 avx512_vnni avx_vnni amx_int8\n")
    _write(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    machine = read_machine(tmp_path)
    assert machine.cpu == "A: B"
    assert machine.int8_flags == ("avx2", "avx512_vnni", "avx_vnni", "amx_int8")
    assert machine.memory_bytes >= machine.available_memory_bytes > 0
    assert machine.usable_cores >= 1
    assert read_machine(tmp_path / "nothing").int8_flags == ()


def test_the_description_of_a_machine_is_json_and_knows_the_source() -> None:
    description = describe_machine()
    assert json.loads(json.dumps(description)) == description
    assert set(read_source()) == {"commit", "dirty"} <= set(description)


def test_samples_of_earlier_runs_make_no_source_dirty(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("accel/machine.py", "results/case/runs.json")]
    for path in files:
        path.parent.mkdir(parents=True)
        path.write_text("before")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    files[1].write_text("more")
    assert read_source(tmp_path / "accel")["dirty"] is False
    files[0].write_text("other code")
    assert read_source(tmp_path / "accel")["dirty"] is True


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    collections = {"all", "test", "dev"}
    assert set(EXTRAS) == set(project["optional-dependencies"]) - collections
    assert install_command("mpi") == f"pip install '{project['name']}[mpi]'"
    for name in EXTRAS:
        wanted = " ".join(project["optional-dependencies"][name]).lower().replace("[mpi]", " mpi4py")
        assert all(item.lower() in wanted for item in EXTRAS[name][1]), name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
