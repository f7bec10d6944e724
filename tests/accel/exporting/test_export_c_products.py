"""Weights of 2 to 4 bits in a C bundle: packed in words, computed as the byte-wide codes are, and smaller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.exporting import run_policy
from accel.exporting.build import export
from accel.exporting.formats import make_format
from accel.exporting.formats.c_products import pack
from tests.accel.runs.trained_runs import make_run


@given(
    st.integers(2, 4), st.tuples(st.integers(1, 40), st.integers(1, 5)), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_words_hold_every_code(bits: int, shape: tuple[int, int], seed: int) -> None:
    greatest = 2 ** (bits - 1) - 1
    codes = np.random.default_rng(seed).integers(-greatest, greatest, shape, np.int8, endpoint=True)
    codes[0, 0] = greatest
    packed = pack(codes)
    assert packed is not None and packed.bits == bits
    per_word, (inputs, outputs) = 32 // bits, shape
    for n in range(outputs):
        for k in range(inputs):
            field = int(packed.words[n, k // per_word]) >> (bits * (k % per_word)) & (2**bits - 1)
            assert (field ^ 2 ** (bits - 1)) - 2 ** (bits - 1) == codes[k, n]


SHAPES = [(4, 40), (40, 40), (40, 2)]


def test_wider_codes_stay_bytes() -> None:
    assert pack(np.array([[8]], np.int8)) is None and pack(np.array([[-8]], np.int8)) is None


@pytest.fixture(scope="module", params=[pytest.param("tanh", marks=pytest.mark.long), "relu"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = {"network": "mlp:40x2", "activation": request.param}
    options: dict[str, Any] = {"env": "CartPole-v1", "calibration_size": 64, **network}
    return make_run(tmp_path_factory.mktemp("runs"), **options)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("option", "bits"), [("w2", 2), pytest.param("w3", 3, marks=pytest.mark.long), ("w4", 4)])
def test_a_bundle_of_packed_weights_computes_as_the_model_does(
    run: Path, option: str, bits: int, tmp_path: Path
) -> None:
    bundle = export(run, tmp_path / "bundle", scheme=f"int8({option},x8)", format="c", episodes=0, accept_loss=True)
    target = bundle.contract["target"]
    assert list(target["packed_weight_bits"].values()) == [bits] * 3
    source = (bundle.path / "policy.c").read_text()
    declared = re.findall(r"^extern const uint32_t weight\w+\[(\d+)\]\[(\d+)\];$", source, re.MULTILINE)
    assert [(int(n), int(words)) for n, words in declared] == [(n, -(-k // (32 // bits))) for k, n in SHAPES]
    assert len(re.findall(r"^const EMX_UNUSED uint32_t weight", source, re.MULTILINE)) == 3
    assert not re.search(r"\bint8_t weight\w+(matrix|weight_codes)", source), "bytes beside the words"
    make_format("c").check(bundle.path)
    session = make_format("c").session(bundle.path, bundle.contract, 1)
    inputs, wanted = run_policy.load_vectors(bundle.path, bundle.contract)
    np.testing.assert_allclose(run_policy.run_rows(session, inputs)["params"], wanted["params"], rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_observations_of_few_bits_compute_as_the_model_does(run: Path, tmp_path: Path) -> None:
    """Also far outside the calibrated range, where codes of 4 bits saturate and those of 8 do not."""
    bundles = {
        (format, x): export(
            run, tmp_path / format / x, scheme=f"int8(w3,{x})", format=format, episodes=0, accept_loss=True
        )
        for format, x in (("c", "x4"), ("onnx", "x4"), ("onnx", "x8"))
    }
    make_format("c").check(bundles["c", "x4"].path)
    inputs, _ = run_policy.load_vectors(bundles["c", "x4"].path, bundles["c", "x4"].contract)
    far = {name: 3.0 * rows for name, rows in inputs.items()}
    found, wanted, wide = (
        run_policy.run_rows(make_format(format).session(bundle.path, bundle.contract, 1), far)["params"]
        for (format, _), bundle in bundles.items()
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(found - wide).max() > 0.01
