"""Running ranges: measured like torch measures them, widened at once, narrowed slowly, drift noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.compressors.errors import CalibrationError
from accel.compressors.graph.policy_graph import export_policy
from accel.compressors.module_state import read_state
from accel.compressors.quantisation.ranges import IMAGES, Range, RangeObserver
from tests.compressors.policies import bound, made

_BOUNDS = st.floats(-1e3, 1e3, width=32)
_RANGES = st.tuples(_BOUNDS, _BOUNDS).map(lambda pair: Range(min(pair), max(pair)))


@given(_RANGES, _RANGES)
def test_a_range_always_covers_what_was_seen_last(before: Range, seen: Range) -> None:
    after = before.after(seen)
    assert after.low <= seen.low and after.high >= seen.high
    assert after.low >= min(before.low, seen.low) and after.high <= max(before.high, seen.high)


@given(_RANGES, _RANGES)
def test_a_range_forgets_an_outlier(before: Range, seen: Range) -> None:
    now = before
    for _ in range(200):
        now = now.after(seen)
    assert now.low == pytest.approx(seen.low, abs=1e-2) and now.high == pytest.approx(seen.high, abs=1e-2)


@given(_RANGES, _RANGES)
def test_covering_narrows_nothing(before: Range, seen: Range) -> None:
    after = before.covering(seen)
    assert after == Range(min(before.low, seen.low), max(before.high, seen.high))


def test_drift_is_what_clips_more_than_the_tolerance() -> None:
    kept = Range(-1.0, 1.0)
    assert not kept.exceeded_by(Range(-1.05, 1.05))
    assert kept.exceeded_by(Range(0.0, 1.2))
    assert kept.exceeded_by(Range(-1.2, 0.0))
    assert not kept.exceeded_by(Range(-0.1, 0.1))


def test_measured_ranges_are_those_of_torch_hooks() -> None:
    case, module = made("tanh-mlp")
    graph = export_policy(module, case.examples(), case.outputs)
    inputs = case.inputs(200)
    seen: dict[str, tuple[float, float]] = {}
    for name, layer in module.named_modules():
        layer.register_forward_hook(lambda m, i, o, name=name: seen.update({name: (float(o.min()), float(o.max()))}))
    with torch.no_grad():
        module(torch.from_numpy(inputs["observations"]))
    values = {node.name.rsplit("/", 1)[0].split("/")[-1]: node.output[0] for node in graph.nodes}
    names = ["torso.0", "torso.1", "torso.2", "torso.3", "normaliser"]
    parameters = graph.read(read_state(module))
    measured = RangeObserver(graph, [values[name] for name in names]).measure(parameters, inputs)
    for name in names:
        found = measured[values[name]]
        np.testing.assert_allclose((found.low, found.high), seen[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {}, "'observations' is missing"),
        (lambda x: {"observations": x[:0]}, r"shape \(0, 11\)"),
        (lambda x: {"observations": x[:, :3]}, r"shape \(128, 3\)"),
        (lambda x: {"observations": x[0]}, r"shape \(11,\)"),
        (lambda x: {"observations": x.astype(np.float64)}, "float64; give float32"),
        (lambda x: {"observations": x * np.nan}, "not finite"),
    ],
    ids=["missing", "empty", "narrow", "one row", "dtype", "nan"],
)
def test_unusable_calibration_inputs_are_named(change, message: str) -> None:
    case, _, plan = bound("relu-mlp", "int8")
    with pytest.raises(CalibrationError, match=message):
        plan.calibrate(change(case.inputs(128)["observations"]))


def test_rows_must_agree() -> None:
    case, _, plan = bound("lstm", "int8")
    with pytest.raises(CalibrationError, match="different numbers of rows"):
        plan.calibrate({**case.inputs(16), "state_0": case.inputs(8)["state_0"]})


def test_of_many_images_some_at_even_distances_are_measured_the_first_and_the_last_among_them() -> None:
    case, module = made("nature-cnn")
    graph = export_policy(module, case.examples(), case.outputs)
    observer = RangeObserver(graph, [node.output[0] for node in graph.nodes])
    parameters = graph.read(read_state(module))
    images = case.inputs(IMAGES, seed=5)["observations"]
    few = observer.measure(parameters, {"observations": images})
    alone = [observer.measure(parameters, {"observations": image[None]}) for image in images]
    between = np.zeros((2 * IMAGES - 1, *images.shape[1:]), images.dtype)
    between[::2] = images
    for name, whole in observer.measure(parameters, {"observations": between}).items():
        assert whole == few[name]
        assert whole.low == pytest.approx(min(seen[name].low for seen in alone), rel=1e-4, abs=1e-5)
        assert whole.high == pytest.approx(max(seen[name].high for seen in alone), rel=1e-4, abs=1e-5)
