"""Policies that act in torch: eager, which compression is measured against, and central, on a device. Imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from accel.acting.central import PolicyBatcher, row_of
from accel.acting.policy import Array, InPlaceSession, SessionPolicy
from accel.acting.rules import Sampler
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.cuda_graphs import make_runner
from accel.algorithms.gradient_exchange import GradientExchange
from accel.compressors.errors import ArtifactError
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.experience.unroll import UnrollLayout
from accel.networks.observations import example_inputs
from accel.networks.policy import PolicyModule

_SCHEME = "fp32"
_SPEC = "spec"


def serialise_module(module: torch.nn.Module, spec: EnvSpec) -> bytes:
    """The acting module's parameters and buffers as safetensors, and the environment's layout beside them."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return save_tensors(tensors, {_SPEC: json.dumps(spec.to_json())})


def read_spec(payload: bytes) -> EnvSpec:
    """The environment's layout in what ``serialise_module`` gives. Raises ArtifactError."""
    try:
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
        return EnvSpec.from_json(json.loads(header["__metadata__"][_SPEC]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"these are no weights of a policy: {error!r}") from None


def load_weights(module: torch.nn.Module, payload: bytes) -> None:
    """Write what ``serialise_module`` gives into a module: all tensors, or none. Raises ArtifactError."""
    try:
        tensors = load_tensors(bytes(payload))
    except (SafetensorError, ValueError, KeyError) as error:
        raise ArtifactError(f"these are no weights of a policy: {error}") from None
    wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}
    if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != wanted:
        raise ArtifactError("the weights are of another network than this actor's")
    module.load_state_dict(tensors)


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
        module: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
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
        super().__init__(layout, sampler, (_SCHEME,))
        torch.set_num_threads(1)
        self.scheme = _SCHEME
        order = memory_format(module, layout.spec)
        self._module = module.eval().to(memory_format=order)  # type: ignore[call-overload]
        example = example_inputs(layout.spec, layout.state_shapes)
        self._use(TorchSession(self._module, example, layout.envs, order))

    def _take(self, payload: bytes) -> float:
        before = perf_counter()
        load_weights(self._module, payload)
        self.runtime = "torch"
        return perf_counter() - before


class TorchBatcher(PolicyBatcher):
    """Answers with the learner's own network on a device, in its precision, recorded as CUDA graphs where the learner's
    steps are.

    A batch has a power of two rows, so that few are recorded; rows that nobody asked for are computed too.
    """

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__((_SCHEME,))
        torch.set_num_threads(1)
        self._config, self._device = config, device
        self._runner = make_runner(config, GradientExchange(), device)
        self._module: PolicyModule | None = None
        ones = torch.ones(2, 2, device=device)
        torch.mm(ones, ones)  # A device starts slowly: it starts before anybody asks.

    def _take(self, payload: bytes) -> float:
        before = perf_counter()
        if self._module is None:
            self._make(read_spec(payload))
        load_weights(cast(PolicyModule, self._module), payload)
        self.scheme, self.runtime = _SCHEME, f"torch on {self._device.type}, central"
        return perf_counter() - before

    def _make(self, spec: EnvSpec) -> None:
        network = make_algorithm(self._config, spec, self._device).network.to(self._device)
        self._module, self._example = network.acting_module().eval(), example_inputs(spec, network.state_shapes)
        first = self._session(1)
        self._question, self._answer = (
            row_of({name: (str(array.dtype), array.shape[1:]) for name, array in arrays.items()})
            for arrays in (first.inputs, first.outputs)
        )

    def _session(self, rows: int) -> InPlaceSession:
        rows = 1 << (rows - 1).bit_length()
        if rows not in self._sessions:
            self._sessions[rows] = TorchSession(self._on_device, self._example, rows)
        return self._sessions[rows]

    def _on_device(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        there = [tensor.to(self._device, non_blocking=True) for tensor in inputs]
        return tuple(output.cpu() for output in self._runner.run(self._step, lambda phase: None, *there))

    def _step(self, mark: object, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        is_bf16 = self._config.learner.mixed_precision == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_bf16):
            return tuple(output.float() for output in cast(PolicyModule, self._module)(*inputs))
