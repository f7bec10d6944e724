"""The learner's device and precision, and what becomes of the memory it frees."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.learning.device import choose_device, choose_precision, gpu_at, take_gpu

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_an_error() -> None:
    assert choose_device("cpu").type == "cpu"
    if torch.cuda.is_available():
        assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    else:
        assert choose_device("auto").type == "cpu"
        with pytest.raises(ConfigError, match=r"no CUDA device.*--device cpu"):
            choose_device("cuda")


def test_what_torch_says_about_its_own_context_on_cuda_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert choose_device("auto").type == "cuda"
        warnings.warn("Attempting to run cuBLAS, but there was no current CUDA context! Attempting ...", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["another"]


def test_gpus_are_dealt_out_to_a_nodes_learners() -> None:
    assert [gpu_at(place, 2, "") for place in range(3)] == ["0", "1", "0"]
    assert [gpu_at(place, 3, "5, GPU-8c,2") for place in range(4)] == ["5", "GPU-8c", "2", "5"]
    assert gpu_at(1, 2, "4,6,-1,7") == "6", "none counts after an invalid one"


def test_where_there_is_one_gpu_or_none_nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("needs a machine with at most one GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    take_gpu(1)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_bf16_needs_a_cpu_that_computes_in_it(flag: str) -> None:
    half = TrainConfig(mixed_precision="bf16")
    assert choose_precision(half, CPU, f"model name : x\nflags\t\t: fpu avx512f {flag} sse\n") == "bf16"
    assert choose_precision(half, torch.device("cuda"), "") == "bf16"
    assert choose_precision(TrainConfig(), CPU, f"flags : {flag}") == "none"
    for cpuinfo in ("", "flags : avx512f avx512_vnni\n", f"model name : {flag}\nflags : avx2\n"):
        with pytest.raises(ConfigError, match=r"'bf16'.*without bf16 instructions.*--mixed-precision none"):
            choose_precision(half, CPU, cpuinfo)


@pytest.mark.parametrize(
    ("network", "compressor", "device", "flags", "expected"),
    [
        ("nature-cnn", "int8", "cpu", "avx512_bf16", "bf16"),
        ("impala-resnet:2", "prune(0.5)+int8", "cpu", "amx_bf16", "bf16"),
        ("nature-cnn", "int8", "cpu", "avx512_vnni", "none"),
        ("nature-cnn", "int8", "cuda", "avx512_bf16", "none"),
        ("nature-cnn", "prune(0.5)+qat", "cpu", "avx512_bf16", "none"),
        ("nature-cnn+lstm:8", "int8", "cpu", "avx512_bf16", "none"),
        ("mlp:512x3", "int8", "cpu", "avx512_bf16", "none"),
        ("package.module:factory", "int8", "cpu", "avx512_bf16", "none"),
    ],
)
def test_auto_takes_bf16_where_it_was_seen_to_pay(
    network: str, compressor: str, device: str, flags: str, expected: str
) -> None:
    config = TrainConfig(network=network, compressor=compressor, mixed_precision="auto")
    assert choose_precision(config, torch.device(device), f"flags : {flags}\n") == expected


# where transparent huge pages are always on, one fault brings 512 pages: the process does without them
FAULTS = """
import ctypes, resource, sys
import torch
from accel.learning.device import keep_freed_memory

PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0

def update():
    blocks = [torch.ones(10_000_000) for _ in range(3)]
    return sum(float(block[-1]) for block in blocks)

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(8):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    assert update() == 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_that_was_freed_is_taken_again_without_a_page_fault() -> None:
    """120 MB a round in blocks of 40 MB, each of 10,000 pages, which are mapped anew where nothing is said."""
    faults = {}
    for how in ("keep", "default"):
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["keep"] < faults["default"] / 10
