"""The same actor on torch eager, uncompressed: the baseline that compression is measured against. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from accel.acting.policy import Array, SessionPolicy
from accel.acting.rules import Sampler
from accel.algorithms.catalogue import make_algorithm
from accel.compressors.errors import ArtifactError
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.experience.unroll import UnrollLayout
from accel.networks.observations import example_inputs
from accel.networks.policy import PolicyModule


def serialise_module(module: torch.nn.Module) -> bytes:
    """The acting module's parameters and buffers as safetensors."""
    return save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()})


def make_module(options: Mapping[str, object], spec: EnvSpec) -> PolicyModule:
    """The acting module of a run with these options, with initial weights."""
    network = make_algorithm(TrainConfig.from_json(options), spec, torch.device("cpu")).network
    return network.acting_module()


def memory_format(module: torch.nn.Module, spec: EnvSpec) -> torch.memory_format:
    """Channels last for convolutions of images: up to twice as fast, and never slower, on a CPU."""
    convolves = spec.is_image and any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
    return torch.channels_last if convolves else torch.contiguous_format


class TorchSession:
    """``InPlaceSession`` of an acting module in torch.

    Args:
        module: maps observations and state to distribution parameters and next state.
        example: one row of each input by name, in order. batch: rows per call.
        layout: of the observations in memory.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        example: Mapping[str, torch.Tensor],
        batch: int,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._module, self._layout = module, layout
        self._tensors = [tensor.expand(batch, *tensor.shape[1:]).contiguous() for tensor in example.values()]
        self.inputs: Mapping[str, Array] = {
            name: tensor.numpy() for name, tensor in zip(example, self._tensors, strict=True)
        }
        params, *following = (tensor.numpy().copy() for tensor in self._call())
        states = {f"next_state_{i}": state for i, state in enumerate(following)}
        self.outputs: Mapping[str, Array] = {"params": params, **states}

    def run(self) -> None:
        """See ``InPlaceSession.run``."""
        for array, tensor in zip(self.outputs.values(), self._call(), strict=True):
            array[...] = tensor.numpy()

    @torch.inference_mode()
    def _call(self) -> tuple[torch.Tensor, ...]:
        observations, *others = self._tensors
        outputs = self._module(observations.contiguous(memory_format=self._layout), *others)
        return outputs if isinstance(outputs, tuple) else (outputs,)


class TorchPolicy(SessionPolicy):
    """Acts with torch eager on one thread; loads full-precision weights at each publication."""

    def __init__(self, module: PolicyModule, layout: UnrollLayout, sampler: Sampler) -> None:
        """``module`` takes the weights, and is changed."""
        super().__init__(layout, sampler, ("fp32",))
        torch.set_num_threads(1)
        self.scheme = "fp32"
        order = memory_format(module, layout.spec)
        self._module = module.eval().to(memory_format=order)  # type: ignore[call-overload]
        example = example_inputs(layout.spec, layout.state_shapes)
        self._use(TorchSession(self._module, example, layout.envs, order))

    def _take(self, payload: bytes) -> float:
        """All tensors are checked before any is written: so that no policy is loaded in part."""
        before = perf_counter()
        try:
            tensors = load_tensors(bytes(payload))
        except (SafetensorError, ValueError, KeyError) as error:
            raise ArtifactError(f"these are no weights of a policy: {error}") from None
        wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in self._module.state_dict().items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != wanted:
            raise ArtifactError("the weights are of another network than this actor's")
        deserialise_s = perf_counter() - before
        self._module.load_state_dict(tensors)
        self.runtime = "torch"
        return deserialise_s
