"""The learner's loss written from its definition: one valid step at a time, in float64, with sums over pairs of rows.

Nothing here is shared with the product but the network's own pieces, which have tests of their own; the sums of V-trace
and Retrace are those that the correctors are held against, and distributions are torch's.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batch
from accel.networks import PolicyNetwork
from tests.accel.algorithms.test_distributions import parts_of, references
from tests.correctors import test_retrace, test_vtrace

CATEGORICAL = ActionSpec("categorical", (3,))
MULTI = ActionSpec("multi_categorical", (3, 2))
GAUSSIAN = ActionSpec("gaussian", (2,), low=(-1.0, -1.0), high=(1.0, 1.0))
LENGTH, ENVS = 7, 4


def make_config(**changes: object) -> TrainConfig:
    """Plain gradients: nothing clipped, nothing normalised, so that every term can be compared."""
    plain: dict[str, object] = {
        "algorithm": "impala",
        "network": "mlp:8x1",
        "normalise_observations": False,
        "normalise_rewards": False,
        "entropy_cost": 0.01,
        "compressor": "fp32",
        "max_gradient_norm": None,
        "normalise_advantages": False,
        "discount": 0.9,
        "lambda_": 0.8,
        "learner_threads": 1,
    }
    if changes.get("algorithm") == "ppo":
        plain |= {"passes": 1, "minibatches": 1}
    return TrainConfig.create(**(plain | changes))


def make_batch(spec: EnvSpec, network: PolicyNetwork, seed: int = 0) -> tuple[Batch, Tensor]:
    """A random batch with endings of each kind in the middle, junk in its invalid rows; and its rewards."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    terminated, truncated = torch.zeros(2, LENGTH, ENVS, dtype=torch.bool)
    terminated[2, 0] = truncated[3, 1] = terminated[6, 2] = truncated[6, 2] = truncated[0, 3] = True
    done = terminated | truncated
    valid = torch.ones(LENGTH + 1, ENVS, dtype=torch.bool)
    first = torch.zeros(LENGTH + 1, ENVS, dtype=torch.bool)
    final = None
    if spec.autoreset == "same_step":
        first[1:] = done
        final = noise(LENGTH, ENVS, *spec.observation_shape)
    else:
        valid[0, 2] = False  # The reset of an episode that ended in the unroll before.
        valid[1:] = ~done
        first[1:] = ~valid[:-1]
    rewards = torch.where(valid[:-1], noise(LENGTH, ENVS), 1e3)
    batch = Batch(
        observations=noise(LENGTH + 1, ENVS, *spec.observation_shape),
        final_observations=final,
        first=first,
        valid=valid[:-1],
        actions=_random_actions(spec.action, generator),
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        behaviour_log_prob=torch.where(valid[:-1], -1.0 + noise(LENGTH, ENVS), -50.0),
        behaviour_params=noise(LENGTH, ENVS, spec.action.param_size),
        states=tuple(noise(ENVS, *shape) for shape in network.state_shapes),
    )
    return batch, rewards


def _random_actions(action: ActionSpec, generator: torch.Generator) -> Tensor:
    if action.kind == "gaussian":
        return torch.randn(LENGTH, ENVS, *action.shape, generator=generator)
    parts = [torch.randint(0, n, (LENGTH, ENVS), generator=generator) for n in action.sizes]
    return parts[0] if action.kind == "categorical" else torch.stack(parts, -1)


def junk_changed(batch: Batch) -> Batch:
    """The same batch with other junk in its invalid rows, which nothing may notice."""
    invalid = ~batch.valid
    actions = batch.actions.clone()
    actions[invalid] = 0
    return replace(
        batch,
        actions=actions,
        behaviour_log_prob=batch.behaviour_log_prob.masked_fill(invalid, -3.0),
        behaviour_params=batch.behaviour_params.masked_fill(invalid.unsqueeze(-1), 7.0),
    )


class Oracle:
    """The loss of a batch under ``network``, a float64 twin of the learner's that is differentiated here."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, network: PolicyNetwork) -> None:
        self.config, self.spec = config, spec
        self.corrector = str(config.options()["corrector"])
        self.network = copy.deepcopy(network).double()
        self.batch_rows: int | None = None

    def gradients(self, batch: Batch, rewards: Tensor, proximal: PolicyNetwork | None = None) -> dict[str, Tensor]:
        """d loss / d parameter by name.

        Args:
            proximal: whose log-probabilities and values the clipped surrogate and its targets take; None: the same.
        """
        self.network.zero_grad()
        self.loss(batch, rewards, proximal).backward()
        return {name: p.grad for name, p in self.network.named_parameters() if p.grad is not None}

    def loss(self, batch: Batch, rewards: Tensor, proximal: PolicyNetwork | None = None) -> Tensor:
        """policy + value_cost · value − entropy_cost · entropy, each a mean over valid steps."""
        config = self.config
        params, critic = self._outputs(self.network, batch)
        old_params, old_critic = params.detach(), critic.detach()
        if proximal is not None:
            with torch.no_grad():
                old_params, old_critic = self._outputs(copy.deepcopy(proximal).double(), batch)
        log_prob = self._log_prob(params, batch)
        old_log_prob = self._log_prob(old_params, batch).detach()
        targets, advantages, weights = self._targets(batch, rewards, old_log_prob, old_params, old_critic)
        steps = [(t, b) for t in range(LENGTH) for b in range(ENVS) if batch.valid[t, b]]
        if config.algorithm.normalise_advantages:
            # Centred under the weights that they are going to be multiplied by, and only then multiplied.
            total = sum(weights[step] for step in steps)
            mean = sum(weights[step] * advantages[step] for step in steps) / total
            squares = sum((weights[step] * (advantages[step] - mean)) ** 2 for step in steps)
            advantages = (advantages - mean) / math.sqrt(squares / len(steps) + 1e-8)
        policy = value = entropy = torch.zeros((), dtype=torch.float64)
        for t, b in steps:
            a = weights[t, b] * advantages[t, b]
            if config.algorithm.algorithm == "impala":
                policy = policy - log_prob[t, b] * a
            else:
                ratio = torch.exp(log_prob[t, b] - old_log_prob[t, b])
                limits = (1 - config.algorithm.clip_ratio, 1 + config.algorithm.clip_ratio)
                policy = policy - torch.minimum(ratio * a, ratio.clamp(*limits) * a)
            prediction = critic[t, b, batch.actions[t, b]] if self.corrector == "retrace" else critic[t, b, 0]
            value = value + 0.5 * (prediction - targets[t, b]) ** 2
            entropy = entropy + sum(part.entropy() for part in references(self.spec.action, params[t, b]))
        count = self.batch_rows or len(steps)
        return (policy + config.algorithm.value_cost * value - config.algorithm.entropy_cost * entropy) / count

    def _outputs(self, network: PolicyNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
        """Distribution parameters [T+1, B, P] and what the critic says [T+1, B, 1 or n], one row after the other."""
        state = tuple(s.double() for s in batch.states)
        rows = []
        for t in range(LENGTH + 1):
            features = network.torso(batch.observations[t].double())
            critic_features = network.value_torso(batch.observations[t].double()) if network.value_torso else features
            if network.state_shapes:
                state = tuple(torch.where(batch.first[t, :, None], 0.0, s) for s in state)
                features, state = network.core.step(features, state)
                critic_features = features
            rows.append((network.policy_head(features), network.critic_head(critic_features)))
        return torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])

    def _targets(
        self, batch: Batch, rewards: Tensor, log_prob: Tensor, params: Tensor, critic: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The critic's targets, advantages and their importance weights (zero in invalid rows), each [T, B]."""
        options, final, values = self.config.algorithm, self._final_values(batch), self._state_values(params, critic)
        log_rhos, clips = log_prob - batch.behaviour_log_prob, (options.clip_rho, options.clip_c, options.clip_pg_rho)
        if self.corrector == "none":
            log_rhos, clips = torch.zeros_like(log_rhos), (None, None, None)
        unroll = {
            "log_rhos": log_rhos,
            "rewards": rewards.double(),
            "discounts": options.discount * (~batch.terminated).double(),
            "values": values[:-1],
            "bootstrap_value": values[-1],
            "valid": batch.valid,
            "cut": torch.zeros_like(batch.truncated) if final is None else batch.truncated,
            "cut_values": torch.zeros_like(log_rhos) if final is None else final,
        }
        clip_rho, clip_c, clip_pg_rho = clips
        if self.corrector == "retrace":
            unroll["q_taken"] = critic[:-1].gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
            targets, weighted = test_retrace.oracle(unroll, clip_c, None, options.lambda_)
        else:
            targets, weighted = test_vtrace.oracle(unroll, clip_rho, clip_c, None, options.lambda_)
        weights = torch.where(batch.valid, log_rhos.exp().clamp_max(clip_pg_rho or math.inf), 0.0)
        return targets, weighted / log_rhos.exp(), weights

    def _state_values(self, params: Tensor, critic: Tensor) -> Tensor:
        """V; of Retrace's critic, the mean of its action values under the policy."""
        return (torch.softmax(params, -1) * critic).sum(-1) if self.corrector == "retrace" else critic[..., 0]

    def _final_values(self, batch: Batch) -> Tensor | None:
        if batch.final_observations is None:
            return None
        with torch.no_grad():
            network, x = self.network, batch.final_observations.double().flatten(0, 1)
            features = network.torso(x)
            critic = network.critic_head(network.value_torso(x) if network.value_torso else features)
            return self._state_values(network.policy_head(features), critic).view(LENGTH, ENVS)

    def _log_prob(self, params: Tensor, batch: Batch) -> Tensor:
        """Of the actions that were taken, [T, B], by torch's own distributions."""
        action = self.spec.action
        parts = zip(references(action, params[:-1]), parts_of(action, batch.actions), strict=True)
        return torch.stack([part.log_prob(taken) for part, taken in parts]).sum(0)
