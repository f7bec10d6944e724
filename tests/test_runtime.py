"""``accel-rl-runtime`` in an environment that has what it declares and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from torch import nn

import accel
from tests.accel.runs.trained_runs import make_run
from tests.test_docs import PROJECT, fences
from tests.test_wheel import build, checkout  # noqa: F401 - a fixture

NAME, FULL = "accel-rl-runtime", "accel-rl"
ABSENT = ("torch", "onnx", "tyro", "pydantic", "psutil", "rich", "gymnasium", "safetensors")
PAGE = PROJECT / "docs" / "export.md"


def install(python: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, str(wheel)], check=True)


def needed(names: list[str]) -> dict[str, Distribution]:
    """What these distributions need, themselves included: of this environment, in place of an index."""
    found: dict[str, Distribution] = {}
    while names:
        each = distribution(names.pop())
        if each.name not in found:
            found[each.name] = each
            wanted = [Requirement(text) for text in each.requires or []]
            names += [item.name for item in wanted if item.marker is None or item.marker.evaluate({"extra": ""})]
    return found


def installed_bytes(each: Distribution) -> int:
    files = [Path(str(each.locate_file(file))) for file in each.files or [] if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file())


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return build("wheel", checkout / "scripts" / "runtime", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the extra."""
    return _environment(wheel, tmp_path_factory.mktemp("environment"), "onnxruntime")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one without."""
    return _environment(wheel, tmp_path_factory.mktemp("bare"), "")


def _environment(wheel: Path, environment: Path, extra: str) -> Path:
    """Python of a virtual environment with the wheel installed and its requirements linked to this environment's."""
    venv.create(environment, with_pip=False, symlinks=True)
    made = environment / "bin" / "python"
    install(made, wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    (metadata,) = site.glob("accel_rl_runtime-*.dist-info")
    wanted = [Requirement(text) for text in Distribution.at(metadata).requires or []]
    required = [item.name for item in wanted if item.marker is None or item.marker.evaluate({"extra": extra})]
    for each in needed(required).values():
        for top in {file.parts[0] for file in each.files or [] if file.parts[0] != ".."} - {"__pycache__"}:
            (site / top).symlink_to(Path(str(each.locate_file(top))))
    return made


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page's commands and programs name."""
    directory = tmp_path_factory.mktemp("policies")
    run = make_run(directory / "runs", env="CartPole-v1", network="mlp:16x1", calibration_size=32)
    accel.export(run, directory / "bundle", scheme="fp32", episodes=2)
    policy = nn.Sequential(nn.Linear(4, 32), nn.ELU(), nn.Linear(32, 2))
    for name, module in (("policy", policy), ("softmax", nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)))):
        content = accel.compress(module, "int8", env="CartPole-v1").to_bytes()
        (directory / f"{name}.accel").write_bytes(content)
    return directory


def run(python: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(directory)}
    return subprocess.run(arguments, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_nothing_that_trains_is_there(python: Path, tmp_path: Path) -> None:
    program = f"from importlib.util import find_spec\nprint(*filter(find_spec, {ABSENT}))"
    assert run(python, tmp_path, "python", "-c", program).stdout == "\n"


def test_it_adds_little_to_numpy(wheel: Path) -> None:
    sizes = {name: installed_bytes(each) for name, each in needed(["numpy", "xxhash"]).items()}
    assert 0 < wheel.stat().st_size + sizes["xxhash"] < 3e6 < sizes["numpy"]
    assert set(sizes) == {"numpy", "xxhash"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_without_onnxruntime_kernels_run_and_what_needs_it_says_so(bare: Path, policies: Path) -> None:
    program = fences(PAGE, "python")[0]
    done = run(bare, policies, "python", "-W", "error", "-c", program)
    if "native" not in done.stdout:  # this processor has no kernels
        assert "pip install onnxruntime" in done.stderr
    assert run(bare, policies, "python", "-c", "import onnxruntime").returncode
    other = program.replace("policy.accel", "softmax.accel")
    for command in (("python", "-c", other), ("accel", "verify", "bundle")):
        done = run(bare, policies, *command)
        assert done.returncode and done.stderr.splitlines()[-1].endswith("pip install onnxruntime"), done.stderr


@pytest.mark.parametrize("program", fences(PAGE, "python"), ids=lambda text: text.split()[1])
def test_programs_of_the_page_run(program: str, python: Path, policies: Path) -> None:
    done = run(python, policies, "python", "-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr
    assert "[" in done.stdout


def test_bundles_are_verified(python: Path, policies: Path) -> None:
    done = run(python, policies, "accel", "verify", "bundle")
    assert done.returncode == 0, done.stderr
    assert "every file is whole" in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("accel train", ("accel", "train")), ("accel.train", ("python", "-c", "import accel; accel.train"))],
)
def test_what_is_left_out_is_said(name: str, arguments: tuple[str, ...], python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, *arguments)
    assert done.returncode != 0
    assert done.stderr.strip().endswith(f"{name} is not in {NAME}: install {FULL} instead")


@pytest.mark.long
def test_both_in_one_place_are_refused(wheel: Path, checkout: Path, tmp_path: Path) -> None:  # noqa: F811
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    install(python, wheel)
    install(python, build("wheel", checkout, tmp_path / "wheel"))
    done = run(python, tmp_path, "python", "-c", "import accel")
    assert done.returncode != 0
    assert f"{FULL} and {NAME} are installed in one place" in done.stderr
