"""R2D2: recurrent, double, duelling, n-step Q-learning from sequences with stored state and burn-in.

    y_t = Σ_{k<m} γ^k r_{t+k} + γ^m Q_target(o_{t+m}, argmax_a Q(o_{t+m}, a)),   loss: ½ (Q(o_t, a_t) − y_t)²

A sequence starts from the recurrent state that its actor had. All unrolls of it but the last only warm that state up,
without gradient; steps of the last are learned from. m is n, or less where the episode or the sequence ends.

Source: Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning, section 2 and 3.
Deviations: the burn-in is whole unrolls; gradients run through one unroll; rewards are normalised in place of a
rescaling of values, and β is 1, not 0.6 (``dqn`` says why); the target network keeps the observation statistics that
its weights were copied with; the previous action and reward are no inputs.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from accel.algorithms.base import Phase, Update
from accel.algorithms.dqn import Dqn
from accel.config import TrainConfig
from accel.config.algorithms import R2d2Config
from accel.config.experience import SequencesConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample
from accel.networks import PolicyNetwork


class R2d2(Dqn):
    """Args: as for ``Dqn``."""

    recurrent = True

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: R2d2Config) -> None:
        super().__init__(config, spec, device, options)
        if spec.autoreset == "same_step":
            raise ConfigError(
                f"r2d2 is recurrent, and {config.environment.env} resets within a step, where the value of an "
                "episode's final observation would need a recurrent state that is gone: use --algorithm apex"
            )
        self._rows = config.acting.unroll_length
        self._mix = config.store.priority_mix if isinstance(config.store, SequencesConfig) else 1.0

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """See ``Algorithm.update``."""
        batch, rewards = cast(Batch, sample.batch), cast(Tensor, sample.rewards)
        rate = self.begin(progress)
        self.refresh_target()
        valid = batch.valid[-self._rows :].float()
        with torch.no_grad(), self.autocast():
            following = self.sequence_q(self.target, batch)
        with self.autocast():
            q = self.sequence_q(self.network, batch)
        mark("forward")
        chooser = q.detach() if self.options.double else following
        values = following.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
        targets = self.n_step_targets(batch, rewards[-self._rows :], values)
        mark("correct")
        taken = q[:-1].gather(-1, batch.actions[-self._rows :].unsqueeze(-1)).squeeze(-1)
        weights = valid if sample.weights is None else valid * sample.weights
        loss = 0.5 * ((taken - targets).square() * weights).sum() / valid.sum().clamp_min(1.0)
        norm = self.step(loss)
        mark("backward")
        errors = (taken.detach() - targets).abs() * valid
        mean = errors.sum(0) / valid.sum(0).clamp_min(1.0)

        def read() -> dict[str, float]:
            steps = valid.sum().clamp_min(1.0)
            return {
                "loss": float(loss.detach()),
                "value_loss": float(loss.detach()),
                "q_mean": float((taken.detach() * valid).sum() / steps),
                "td_error": float(errors.sum() / steps),
                "gradient_norm": float(norm),
                "learning_rate": rate,
            }

        return Update(read, self._mix * errors.amax(0) + (1.0 - self._mix) * mean)

    def sequence_q(self, network: PolicyNetwork, batch: Batch) -> Tensor:
        """[T+1, N, n] of the last unroll's rows and the bootstrap's, after the burn-in."""
        burn = len(batch.valid) - self._rows
        states = batch.states
        if burn:
            with torch.no_grad():
                states = network(batch.observations[:burn], batch.first[:burn], states).state
        output = network(batch.observations[burn:], batch.first[burn:], states)
        return self.q_values(output.params.float())

    @torch.no_grad()
    def n_step_targets(self, batch: Batch, rewards: Tensor, values: Tensor) -> Tensor:
        """[T, N] y of the rewards [T, N] and the values [T+1, N] to bootstrap from."""
        options, rows = self.options, self._rows
        terminated, truncated = batch.terminated[-rows:], batch.truncated[-rows:]
        ends = terminated | truncated
        cut = truncated & ~terminated
        total = torch.zeros_like(rewards)
        going_on = torch.ones_like(ends)
        discount = 1.0
        for k in range(options.n_step):
            left = max(rows - k, 0)  # Starts whose k-th next row is in the sequence; the others bootstrap at its end.
            if k and left < rows:
                total[left : left + 1] += going_on[left : left + 1] * discount * values[-1]
            going_on[left:] = False
            if not left:
                break
            now = going_on[:left]
            total[:left] += now * discount * rewards[k:]
            discount *= options.discount
            total[:left] += (now & cut[k:]) * discount * values[k + 1 :]
            going_on[:left] = now & ~ends[k:]
        left = max(rows - options.n_step + 1, 0)
        total[:left] += going_on[:left] * discount * values[options.n_step :]
        return total
