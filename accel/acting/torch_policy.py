"""The same actor on torch eager, uncompressed: the baseline that compression is measured against. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from accel.acting.policy import Array, Bools, Floats
from accel.acting.rules import ActionArray, Sampler
from accel.algorithms.catalogue import make_algorithm
from accel.config import TrainConfig
from accel.experience.unroll import UnrollLayout
from accel.transport.base import PolicyUpdate
from compressors.errors import ArtifactError


def serialise_module(module: torch.nn.Module) -> bytes:
    """The acting module's parameters and buffers as safetensors."""
    return save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()})


class TorchPolicy:
    """Acts with torch eager on one thread; loads full-precision weights at each publication.

    Convolutions run on images with their channels last: up to twice as fast, and never slower, on a CPU.
    """

    def __init__(self, options: Mapping[str, object], layout: UnrollLayout, sampler: Sampler) -> None:
        """Args: options: the run's, which make the network; layout: of the unrolls; sampler: chooses actions."""
        torch.set_num_threads(1)
        self.version = -1
        self.scheme = ""
        self._sampler = sampler
        spec, envs = layout.spec, layout.envs
        network = make_algorithm(TrainConfig.from_json(options), spec, torch.device("cpu")).network
        self._module = network.acting_module().eval()
        self._memory_format = torch.contiguous_format
        if spec.is_image and any(isinstance(part, torch.nn.Conv2d) for part in self._module.modules()):
            self._memory_format = torch.channels_last
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._states = tuple(torch.zeros(envs, *shape) for shape in network.state_shapes)

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
        self.version, self.scheme = update.version, update.scheme
        return deserialise_s

    def _read(self, payload: bytes) -> dict[str, torch.Tensor]:
        """All of the module's tensors, checked before any is written: a partly loaded policy would act for nobody."""
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

    def scheme_ids(self, schemes: Sequence[str]) -> int:
        """See ``ActingPolicy.scheme_ids``."""
        return schemes.index(self.scheme)

    @torch.inference_mode()
    def act(self, observations: Array, first: Bools | None, t: int, actions: ActionArray, params: Floats) -> None:
        """See ``ActingPolicy.act``."""
        if first is not None:
            keep = torch.from_numpy(np.logical_not(first))
            self._states = tuple(s * keep.view(-1, *[1] * (s.dim() - 1)) for s in self._states)
        tensor = torch.from_numpy(np.ascontiguousarray(observations)).contiguous(memory_format=self._memory_format)
        outputs = self._module(tensor, *self._states)
        output, self._states = (outputs[0], tuple(outputs[1:])) if isinstance(outputs, tuple) else (outputs, ())
        params[...] = output.numpy()
        self._sampler.sample(params, t, actions)
