"""A full-precision artifact is held against its module on real rows: in a batch, alone and in another order.

A branch that only real rows take is in ``accel/imports/test_import_policy.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel.compressors import make_compressor
from accel.compressors.checks.faithful import check_faithful
from accel.compressors.errors import VerificationError

ROWS = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
ROWS[70:] *= 10.0  # rare values that no example of the exporter has


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.tanh(self.body(x)))
        return answer


class Sharing(Policy):
    """Rows influence each other, where one of them is far out."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.relu(x.max(dim=0, keepdim=True).values - 12.0).mean()


class Counting(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + (1.0 if self.calls > 20 else 0.0)


def check(module: nn.Module) -> None:
    plan = make_compressor("fp32").bind(module.eval(), {"x": torch.zeros(1, 4)}, output_names=("params",))
    check_faithful(plan.refresh(module, 0), module, {"x": ROWS})


def test_a_policy_of_independent_rows_passes() -> None:
    check(Policy())


def test_other_weights_than_the_artifacts_are_found() -> None:
    module = Policy()
    plan = make_compressor("fp32").bind(module, {"x": torch.zeros(1, 4)}, output_names=("params",))
    artifact = plan.refresh(module, 0)
    with torch.no_grad():
        module.head.bias[1] += 0.01
    with pytest.raises(
        VerificationError, match=r"row 0 of 100 observations, answered beside the others, differs by 0.01"
    ):
        check_faithful(artifact, module, {"x": ROWS})


def test_rows_that_depend_on_each_other_are_found() -> None:
    with pytest.raises(VerificationError, match=r"row \d+ of 100 observations.*in the code between them"):
        check(Sharing())


def test_an_answer_that_changes_from_call_to_call_is_found() -> None:
    with pytest.raises(VerificationError, match="answered alone"):
        check(Counting())
