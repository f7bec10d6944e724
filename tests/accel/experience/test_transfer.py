"""What is sent is what was there: fields in one slab, joined along their axes, whatever their shapes and dtypes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.experience.transfer import Arrivals, HostCopy, Joined, Slab, make_staging, to_device

CPU = torch.device("cpu")
DTYPES = [np.bool_, np.uint8, np.int64, np.float32, np.float64]


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Joined]:
    rng, found = np.random.default_rng(draw(st.integers(0, 2**32))), {}
    for number in range(draw(st.integers(1, 6))):
        shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        axis, dtype = draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from(DTYPES))
        arrays: list[npt.NDArray[np.generic]] = []
        for _ in range(draw(st.integers(1, 3))):
            shape[axis] = draw(st.integers(0, 5))
            array = rng.integers(0, 2 if dtype is np.bool_ else 200, shape).astype(dtype)
            arrays.append(np.asfortranarray(array) if draw(st.booleans()) else array)
        found[f"field {number}"] = Joined(arrays, axis)
    return found


@given(fields())
def test_a_slab_gives_back_every_field_joined(sent: dict[str, Joined]) -> None:
    slab = Slab(sent)
    memory = torch.full((slab.nbytes,), 255, dtype=torch.uint8)
    slab.fill(memory)
    tensors = slab.tensors(memory)
    direct = make_staging(CPU).send(sent)
    for name, joined in sent.items():
        expected = np.concatenate(joined.arrays, joined.axis)
        for tensor in (tensors[name], direct[name]):
            assert tensor.numpy().dtype == expected.dtype and np.array_equal(tensor.numpy(), expected), name


def test_on_a_cpu_nothing_is_copied_that_need_not_be() -> None:
    array, other = np.ones((3, 2), np.float32), torch.ones(3)
    assert make_staging(CPU).send({"x": Joined([array])})["x"].data_ptr() == array.ctypes.data
    assert to_device(other, CPU) is other


def test_a_copy_on_the_host_is_of_the_moment_it_was_begun() -> None:
    tensor = torch.tensor([1.0, 2.0])
    copy = HostCopy(tensor)
    tensor.zero_()
    assert copy.numpy().tolist() == [1.0, 2.0]
    assert [key for key, _ in Arrivals[str]().put("now", tensor)] == ["now"]


def test_there_is_a_way_for_every_device() -> None:
    staging = make_staging(torch.device("meta"))
    assert staging.send({"x": Joined([np.ones(3)])})["x"].device.type == "meta"
