"""Batches from unrolls that real environments filled: what each tensor is, and when nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.unroll import Unroll, UnrollLayout, restack_frames

CPU = torch.device("cpu")
VECTOR = EnvSpec((3,), "float32", ActionSpec("categorical", (4,)))
STACKED = EnvSpec((4, 6, 5), "uint8", ActionSpec("gaussian", (2,)), "same_step", 4, "repeat")


def fill(layout: UnrollLayout, seed: int) -> Unroll:
    """An unroll whose every field is random."""
    rng = np.random.default_rng(seed)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    for array in unroll.arrays.values():
        array[...] = rng.integers(0, 2 if array.dtype == np.bool_ else 100, array.shape)
    return unroll


@pytest.mark.parametrize("spec", [VECTOR, STACKED])
@pytest.mark.parametrize("count", [1, 3])
def test_unrolls_are_joined_along_environments(spec: EnvSpec, count: int) -> None:
    layout = UnrollLayout(spec, 6, 2, ((5,), (5,)))
    unrolls = [fill(layout, seed) for seed in range(count)]
    batch = Batcher(spec, CPU).build(unrolls)
    tensors = batch.tensors()
    assert batch.observations.shape == (7, 2 * count, *spec.observation_shape)
    for k, unroll in enumerate(unrolls):
        mine = slice(2 * k, 2 * k + 2)
        for name in (
            "first", "actions", "rewards", "terminated", "truncated", "behaviour_log_prob", "behaviour_params",
        ):  # fmt: skip
            assert np.array_equal(tensors[name][:, mine].numpy(), unroll[name]), name
        assert np.array_equal(batch.valid[:, mine].numpy(), unroll["valid"][:-1])
        for state, stored in zip(batch.states, unroll.states, strict=True):
            assert np.array_equal(state[mine].numpy(), stored)
        if spec.frame_stack > 1:
            expected = restack_frames(unroll["frames"], unroll["first"], spec)
            assert np.array_equal(batch.final_observations[:, mine].numpy(), unroll["final_observations"])
        else:
            expected = unroll["observations"]
            assert batch.final_observations is None
        assert np.array_equal(batch.observations[:, mine].numpy(), expected)
    assert set(tensors) >= {"observations", "rewards", "state_0", "state_1"}


@pytest.mark.parametrize("spec", [STACKED, EnvSpec((3, 6, 5), "uint8", ActionSpec("categorical", (2,)))])
@pytest.mark.parametrize("count", [1, 3])
def test_images_for_a_channels_last_network_are_the_same_in_another_memory_order(spec: EnvSpec, count: int) -> None:
    unrolls = [fill(UnrollLayout(spec, 6, 2), seed) for seed in range(count)]
    expected = Batcher(spec, CPU).build(unrolls).observations
    images = Batcher(spec, CPU, channels_last=True).build(unrolls).observations
    assert torch.equal(images, expected)
    assert images.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert not expected.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_observations_that_are_no_bytes_stay_as_they_are() -> None:
    unroll = fill(UnrollLayout(VECTOR, 6, 2), 0)
    assert Batcher(VECTOR, CPU, channels_last=True).build([unroll]).observations.is_contiguous()


def test_one_unroll_is_not_copied_on_a_cpu() -> None:
    unroll = fill(UnrollLayout(VECTOR, 6, 2), 0)
    batch = Batcher(VECTOR, CPU).build([unroll])
    unroll["rewards"][3, 1] = -7.5
    assert batch.rewards[3, 1].item() == -7.5
    assert batch.observations.data_ptr() == unroll["observations"].ctypes.data


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_batch_is_the_same() -> None:
    unrolls = [fill(UnrollLayout(STACKED, 6, 2, ((5,), (5,))), seed) for seed in range(2)]
    on_cpu = Batcher(STACKED, CPU).build(unrolls).tensors()
    on_gpu = Batcher(STACKED, torch.device("cuda")).build(unrolls).tensors()
    assert on_cpu.keys() == on_gpu.keys()
    for name, tensor in on_gpu.items():
        assert tensor.is_cuda == (name != "first") and torch.equal(tensor.cpu(), on_cpu[name]), name


def test_steps_are_found_on_the_host_and_its_flags_outlive_the_unrolls_memory() -> None:
    """On another device than the host, where numbers could not be read: torch's ``meta`` has none."""
    unrolls = [fill(UnrollLayout(VECTOR, 6, 2), seed) for seed in range(2)]
    here, there = (Batcher(VECTOR, device).build(unrolls) for device in (CPU, torch.device("meta")))
    expected = {flag: torch.nonzero(getattr(here, flag).flatten()).squeeze(1) for flag in ("valid", "truncated")}
    first = here.first.clone()
    for unroll in unrolls:
        for array in unroll.arrays.values():
            array[...] = 0
    assert there.valid.device.type == "meta" and torch.equal(there.first, first) and first.any()
    for flag, rows in expected.items():
        assert len(rows) and torch.equal(there.rows(flag), rows)
