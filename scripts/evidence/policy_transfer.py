"""Would compressed or delta policies make pulls cheaper, and would a second thread make loading them cheaper?

    python scripts/evidence/policy_transfer.py > results/policy_transfer/rows.json      (about two minutes)

Encodings: one Adam update apart, a payload as it is, deflated (level 1), and its XOR with the version before, deflated.
``breakeven_mbit_per_s``: the link speed below which an encoding saves more time on the wire than encoding and decoding
take. Loading: a session built between unrolls, and in a thread beside an environment that holds the interpreter lock.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from accel.bench.rows import Row, provenance, spread
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.pipeline import make_compressor
from accel.compressors.runtime import PolicySession
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import PolicyNetwork, build_network

NETWORKS = ("mlp:64x2", "mlp:256x2", "mlp:512x3", "mlp:2048x3", "nature-cnn", "impala-resnet")
SCHEMES = ("fp32", "int8")
VERSIONS = 8
T = TypeVar("T")
LEARNING_RATE = 1e-3
ENV_STEP_S = 50e-6


def main() -> None:
    """Measure everything, print JSON."""
    torch.set_num_threads(1)
    facts = provenance()
    rows = [row | facts for network in NETWORKS for row in _measure(network)]
    print(json.dumps(rows, indent=1))


def _measure(text: str) -> Iterator[Row]:
    image = not text.startswith("mlp")
    action = ActionSpec("categorical", (6,))
    spec = EnvSpec((4, 84, 84), "uint8", action) if image else EnvSpec((17,), "float32", action)
    network = build_network(text, spec, seed=0)
    inputs = _observations(spec, 64)
    for scheme in SCHEMES:
        payloads = list(_versions(network, scheme, inputs))
        yield from _encodings(text, scheme, payloads)
        yield _loading(text, scheme, payloads[-1])


def _versions(network: PolicyNetwork, scheme: str, inputs: torch.Tensor) -> Iterator[bytes]:
    """Payloads of consecutive updates towards random parameters."""
    module = network.acting_module()
    optimiser = torch.optim.Adam(module.parameters(), LEARNING_RATE)
    feeds: Mapping[str, np.ndarray] = {"observations": inputs.numpy()}
    plan = make_compressor(scheme).bind(module, {"observations": inputs[:1]}, feeds, output_names=module.output_names)
    generator = torch.Generator().manual_seed(0)
    for version in range(VERSIONS + 20):
        loss = (module(inputs)[0] - torch.randn(len(inputs), 6, generator=generator)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimiser.step()
        if version >= 20:
            yield plan.refresh(module, version=0).to_bytes()


def _encodings(network: str, scheme: str, payloads: list[bytes]) -> Iterator[Row]:
    raw = [np.frombuffer(payload, np.uint8) for payload in payloads]
    pairs = list(pairwise(raw))
    encoders: dict[str, Callable[[np.ndarray, np.ndarray], bytes]] = {
        "deflate": lambda before, now: zlib.compress(now, 1),
        "xor+deflate": lambda before, now: zlib.compress(np.bitwise_xor(before, now), 1),
    }
    decoders: dict[str, Callable[[np.ndarray, bytes], object]] = {
        "deflate": lambda before, encoded: zlib.decompress(encoded),
        "xor+deflate": lambda before, encoded: np.bitwise_xor(
            before, np.frombuffer(zlib.decompress(encoded), np.uint8)
        ),
    }
    for name, encode in encoders.items():
        encode_ms, decode_ms, sizes = [], [], []
        for before, now in pairs:
            encoded, elapsed = _timed(lambda encode=encode, before=before, now=now: encode(before, now))
            encode_ms.append(elapsed)
            sizes.append(len(encoded))
            decode = decoders[name]
            decode_ms.append(_timed(lambda d=decode, before=before, encoded=encoded: d(before, encoded))[1])
        saved_bits = 8 * (len(payloads[0]) - float(np.median(sizes)))
        cost_s = 1e-3 * (float(np.median(encode_ms)) + float(np.median(decode_ms)))
        yield {
            "measured": "encoding", "network": network, "scheme": scheme, "encoding": name, "bytes": len(payloads[0]),
            "encoded_bytes": float(np.median(sizes)),
            **spread("encode_ms", encode_ms), **spread("decode_ms", decode_ms),
            "breakeven_mbit_per_s": max(saved_bits / cost_s / 1e6, 0.0),
        }  # fmt: skip


def _loading(network: str, scheme: str, payload: bytes, repeats: int = 15) -> Row:
    def load() -> object:
        return PolicySession(CompressedPolicy.from_bytes(payload), batch=8)

    alone_ms = [_timed(load)[1] for _ in range(repeats)]
    quiet = _steps_per_s(until=time.perf_counter() + 0.3)
    beside_ms: list[float] = []
    thread = threading.Thread(target=lambda: beside_ms.extend(_timed(load)[1] for _ in range(repeats)))
    thread.start()
    busy = _steps_per_s(thread=thread)
    thread.join()
    return {
        "measured": "loading", "network": network, "scheme": scheme, "bytes": len(payload),
        **spread("between_unrolls_ms", alone_ms), **spread("in_thread_ms", beside_ms),
        "env_speed_beside_thread": busy / quiet,
    }  # fmt: skip


def _steps_per_s(until: float = 0.0, thread: threading.Thread | None = None) -> float:
    """Steps of an environment that computes in Python."""
    steps, started = 0, time.perf_counter()
    while thread.is_alive() if thread is not None else time.perf_counter() < until:
        end = time.perf_counter() + ENV_STEP_S
        while time.perf_counter() < end:
            pass
        steps += 1
    return steps / max(time.perf_counter() - started, 1e-9)


def _observations(spec: EnvSpec, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (rows, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return torch.randn(shape, generator=generator)


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = function()
    return result, 1e3 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
