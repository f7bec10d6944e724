"""PPO in one file, as CleanRL writes it, with V-trace in place of GAE: ``python scripts/examples/ppo_vtrace.py``.

Each pass over a batch moves the policy away from the one that collected it. GAE is computed once and forgets that;
here ``accel.correctors.vtrace`` computes targets and advantages anew before every pass, with the policy's present
log-probabilities. The same call corrects experience of older or compressed policies: store the log-probability of the
policy that really acted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch
import tyro
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributions import Categorical

from accel.correctors import vtrace


@dataclass
class Args:
    """Options."""

    env_id: str = "CartPole-v1"
    total_timesteps: int = 200_000
    num_envs: int = 8
    num_steps: int = 128
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    update_epochs: int = 4
    num_minibatches: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    seed: int = 1
    weights: Path = Path("agent.safetensors")


def layer_init(layer: nn.Linear, std: float = np.sqrt(2)) -> nn.Linear:
    """Orthogonal weights."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Critic and actor, 64x2 each."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))

        def mlp(outputs: int, std: float) -> nn.Sequential:
            hidden = [layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()]
            return nn.Sequential(*hidden, layer_init(nn.Linear(64, outputs), std))

        self.critic = mlp(1, 1.0)
        self.actor = mlp(int(envs.single_action_space.n), 0.01)

    def policy(self, x: Tensor) -> Categorical:
        """The action distribution."""
        return Categorical(logits=self.actor(x))

    def value(self, x: Tensor) -> Tensor:
        """V(x)."""
        return self.critic(x).squeeze(-1)


def main(args: Args) -> None:
    """Train, then save the weights."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = gymnasium.make_vec(args.env_id, args.num_envs)  # an environment that is done resets in the next step
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    T, B = args.num_steps, args.num_envs
    obs = torch.zeros(T + 1, B, *envs.single_observation_space.shape)
    actions = torch.zeros(T, B, dtype=torch.int64)
    behaviour_log_probs, rewards = torch.zeros(T, B), torch.zeros(T, B)
    terminated, truncated, valid = (torch.zeros(T, B, dtype=torch.bool) for _ in range(3))
    next_obs, resets = torch.as_tensor(envs.reset(seed=args.seed)[0]), torch.zeros(B, dtype=torch.bool)
    returns, running, start = [0.0], np.zeros(B), time.time()

    for iteration in range(1, max(args.total_timesteps // (T * B), 1) + 1):
        for t in range(T):
            obs[t], valid[t] = next_obs, ~resets  # the step that resets ignores its action: it is no transition
            with torch.no_grad():
                policy = agent.policy(next_obs)
            actions[t] = policy.sample()
            behaviour_log_probs[t] = policy.log_prob(actions[t])
            step = envs.step(actions[t].numpy())
            next_obs = torch.as_tensor(step[0])
            rewards[t], terminated[t], truncated[t] = (torch.as_tensor(value) for value in step[1:4])
            resets = terminated[t] | truncated[t]
            running += step[1]
            returns += running[resets.numpy()].tolist()
            running[resets.numpy()] = 0.0
        obs[T] = next_obs

        for _ in range(args.update_epochs):
            with torch.no_grad():
                values = agent.value(obs)
                log_probs = agent.policy(obs[:-1]).log_prob(actions)
            corrected = vtrace(
                log_probs - behaviour_log_probs,
                rewards,
                args.gamma * (~terminated).float(),
                values[:-1],
                values[-1],
                lambda_=args.gae_lambda,
                valid=valid,
                cut=truncated,
                cut_values=values[1:],  # the observation after a truncated step is the episode's final one
            )
            rows = valid.flatten().nonzero().squeeze(1)
            for chosen in rows[torch.randperm(len(rows))].chunk(args.num_minibatches):
                x, taken = obs[:-1].flatten(0, 1)[chosen], actions.flatten()[chosen]
                policy = agent.policy(x)
                ratio = (policy.log_prob(taken) - behaviour_log_probs.flatten()[chosen]).exp()
                advantages = corrected.advantages.flatten()[chosen]
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
                value_loss = 0.5 * (agent.value(x) - corrected.vs.flatten()[chosen]).square().mean()
                loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        speed = iteration * T * B / (time.time() - start)
        print(f"{iteration * T * B:>9,} steps, return {np.mean(returns[-50:]):.1f}, {speed:,.0f} steps/s")
    envs.close()
    save_file(agent.state_dict(), args.weights)


if __name__ == "__main__":
    main(tyro.cli(Args))
