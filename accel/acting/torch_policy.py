"""The same actor on torch eager, uncompressed: the baseline that compression is measured against. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from accel.acting.policy import Array, Bools, Floats
from accel.acting.rules import ActionArray, Sampler
from accel.algorithms.catalogue import make_algorithm
from accel.compressors.errors import ArtifactError
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.experience.unroll import Unroll, UnrollLayout
from accel.networks.policy import PolicyModule
from accel.transport.base import PolicyUpdate


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


class TorchPolicy:
    """Acts with torch eager on one thread; loads full-precision weights at each publication."""

    def __init__(self, module: PolicyModule, layout: UnrollLayout, sampler: Sampler) -> None:
        """Args: module: takes the weights, and is changed; layout: of the unrolls; sampler: chooses actions."""
        torch.set_num_threads(1)
        self.version = -1
        self.scheme = "fp32"
        self.runtime = "torch"
        self._sampler = sampler
        self._spec = layout.spec
        self._memory_format = memory_format(module, layout.spec)
        self._module = module.eval().to(memory_format=self._memory_format)  # type: ignore[call-overload]
        self._states = tuple(torch.zeros(layout.envs, *shape) for shape in module.state_shapes)

    def load(self, update: PolicyUpdate) -> float:
        """Load the published weights.

        Returns:
            Seconds that reading the payload took.
        Raises:
            ArtifactError: the payload is damaged or of another network; the old weights stay.
        """
        deserialise_s = 0.0
        if update.payload is not None:
            before = perf_counter()
            tensors = self._read(update.payload)
            deserialise_s = perf_counter() - before
            self._module.load_state_dict(tensors)
        self.version = update.version
        return deserialise_s

    def _read(self, payload: bytes) -> dict[str, torch.Tensor]:
        """All of the module's tensors, checked before any is written: so that no policy is loaded in part."""
        try:
            tensors = load_tensors(bytes(payload))
        except (SafetensorError, ValueError, KeyError) as error:
            raise ArtifactError(f"these are no weights of a policy: {error}") from None
        wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in self._module.state_dict().items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != wanted:
            raise ArtifactError("the weights are of another network than this actor's")
        return tensors

    def states(self) -> tuple[Floats, ...]:
        """The recurrent state [B, *shape] before the next ``act``."""
        return tuple(state.numpy() for state in self._states)

    def _tensors(self, observations: Array) -> list[torch.Tensor]:
        if self._spec.parts:
            return [torch.from_numpy(np.ascontiguousarray(part)) for part in self._spec.split(observations).values()]
        return [torch.from_numpy(np.ascontiguousarray(observations)).contiguous(memory_format=self._memory_format)]

    def sign(self, unroll: Unroll) -> None:
        """See ``ActingPolicy.sign``."""
        unroll["policy_version"][...] = self.version
        unroll["scheme_id"][...] = 0  # Torch actors know full precision only.

    @torch.inference_mode()
    def act(self, observations: Array, first: Bools | None, t: int, actions: ActionArray, params: Floats) -> None:
        """See ``ActingPolicy.act``."""
        if first is not None:
            keep = torch.from_numpy(np.logical_not(first))
            self._states = tuple(s * keep.view(-1, *[1] * (s.dim() - 1)) for s in self._states)
        outputs = self._module(*self._tensors(observations), *self._states)
        output, self._states = (outputs[0], tuple(outputs[1:])) if isinstance(outputs, tuple) else (outputs, ())
        params[...] = output.numpy()
        self._sampler.sample(params, t, actions)
