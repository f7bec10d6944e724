"""One call of a policy, from numpy observations to numpy parameters, on each runtime; every runtime at its best."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accel.runs.loading import TrainedRun
from compressors.artifact import CompressedPolicy
from compressors.runtime import PolicySession

if TYPE_CHECKING:
    from collections.abc import Mapping

    Inputs = Mapping[str, npt.NDArray[np.generic]]

Call = Callable[[], npt.NDArray[np.generic]]

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"


def session_call(artifact: CompressedPolicy, inputs: Inputs) -> Call:
    """What an actor does with a session: observations in, run, recurrent state carried over. Raises ArtifactError."""
    observations = np.ascontiguousarray(inputs["observations"])
    session = PolicySession(artifact, batch=len(observations))
    for name, array in session.inputs.items():
        array[...] = inputs[name]
    target, *states = session.inputs.values()
    params, *following = session.outputs.values()
    carried = list(zip(states, following, strict=True))
    run = session.run

    def call() -> npt.NDArray[np.generic]:
        target[...] = observations
        run()
        for state, next_state in carried:
            state[...] = next_state
        return params

    return call


def torch_call(module: Callable[..., tuple[torch.Tensor, ...]], inputs: Inputs, memory_format: str) -> Call:
    """Torch eager, or what ``torch.compile`` made of it; to be called within ``torch.inference_mode``."""
    observations, *states = (np.ascontiguousarray(array) for array in inputs.values())
    carried = [torch.from_numpy(state) for state in states]
    channels_last = memory_format == CHANNELS_LAST

    def call() -> npt.NDArray[np.generic]:
        tensor = torch.from_numpy(observations)
        if channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        params, *carried[:] = module(tensor, *carried)
        array: npt.NDArray[np.generic] = params.numpy()
        return array

    return call


def eager_modules(run: TrainedRun) -> dict[str, nn.Module]:
    """The policy by memory format: images through convolutions may be faster with their channels last."""
    modules: dict[str, nn.Module] = {CONTIGUOUS: run.policy}
    if run.spec.is_image and any(isinstance(part, nn.Conv2d) for part in run.policy.modules()):
        modules[CHANNELS_LAST] = copy.deepcopy(run.policy).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return modules


def compiled_call(module: nn.Module, inputs: Inputs, memory_format: str) -> tuple[Call, float]:
    """``torch.compile`` of the policy for exactly this batch, and the seconds that compiling took.

    Raises:
        RuntimeError, ImportError, OSError: it cannot compile here; there is no C++ compiler, for one.
    """
    torch.compiler.reset()
    began = time.perf_counter()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        call = torch_call(torch.compile(module, dynamic=False), inputs, memory_format)
        call()
    return call, time.perf_counter() - began
