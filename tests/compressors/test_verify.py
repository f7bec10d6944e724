"""The check before publication: passes what agrees, names what does not."""

from __future__ import annotations

import numpy as np
import pytest

from accel.compressors.checks.verify import verify_artifact
from accel.compressors.errors import VerificationError
from tests.compressors.policies import MLP, made, randomise, refreshed, run_module


@pytest.mark.parametrize(("scheme", "bound"), [("fp32", 1e-5), ("fp16", 5e-3), ("int8(u8s8)", 0.1), ("int4", 0.6)])
@pytest.mark.parametrize("name", ["tanh-mlp", "lstm", "lstm-cell", "nature-cnn"])
def test_a_faithful_artifact_passes(name: str, scheme: str, bound: float) -> None:
    case, module, artifact = refreshed(name, scheme)
    assert 0.0 < verify_artifact(artifact, module, case.inputs(64), bound) <= bound


def test_the_mismatch_is_what_it_says() -> None:
    case, module, artifact = refreshed("relu-mlp", "fp32")
    inputs = case.inputs(64)
    module.head.bias.data += 0.5
    mismatch = verify_artifact(artifact, module, inputs, None)
    spread = np.sqrt(np.mean([np.var(column) for column in run_module(module, inputs)[0].T]))
    assert mismatch == pytest.approx(0.5 / spread, rel=1e-4)


@pytest.mark.parametrize("equal", [1, 5])
def test_rows_that_are_the_same_are_held_against_their_size(equal: int) -> None:
    """One row, or several equal ones, deviate from their mean by nothing or by rounding."""
    case, module = made("relu-mlp")
    inputs = {name: np.repeat(array, equal, axis=0) for name, array in case.inputs(1).items()}
    for scheme, bound in (("fp32", 1e-5), ("int8(u8s8)", 0.1)):
        artifact = case.bind(scheme, module).refresh(module, version=1)
        assert verify_artifact(artifact, module, inputs, bound) <= bound
    size = np.sqrt(np.mean(run_module(module, inputs)[0] ** 2))
    module.head.weight.data *= 2.0
    module.head.bias.data *= 2.0
    with pytest.raises(VerificationError, match="differs"):
        verify_artifact(artifact, module, inputs, 0.4)
    module.head.weight.data.zero_()
    module.head.bias.data.zero_()
    mismatch = verify_artifact(artifact, module, inputs, None)
    assert mismatch == pytest.approx(size, rel=0.1)


def test_a_measure_of_the_callers_is_held_against_the_bound() -> None:
    case, module, artifact = refreshed("relu-mlp", "int8(u8s8)")
    seen: list[tuple[int, ...]] = []

    def measure(wanted: np.ndarray, found: np.ndarray) -> float:
        seen.append((*wanted.shape, *found.shape))
        np.testing.assert_allclose(wanted, run_module(module, case.inputs(8))[0], atol=1e-6)
        return 0.7

    assert verify_artifact(artifact, module, case.inputs(8), 0.8, measure=measure) == 0.7
    with pytest.raises(VerificationError, match=r"differs .* by 0\.7, over the bound of 0\.6"):
        verify_artifact(artifact, module, case.inputs(8), 0.6, measure=measure)
    assert seen == [(8, 3, 8, 3)] * 2


def test_weights_of_another_version_are_noticed() -> None:
    case, module, artifact = refreshed("relu-mlp", "int8(u8s8)")
    randomise(module, seed=1)
    with pytest.raises(VerificationError, match=r"over the bound of 0\.1"):
        verify_artifact(artifact, module, case.inputs(64), 0.1)


def test_an_artifact_of_another_policy_is_noticed() -> None:
    case, _, artifact = refreshed("relu-mlp", "fp32")
    with pytest.raises(VerificationError, match="returns shapes"):
        verify_artifact(artifact, MLP(), case.inputs(4), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {}, "'observations' is missing"),
        (lambda x: {"observations": x[:0]}, "takes float32 of shape"),
        (lambda x: {"observations": x[:, :2]}, "takes float32 of shape"),
        (lambda x: {"observations": x.astype(np.float64)}, "is float64"),
    ],
    ids=["missing", "empty", "narrow", "dtype"],
)
def test_inputs_that_do_not_fit_are_named(change, message: str) -> None:
    case, module, artifact = refreshed("relu-mlp", "fp32")
    with pytest.raises(VerificationError, match=message):
        verify_artifact(artifact, module, change(case.inputs(4)["observations"]), None)
