"""The check program of a C bundle: it passes for what was exported, fails for anything else, and is plain C99."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from accel.cli import main
from accel.config import TrainConfig
from accel.display.progress import LineProgress
from accel.envs.spaces import EnvSpec
from accel.errors import BundleError, EnvError, ExportError, MissingExtraError
from accel.exporting import build, run_policy
from accel.exporting.build import Bundle, export
from accel.exporting.formats.base import Vectors
from accel.exporting.formats.c_check import chosen_rows, vectors_header
from accel.exporting.verify import verify
from accel.networks import PolicyNetwork
from tests.accel.exporting.test_verify import resum, run_program
from tests.accel.runs.trained_runs import make_network, make_run

SCHEME = "int8(reduce_range)"
SHOWN = io.StringIO()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A policy that would take too long to play in C."""
    directory = tmp_path_factory.mktemp("c")
    run = make_run(directory / "runs", env="CartPole-v1", network="mlp:16x1+lstm:8", calibration_size=64)
    options = {"scheme": SCHEME, "format": "c", "episodes": 2, "accept_loss": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PLAYABLE_S", 0.0)
        return export(run, directory / "bundle", **options, progress=LineProgress(SHOWN))


@pytest.fixture
def bundle(exported: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported.path, tmp_path / "bundle"))


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
def test_observations_that_are_not_finite_are_refused_before_c_is_generated(scheme: str, tmp_path: Path) -> None:
    wrapper = ("tests.environments.troubled:NanObservation",)
    run = make_run(tmp_path / "runs", env="CartPole-v1", network="mlp:16x1", calibration_size=64, wrapper=wrapper)
    shown = io.StringIO()
    wanted = r"inputs of the policy in CartPole-v1 are not finite: 'observations' holds nan: mend the environment"
    with pytest.raises(EnvError, match=wanted):
        export(run, tmp_path / "bundle", scheme=scheme, format="c", episodes=0, progress=LineProgress(shown))
    assert "collecting" in shown.getvalue() and "compressing" not in shown.getvalue()
    assert not (tmp_path / "bundle").exists()


def test_a_policy_whose_outputs_are_not_finite_is_refused_before_c_is_generated(tmp_path: Path) -> None:
    def overflowing(config: TrainConfig, spec: EnvSpec) -> PolicyNetwork:
        """Greater than any float for both actions."""
        network = make_network(config, spec)
        with torch.no_grad():
            next(p for p in network.policy_head.parameters() if p.dim() > 1).fill_(3e38)
        return network

    run = make_run(tmp_path / "runs", make=overflowing, env="CartPole-v1", network="mlp:16x1", activation="relu")
    shown = io.StringIO()
    with pytest.raises(ExportError, match=r"the trained policy's outputs are not finite: 'params' holds inf, .* train"):
        export(run, tmp_path / "bundle", scheme="fp32", format="c", episodes=0, progress=LineProgress(shown))
    assert "compressing as fp32" in shown.getvalue() and "generating C" not in shown.getvalue()
    assert not (tmp_path / "bundle").exists()


def test_an_export_says_what_it_is_at_and_plays_on_onnxruntime_what_is_slow(exported: Bundle) -> None:
    shown = dict.fromkeys(line.partition(" | ")[0] for line in SHOWN.getvalue().splitlines())
    size = (exported.path / "policy.c").stat().st_size
    begun = [stage for stage in shown if not stage.startswith("generating C for ")]
    assert len(begun) == len(shown) - 1 and begun == [
        "collecting real inputs",
        f"compressing as {SCHEME}",
        f"writing {SCHEME} as c",
        f"compiling {size / 1e6:.1f} MB of C",
        f"checking {SCHEME} as c against the test vectors",
        "measuring parity",
        "measuring latency",
        "playing fp32",
        "playing at random",
        f"playing {SCHEME} on onnxruntime (as c it would take 0 s) on the same seeds",
    ]
    assert exported.report["returns"]["engine"] == "onnxruntime"  # type: ignore[index]
    assert "ran on onnxruntime, as its target is too slow here" in (exported.path / "MODEL_CARD.md").read_text()


def build_and_run(bundle: Path) -> subprocess.CompletedProcess[str]:
    """The very command of the contract, as a reader of the model card types it."""
    check = json.loads((bundle / "contract.json").read_text())["target"]["check"]
    return subprocess.run(
        f"{check['build']} && {check['run']}", shell=True, cwd=bundle, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_command_of_the_card_passes_and_leaves_the_bundle_as_it_was(bundle: Path) -> None:
    done = build_and_run(bundle)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["params", "next_state_0", "next_state_1"]
    for line in lines:
        found = re.fullmatch(
            r"\w+: greatest difference (\S+), relative difference (\S+) of at most 0.02, 64 rows: pass", line
        )
        assert found is not None and float(found[2]) <= 0.02 and float(found[1]) < 1
    card = (bundle / "MODEL_CARD.md").read_text()
    check = json.loads((bundle / "contract.json").read_text())["target"]["check"]
    assert f"{check['build']} && {check['run']}" in card and check["rows"] == 64
    assert verify(bundle, run_native_check=True).check == "; ".join(lines)
    assert json.loads((bundle / "contract.json").read_text())["target"]["packed_weight_bits"] == {}


def test_no_code_of_a_bundle_runs_unless_it_is_asked_for(bundle: Path, tmp_path: Path) -> None:
    """A constructor runs when the library is loaded, and check.c when it is run."""
    trace = tmp_path / "trace"
    attack = f'__attribute__((constructor)) static void attack(void) {{ fclose(fopen("{trace}", "w")); }}'
    for name in ("policy.c", "check.c"):
        (bundle / name).write_text(f"#include <stdio.h>\n{attack}\n" + (bundle / name).read_text())
    resum(bundle)
    result = verify(bundle)
    assert result.format == "c" and result.tested.startswith("onnx (the c sources were not run; --run-native-check")
    assert result.check is None and not trace.exists()
    verify(bundle, run_native_check=True)
    assert trace.exists()


def test_our_sources_are_warning_free_c99_without_heap(bundle: Path) -> None:
    assert "malloc" not in (bundle / "policy.c").read_text()
    strict = ["gcc", "-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-c", "-o", "/dev/null", "check.c"]
    done = subprocess.run(strict, cwd=bundle, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SCALE = r"float weight\d+_params_factor\[\d+\] = \{\s*([^\s,]+f)"
CODE = r"int8_t weight\d+_params_matrix\[\d+\]\[\d+\] = \{\s*\{\s*(-?\d+)"
# What takes the place of a pattern's group, in a file.
CHANGES = {
    "an expected output": ("vectors.h", r"vectors_params\[64\]\[1\]\[2\] = \{\n\{\{([^f]+f)", "{} + 10.0f"),
    "a code from one end of its range to the other": ("policy.c", CODE, "({}) > 0 ? -127 : 127"),
    "every weight of an output": ("policy.c", SCALE, "2.0f * {}"),
    "no number": ("policy.c", SCALE, "(0.0f / 0.0f)"),
}


def change(bundle: Path, what: str) -> None:
    file, pattern, by = CHANGES[what]
    text = (bundle / file).read_text()
    found = re.search(pattern, text)
    assert found is not None
    (bundle / file).write_text(text[: found.start(1)] + by.format(found[1]) + text[found.end(1) :])


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_vector_or_weight_fails(what: str, bundle: Path) -> None:
    change(bundle, what)
    done = build_and_run(bundle)
    assert done.returncode == 1
    assert re.search(r"^params: .*: FAIL$", done.stdout, re.MULTILINE), done.stdout
    with pytest.raises(BundleError, match="is damaged, or SHA256SUMS is"):
        verify(bundle)
    resum(bundle)
    # of the sources, policy.c is also held to vectors.npz, before its own program is run
    with pytest.raises(BundleError, match=r"params: .* FAIL|output 'params' differs from the test vectors"):
        verify(bundle, run_native_check=True)


def test_sources_that_do_not_compile_are_refused(bundle: Path) -> None:
    (bundle / "check.c").write_text("int main(void) { return }\n")
    resum(bundle)
    with pytest.raises(BundleError, match="does not compile"):
        verify(bundle, run_native_check=True)


def test_without_a_compiler_verification_says_what_was_not_run(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(MissingExtraError, match=r"every file of .* is whole, but the policy was not run: .* no cc and"):
        verify(bundle, run_native_check=True)
    assert verify(bundle).check is None
    monkeypatch.setenv("CC", "no-such-compiler -m32")
    assert main(["verify", "--run-native-check", str(bundle)]) == MissingExtraError.exit_code
    captured = capsys.readouterr()
    assert "CC names 'no-such-compiler -m32', which does not exist" in captured.err and captured.err.count("\n") == 1


def test_verification_needs_no_generator(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert str(verify(bundle, run_native_check=True).check).endswith("pass")


def test_the_bundles_python_program_says_that_it_runs_the_onnx_model(bundle: Path) -> None:
    done = run_program(bundle, "--verify")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["target"] == "c" and printed["vectors"]["relative"] <= 1e-6
    assert printed["tested"] == (
        "model.onnx on onnxruntime; the files of target c were not run: MODEL_CARD.md says how"
    )
    change(bundle, "a code from one end of its range to the other")
    assert "policy.c is damaged" in run_program(bundle, "--verify").stderr
    resum(bundle)
    assert run_program(bundle, "--verify").returncode == 0  # as it says, it does not run them


def test_great_inputs_leave_few_rows_and_constants_give_the_same_values_back() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 4, 84, 84), dtype=np.uint8)
    values = np.array([[0.1, -0.0], [1.0, 1e-45], [3e38, -1 / 3], *rng.standard_normal((5, 2))], np.float32)
    rows = chosen_rows(Vectors({"observations": images}, {"params": values}, 0.02))
    assert rows.tolist() == [0, 2, 5, 7]  # of both halves, real and random
    text = vectors_header(Vectors({"observations": values}, {"params": values}, 1e-4))
    assert max(map(len, text.splitlines())) <= 120
    body = text.partition("vectors_params[8][1][2] = {")[2]
    found = np.array(re.findall(r"([-+.\de]+)f", body)).astype(np.float32).reshape(-1, 2)
    assert found.tobytes() == values.tobytes()
    spread = re.search(r"#define SPREAD_params (\S+)", text)
    assert spread is not None
    moved = values.copy()
    moved[0, 0] += 1
    difference, _ = run_policy.mismatch(moved, values)
    assert difference == pytest.approx(np.sqrt(1 / values.size) / float(spread[1]))


@pytest.mark.long
def test_a_policy_of_full_size_images_passes_its_own_check_in_c(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="ALE/Pong-v5", network="nature-cnn:0.5", calibration_size=16)
    bundle = export(run, tmp_path / "bundle", scheme="int8", format="c", episodes=0)
    target = bundle.contract["target"]
    assert bundle.contract["observation"]["normalisation"]["method"] == "divided by 255"
    assert target["check"]["rows"] == 4 and bundle.contract["inputs"][0]["shape"] == ["batch", 4, 84, 84]
    assert target["compiled"]["code_bytes"] > 800_000
    done = build_and_run(bundle.path)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("4 rows: pass\n")
    assert (bundle.path / "vectors.h").stat().st_size < 1_000_000
    export(run, tmp_path / "openvino", scheme="int8", format="openvino", episodes=0)
    assert float(str(verify(tmp_path / "openvino").vectors["relative"])) <= 0.02
