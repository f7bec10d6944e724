"""With bf16 only torsos, and critics' hidden layers, compute in it: heads, probabilities, targets and losses do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accel.algorithms.catalogue import agree, make_algorithm
from accel.bench.learner import random_experience
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.stores.base import Sample
from tests.contracts.test_algorithms import ALGORITHMS, CPU, ignore, make

# Products, activations and what moves numbers about; everything else is arithmetic that rounding would spoil.
_MAY_ROUND = {
    "mm", "addmm", "bmm", "baddbmm", "tanh", "relu", "tanh_backward", "threshold_backward", "_to_copy", "t", "view",
    "_unsafe_view", "transpose", "expand", "detach", "sum", "convolution", "convolution_backward", "reshape", "copy_",
    "slice", "select", "split", "unsqueeze", "squeeze", "as_strided", "clone", "empty_like", "zeros_like", "new_zeros",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "add", "alias", "permute", "mkldnn_linear",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "lstm", "zeros", "cat", "stack", "unbind", "empty", "index_select",
    "mul", "sigmoid", "sigmoid_backward", "sub", "chunk", "mul_", "add_", "new_empty", "fill_", "slice_backward",
    "select_backward", "unsafe_split", "sigmoid_", "tanh_",
}  # fmt: skip


class Halves(TorchDispatchMode):
    """The names of operations that see half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
        if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
            self.names.add(function.overloadpacket.__name__)
        return found


def watch_heads(module: nn.Module, seen: dict[str, set[torch.dtype]]) -> None:
    """The dtypes of what comes out of heads."""
    for name, part in module.named_modules():
        if name.endswith(("policy_head", "critic_head")):
            part.register_forward_hook(
                lambda _module, inputs, output, name=name: seen.setdefault(name, set()).update(
                    {output.dtype, *(tensor.dtype for tensor in inputs)}
                )
            )


@pytest.mark.few(8)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "the page's"])
def test_probabilities_and_losses_are_never_in_half_precision(name: str) -> None:
    algorithm, chain = make(name, mixed_precision="bf16", activation="relu")
    sample, seen = chain.sample(), dict[str, set[torch.dtype]]()
    watch_heads(algorithm.networks, seen)
    halves = Halves()
    with halves:
        algorithm.update(sample, 0.0, ignore)
    assert halves.names & {"mm", "addmm", "bmm", "baddbmm"}, "nothing was computed in half precision"
    assert not halves.names - _MAY_ROUND, halves.names - _MAY_ROUND
    assert seen and all(dtypes == {torch.float32} for dtypes in seen.values()), seen
    assert all(parameter.dtype == torch.float32 for parameter in algorithm.networks.parameters())


@pytest.mark.parametrize("network", ["nature-cnn:0.25", "impala-resnet:0.25"])
def test_convolutions_round_and_their_heads_do_not(network: str) -> None:
    spec = EnvSpec((4, 36, 36), "uint8", ActionSpec("categorical", (3,)))
    options = TrainConfig.create(
        algorithm="ppo", network=network, unroll_length=4, envs_per_actor=2, passes=1, minibatches=1,
        mixed_precision="bf16",
    )  # fmt: skip
    algorithm = make_algorithm(options, spec, CPU)
    _, layout = agree(options, algorithm)
    batch = Batcher(spec, CPU).build([random_experience(layout, 0)])
    seen, halves = dict[str, set[torch.dtype]](), Halves()
    watch_heads(algorithm.networks, seen)
    with halves:
        algorithm.update(Sample(int(batch.valid.sum()), batch, batch.rewards), 0.0, ignore)
    assert "convolution" in halves.names and not halves.names - _MAY_ROUND, halves.names - _MAY_ROUND
    assert set(seen) == {"policy_head", "critic_head"} and all(found == {torch.float32} for found in seen.values())


def test_a_head_in_half_precision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("policy", "fake_quantisation"):
        monkeypatch.setattr(f"accel.networks.{module}.in_single_precision", lambda head, features: head(features))
    algorithm, chain = make("impala", mixed_precision="bf16")
    seen = dict[str, set[torch.dtype]]()
    watch_heads(algorithm.networks, seen)
    algorithm.update(chain.sample(), 0.0, ignore)
    assert torch.bfloat16 in seen["policy_head"] and torch.bfloat16 in seen["critic_head"]
