"""What a wheel installs: one package, whole, beside which a user's own modules of any name stand."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
LEAVES = ("compressors", "correctors", "monitor")
PARTS = ("accel", *LEAVES, "pyproject.toml", "README.md", "LICENSE", "constraints.txt")
USERS = {
    "monitor.py": "MINE = 1\n",
    "compressors.py": "MINE = 2\n",
    "script.py": "import accel, monitor, compressors\nfrom accel.monitor import recorder\n"
    "from accel import TrainConfig\nprint(monitor.MINE, compressors.MINE, recorder.__name__, accel.__file__)\n",
}


def build(kind: str, source: Path, target: Path) -> Path:
    """The one file that hatchling makes."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, links as links: building compiles, which must not touch this installation."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "_chain.*")
    for part in (*PARTS, "scripts"):
        if (PROJECT / part).is_dir():
            shutil.copytree(PROJECT / part, copy / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(PROJECT / part, copy / part)
    hook = copy / "scripts" / "build_kernels.py"
    hook.write_text(hook.read_text().replace('"-O3"', '"-O1"'))  # compiles in a fraction of the time
    return copy


@pytest.fixture(scope="module")
def site(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of a wheel that is made from the source distribution, as package indices serve it."""
    work = tmp_path_factory.mktemp("site")
    archive = build("sdist", checkout, work / "sdist")
    shutil.unpack_archive(archive, work / "source", filter="data")
    (source,) = (work / "source").iterdir()
    with zipfile.ZipFile(build("wheel", source, work / "wheel")) as wheel:
        wheel.extractall(work / "installed")
    return work / "installed"


def run(site: Path, working_directory: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(working_directory)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=working_directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_package_is_installed_whole(site: Path, checkout: Path) -> None:
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"accel"}
    expected = {path.relative_to(checkout) for path in (checkout / "accel").rglob("*.py")}
    for leaf in LEAVES:
        expected |= {Path("accel", path.relative_to(checkout)) for path in (checkout / leaf).rglob("*.py")}
    assert {path.relative_to(site) for path in site.rglob("*.py")} == expected


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_kernels_are_in_it(site: Path) -> None:
    assert (site / "accel" / "compressors" / "kernels" / "_chain.so").is_file()


@pytest.mark.long
def test_a_wheel_of_a_checkout_follows_the_links(checkout: Path, site: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", checkout, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {str(path.relative_to(site)) for path in (site / "accel").rglob("*") if path.is_file()}


def test_users_modules_of_the_same_names_harm_neither_side(site: Path, tmp_path: Path) -> None:
    for name, text in USERS.items():
        (tmp_path / name).write_text(text)
    mine, theirs, recorder, place = run(site, tmp_path, "script.py").split()
    assert (mine, theirs, recorder) == ("1", "2", "accel.monitor.recorder")
    assert Path(place).is_relative_to(site)
