"""Tests that name ``u8s8`` need a CPU on which its sums do not saturate: elsewhere binding it is refused."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from accel.compressors.cpu import ARM, VNNI, cpu_features
from accel.compressors.errors import SchemeError
from accel.compressors.quantisation import affine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip where the CPU's instruction is what is missing."""
    try:
        return (yield)
    except SchemeError as error:
        if cpu_features() & {VNNI, ARM} or "u8s8" not in str(error):
            raise
        pytest.skip(f"{item.name} needs VNNI or ARM's dot product: {error}")


@pytest.fixture
def onnxruntimes_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes beside a bias beyond 32 bits as onnxruntime writes them: it leaves the layer's sum no room."""
    monkeypatch.setattr(affine, "BIAS_MARGIN", 1.0001)
