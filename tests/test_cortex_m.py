"""``scripts/evidence/cortex_m.py`` counts the instructions of a C bundle on an emulated board, and checks it there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from accel.exporting.build import export
from tests.accel.runs.trained_runs import make_run
from tests.scripts import load

pytestmark = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("arm-none-eabi-gcc", "qemu-system-arm")),
    reason="needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm (Debian's packages)",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("evidence/cortex_m.py")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("c")
    run = make_run(directory / "runs", env="CartPole-v1", network="mlp:16x1", calibration_size=64)
    return export(run, directory / "bundle", scheme="int8(w4)", format="c", episodes=0).path


def test_instructions_are_counted_to_a_tick(script: ModuleType, bundle: Path, tmp_path: Path) -> None:
    longer = shutil.copytree(bundle, tmp_path / "longer")
    source = (longer / "policy.c").read_text()
    start, _, rest = source.rpartition("\nvoid policy(")
    arguments, brace, body = rest.partition("{\n")
    nops = '    __asm__ volatile(".rept 4000\\n nop\\n .endr");\n'
    (longer / "policy.c").write_text(f"{start}\nvoid policy({arguments}{brace}{nops}{body}")
    plain, more = script.count(bundle), script.count(longer)
    assert more.instructions - plain.instructions == pytest.approx(4000, abs=80)
    assert more.code_bytes - plain.code_bytes == pytest.approx(8000, abs=16) and plain.stack_bytes > 0


def test_a_policy_that_is_not_the_exported_one_is_refused(script: ModuleType, bundle: Path, tmp_path: Path) -> None:
    other = shutil.copytree(bundle, tmp_path / "other")
    source = (other / "policy.c").read_text()
    (other / "policy.c").write_text(source.replace("acc +=", "acc -="))
    with pytest.raises(RuntimeError, match="check: FAIL"):
        script.count(other)
