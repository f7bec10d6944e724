"""From the learner's network to the actors' policy: calibrate, compress, publish."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from accel.config import TrainConfig
from accel.networks import PolicyNetwork
from accel.torch_acting import serialise_module
from accel.trajectory import Unroll
from compressors.artifact import CompressedPolicy
from compressors.base import Plan
from compressors.scheme import make_compressor

FIRST_SCHEME = "fp32"

logger = logging.getLogger("accel")


class Publisher:
    """Compresses the network's acting part and offers it to the actors.

    Until ``calibration_size`` real observations have been seen, ``fp32`` is published: ranges guessed from anything else
    would be wrong. With the torch runtime the full-precision weights are published as they are.
    """

    def __init__(self, config: TrainConfig, network: PolicyNetwork) -> None:
        self._config = config
        self._network = network
        self._on_device = network.acting_module()
        self._module = self._host_copy()
        self._metadata = {"action": network.spec.action.to_json(), "env": config.env, "network": config.network}
        self._recent: dict[str, list[npt.NDArray[np.generic]]] = {}
        self._recent_rows = 0
        self._updates_since_calibration = 0
        self._plan: Plan | None = None
        self.scheme = FIRST_SCHEME if config.actor_runtime == "onnxruntime" else config.compressor
        if config.actor_runtime == "onnxruntime":
            self._plan = self._bind(FIRST_SCHEME, None)

    @property
    def schemes(self) -> tuple[str, ...]:
        """Every scheme that unrolls of this run may carry; its index is the unrolls' scheme id."""
        return tuple(dict.fromkeys((FIRST_SCHEME, self._config.compressor)))

    @property
    def calibrated(self) -> bool:
        """Whether the configured scheme is published, rather than the first one."""
        return self.scheme == self._config.compressor

    def observe(self, unroll: Unroll, observations: torch.Tensor) -> None:
        """Keep a few of an unroll's real inputs for calibration and recalibrate when it is time.

        Args:
            unroll: where recurrent states come from.
            observations: [T+1, B, *obs] of the same unroll.
        """
        if self._config.actor_runtime == "torch" or self._config.compressor == FIRST_SCHEME:
            return
        self._updates_since_calibration += 1
        if self.calibrated and self._updates_since_calibration < self._config.calibration_interval_updates:
            return
        self._sample(unroll, observations)
        if self._recent_rows < self._config.calibration_size:
            return
        inputs = {name: np.concatenate(arrays) for name, arrays in self._recent.items()}
        self._recent, self._recent_rows, self._updates_since_calibration = {}, 0, 0
        self._refresh_host_copy()
        if self.calibrated and self._plan is not None:
            self._plan.calibrate(inputs)
            return
        self._plan = self._bind(self._config.compressor, inputs)
        self.scheme = self._config.compressor
        rows = len(inputs["observations"])
        logger.info("actors change from %s to %s, calibrated on %d observations", FIRST_SCHEME, self.scheme, rows)

    def payload(self, version: int) -> bytes:
        """The network as it is now, compressed. The wire carries the version beside the payload, so that an unchanged
        policy is recognised: artifacts travel as version 0 and only saved ones hold their own."""
        self._refresh_host_copy()
        if self._plan is None:
            return serialise_module(self._module)
        return self._plan.refresh(self._module, version=version).with_version(0).to_bytes()

    def artifact(self, version: int) -> CompressedPolicy | None:
        """The policy as it would be published now, for the run's directory; None with the torch runtime."""
        self._refresh_host_copy()
        return None if self._plan is None else self._plan.refresh(self._module, version=version)

    def full_precision(self, version: int) -> CompressedPolicy:
        """The same policy uncompressed, for comparison."""
        self._refresh_host_copy()
        return self._bind(FIRST_SCHEME, None).refresh(self._module, version=version)

    def _bind(self, scheme: str, calibration: Mapping[str, npt.NDArray[np.generic]] | None) -> Plan:
        module = self._module
        observation = torch.zeros(1, *self._network.spec.observation_shape)
        if self._network.spec.observation_dtype == "uint8":
            observation = observation.to(torch.uint8)
        example = {"observations": observation}
        for i, shape in enumerate(self._network.state_shapes):
            example[f"state_{i}"] = torch.zeros(1, *shape)
        return make_compressor(scheme).bind(
            module, example, calibration, output_names=module.output_names, metadata=self._metadata
        )

    def _sample(self, unroll: Unroll, observations: torch.Tensor) -> None:
        """Rows spread over the unroll; with a recurrent core the first row, whose state is known."""
        wanted = self._config.calibration_size - self._recent_rows
        if unroll.recurrent_states:
            rows = {"observations": observations[0]} | {
                f"state_{i}": torch.from_numpy(s) for i, s in enumerate(unroll.states)
            }
        else:
            flat = observations[:-1].flatten(0, 1)
            rows = {"observations": flat[:: max(len(flat) // wanted, 1)]}
        for name, values in rows.items():
            self._recent.setdefault(name, []).append(values[:wanted].cpu().numpy().copy())
        self._recent_rows += len(self._recent["observations"][-1])

    def _host_copy(self) -> torch.nn.Module:
        """The acting module itself on CPU; a CPU twin of it when the learner is on CUDA."""
        if next(self._on_device.parameters()).device.type == "cpu":
            return self._on_device
        return copy.deepcopy(self._on_device).cpu()

    def _refresh_host_copy(self) -> None:
        if self._module is self._on_device:
            return
        with torch.no_grad():
            source = [*self._on_device.parameters(), *self._on_device.buffers()]
            target = [*self._module.parameters(), *self._module.buffers()]
            for destination, tensor in zip(target, source, strict=True):
                destination.copy_(tensor, non_blocking=True)
            torch.cuda.synchronize()
