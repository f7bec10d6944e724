"""Acts in the learner's process on environments of tensors: unrolls begin and end on the learner's device.

No transport, no compression and no lag: the learner's own network acts, in its precision, with the CUDA graphs that the
learner has; the host waits for the device once an unroll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from accel.acting.collector import ENV, POLICY
from accel.algorithms.base import GradientAlgorithm
from accel.config.actor import ActorConfig
from accel.envs.base import EnvRequest
from accel.envs.device_backend import DeviceSteps
from accel.errors import EnvError
from accel.experience.on_device import DeviceUnroll
from accel.experience.stores.base import Experience
from accel.experience.unroll import ACTOR_PHASES
from accel.supervision.activity import PREPARING
from accel.transport.base import ActorTransport, Stopped

if TYPE_CHECKING:
    from accel.envs.spaces import EnvSpec

_LOOK_S = 0.25


class DeviceActor:
    """``Actor`` of a run whose environments are on the learner's device; of the transport only messages are used."""

    def __init__(self, config: ActorConfig, transport: ActorTransport, device: torch.device) -> None:
        self._config, self._device = config, device
        self._transport, self._activity = transport, transport.activity
        seeds = np.random.SeedSequence([config.seed, 0, config.restart]).generate_state(2)
        request = EnvRequest(
            config.tasks[0], config.envs_per_actor, config.env_args, (), int(seeds[0]), config.squash_actions
        )
        self.environment = DeviceSteps(request, device)
        self.spec: EnvSpec = self.environment.spec
        self._seed = int(seeds[0])
        self._generator = torch.Generator(device).manual_seed(int(seeds[1]))
        self._unrolls = 0

    def act_for(self, algorithm: GradientAlgorithm, version: Callable[[], int]) -> None:
        """Act with an algorithm's network; ``version`` is that of its policy now."""
        self._algorithm, self._version = algorithm, version

    def start(self) -> None:
        """Reset the environments."""
        self._transport.report({"runtime": "torch on the device"})
        before = self._activity.enter(PREPARING)
        self._observations = self.environment.reset(self._seed)
        self._returns = torch.zeros(self._config.envs_per_actor, device=self._device)
        self._lengths = torch.zeros(self._config.envs_per_actor, dtype=torch.int32, device=self._device)
        self._activity.enter(before)

    @torch.no_grad()
    def step(self, is_over: Callable[[], object] | None = None) -> Experience:
        """One unroll of every environment. Raises Stopped: the run is over."""
        return Experience(0, self._collect(is_over), lambda: None)

    def close(self) -> None:
        """Close the environments."""
        self._activity.enter(PREPARING)
        self.environment.close()

    def generator_state(self) -> Mapping[str, object]:
        """State of the sampling noise's generator, for a checkpoint."""
        return {"state": self._generator.get_state()}

    def set_generator_state(self, state: Mapping[str, object]) -> None:
        """Inverse of ``generator_state``."""
        self._generator.set_state(state["state"])  # type: ignore[arg-type]

    def _collect(self, is_over: Callable[[], object] | None) -> DeviceUnroll:
        start = look_s = perf_counter()
        fields, algorithm, env_s = self._empty(), self._algorithm, 0.0
        observed, final, lacks_final = fields["observations"], fields["final_observations"], []
        returns, lengths = torch.empty_like(fields["rewards"]), torch.empty_like(fields["rewards"], dtype=torch.int32)
        observations, words = self._observations, self._activity.words
        for t in range(self._config.unroll_length):
            observed[t] = observations
            params = algorithm.runner.run(self._params, lambda phase: None, observations)
            fields["behaviour_params"][t] = params
            actions = algorithm.distribution(params, None).sample(self._generator)
            fields["actions"][t] = actions
            before = perf_counter()
            observations, rewards, terminated, truncated, ended_with = self.environment.step(actions)
            words[0] += 1
            after = perf_counter()
            env_s += after - before
            fields["rewards"][t], fields["terminated"][t], fields["truncated"][t] = rewards, terminated, truncated
            if ended_with is None:
                lacks_final.append(t)
            else:
                final[t] = ended_with
            returns[t], lengths[t] = self._returns.add_(rewards), self._lengths.add_(1)
            ended = torch.logical_or(terminated, truncated)
            self._returns.masked_fill_(ended, 0.0)
            self._lengths.masked_fill_(ended, 0)
            if is_over is not None and after >= look_s:
                if is_over():
                    raise Stopped("the run is over")
                look_s = after + _LOOK_S
        observed[-1] = self._observations = observations
        return self._finish(fields, returns, lengths, lacks_final, (start, env_s))

    def _finish(
        self,
        fields: dict[str, Tensor],
        returns: Tensor,
        lengths: Tensor,
        lacks_final: list[int],
        times: tuple[float, float],
    ) -> DeviceUnroll:
        """Everything that can be computed for the whole unroll at once; the host waits for the device here."""
        distribution = self._algorithm.distribution(fields["behaviour_params"], None)
        fields["behaviour_log_prob"] = distribution.log_prob(fields["actions"])
        if lacks_final:
            fields["final_observations"][lacks_final] = 0.0
            if bool(fields["truncated"][lacks_final].any()):
                raise EnvError(
                    f"environment {self._config.tasks[0]!r} truncates episodes without info['final_obs'], so that they "
                    "cannot be bootstrapped: add it, or see docs/device-environments.md"
                )
        floats = [values.sum() for values in fields.values() if values.is_floating_point()]
        is_finite = bool(torch.isfinite(torch.stack(floats)).all())
        ended = torch.logical_or(fields["terminated"], fields["truncated"])
        flags = {} if self._device.type == "cpu" else {name: fields[name].cpu() for name in ("valid", "truncated")}
        timings = np.zeros(len(ACTOR_PHASES))
        start, timings[ENV] = times
        timings[POLICY] = perf_counter() - start - timings[ENV]
        host = {
            "header": np.array([self._unrolls, self._version(), ended.numel(), 0]),
            "timings_s": timings,
            "episode_return": returns[ended].cpu().numpy(),
            "episode_length": lengths[ended].cpu().numpy(),
        }
        self._unrolls += 1
        return DeviceUnroll(fields, host, flags, is_finite)

    def _params(self, mark: Callable[[str], object], observations: Tensor) -> Tensor:
        """What the policy gives for observations, to be run by the algorithm's runner."""
        with self._algorithm.autocast():
            return self._algorithm.network.act(observations).float()

    def _empty(self) -> dict[str, Tensor]:
        """The fields of an unroll, to be written."""
        length, envs, action = self._config.unroll_length, self._config.envs_per_actor, self.spec.action
        dtype = torch.int64 if action.dtype == np.int64 else torch.float32

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(length, envs, *shape, dtype=dtype, device=self._device)

        observed = self.spec.observation_shape
        return {
            "observations": torch.empty(length + 1, envs, *observed, device=self._device),
            "final_observations": empty(*observed),
            "valid": torch.ones(length, envs, dtype=torch.bool, device=self._device),
            "actions": empty(*action.shape, dtype=dtype),
            "rewards": empty(),
            "terminated": empty(dtype=torch.bool),
            "truncated": empty(dtype=torch.bool),
            "behaviour_params": empty(self._algorithm.output_size),
        }
