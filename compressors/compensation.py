"""What removed channels contributed on average goes into the bias of the layers that read them.

    W h + b ≈ W_K h_K + (b + W_R E[h_R])   with K the kept and R the removed inputs of a layer

The expectations are over recent real inputs. A convolution's zero padding is not accounted for: the correction is
exact in the interior of the image. Source: mean replacement pruning, Evci et al. 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compressors.base import FloatArray, State
from compressors.channels import ChannelGroup, IndexArray

_BIASES = {"weight": "bias", "weight_ih_l0": "bias_ih_l0", "weight_hh_l0": "bias_hh_l0"}


class MeanInputs:
    """Mean inputs of the layers that read prunable channels, by the name of the reading weight."""

    def __init__(self, groups: Sequence[ChannelGroup]) -> None:
        self._readers = sorted({cut.parameter for group in groups for cut in group.cuts if not cut.produces})
        self.means: dict[str, FloatArray] = {}

    def observe(self, policy: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Measure on a policy with the weights of the moment; inputs are its arguments, [N, *shape] each."""
        with ExitStack() as stack, torch.no_grad():
            for parameter in self._readers:
                owner = policy.get_submodule(parameter.rpartition(".")[0])
                stack.enter_context(owner.register_forward_pre_hook(self._watch(parameter)))
            policy(*inputs)

    def corrections(
        self, state: State, indices: Mapping[str, Mapping[int, IndexArray]]
    ) -> dict[str, NDArray[np.float32]]:
        """Bias name to what is added to it, for every row of the whole policy's layer.

        Args:
            state: the whole policy's numbers.
            indices: parameter to axis to the places that are kept.
        """
        found: dict[str, NDArray[np.float32]] = {}
        for parameter, mean in self.means.items():
            owner, _, attribute = parameter.rpartition(".")
            bias = f"{owner}.{_BIASES[attribute]}".removeprefix(".")
            kept = indices.get(parameter, {}).get(1)
            if kept is None or bias not in state:
                continue
            silent = mean.copy()
            silent[kept] = 0.0
            removed = np.flatnonzero(silent)
            weight: FloatArray = state[parameter][:, removed].astype(np.float32, copy=False)
            if weight.ndim > 2:
                weight = weight.sum(axis=tuple(range(2, weight.ndim)))
            found[bias] = (weight @ silent[removed]).astype(np.float32)
        return found

    def _watch(self, parameter: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        recurrent = parameter.endswith("weight_hh_l0")

        def hook(layer: nn.Module, arguments: tuple[object, ...]) -> None:
            value = arguments[1][0] if recurrent else arguments[0]  # type: ignore[index]
            if not isinstance(value, Tensor):
                return
            channels = 1 if isinstance(layer, nn.Conv2d) else value.dim() - 1
            others = [axis for axis in range(value.dim()) if axis != channels]
            self.means[parameter] = value.mean(others).numpy().copy()

        return hook
