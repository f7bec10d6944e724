"""PTR-PPO: PPO on each new batch, then on old trajectories, drawn by priority.

    p_i:  max_t |Â_t|,   mean_t |Â_t|,   or   (R_i − R_min) / (R_max − R_min),  R_i = Σ_t r_t,  over its steps
    Â_t = v_t − V(x_t) = Σ_l (γλ)^l (Π_{k<l} c_{t+k}) ρ_{t+l} δ_{t+l},   ρ = min(ρ̄, π/μ),   c = min(c̄, π/μ)

π is the learner's policy when the batch is drawn, μ the one that acted. The weights of all steps of a product are
truncated, so that old trajectories have a bounded say; on a trajectory that π itself made, Â is GAE's. The surrogate's
trust region is around π, as PPO's. R_min and R_max are of all trajectories seen.

Source: Liang et al. 2021, arXiv:2112.03798. Deviations: the truncated weights are V-trace's, the two policies of the
surrogate decoupled PPO's; a trajectory is an unroll of one environment; its losses are weighted for its probability of
being drawn (``--weight-exponent 0``: not); priorities are those of its last update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from accel.algorithms.actor_critic import Targets
from accel.algorithms.ppo import Ppo
from accel.algorithms.state_tree import Tree
from accel.config import TrainConfig
from accel.config.algorithms import PtrPpoConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError
from accel.experience.batch import Batch


class PtrPpo(Ppo):
    """Args: as for ``Ppo``; the options say what a trajectory's priority is."""

    options: PtrPpoConfig

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, options: PtrPpoConfig) -> None:
        super().__init__(config, spec, device, options)
        self._returns = torch.tensor([math.inf, -math.inf], dtype=torch.float64, device=device)

    def priorities(self, batch: Batch, targets: Targets) -> Tensor:
        """[B] from a batch's rewards as they came, and what the correction made of them."""
        if self.options.trajectory_priority == "return":
            returns = torch.where(batch.valid, batch.rewards, 0.0).sum(0)
            counted, (least, greatest) = batch.valid.any(0), self._returns
            torch.minimum(least, torch.where(counted, returns, math.inf).amin().double(), out=least)
            torch.maximum(greatest, torch.where(counted, returns, -math.inf).amax().double(), out=greatest)
            shares: Tensor = (returns - least) / (greatest - least).clamp_min(1e-8)
            return shares.clamp(0.0, 1.0)
        errors = torch.where(batch.valid, (targets.values - targets.predictions).abs(), 0.0)
        if self.options.trajectory_priority == "max":
            return errors.amax(0)
        return errors.sum(0) / batch.valid.sum(0).clamp_min(1)

    def save(self) -> dict[str, Tree]:
        """The base's, and the least and the greatest return."""
        least, greatest = self._returns.tolist()
        return super().save() | {"returns": [least, greatest] if least <= greatest else []}

    def load(self, state: Mapping[str, Tree]) -> None:
        """Inverse of ``save``. Raises CheckpointError."""
        super().load(state)
        returns = state.get("returns")
        if not isinstance(returns, list):
            raise CheckpointError("the checkpoint lacks PTR-PPO's range of returns: it is of another algorithm")
        least, greatest = (float(str(returns[0])), float(str(returns[1]))) if returns else (math.inf, -math.inf)
        self._returns[0], self._returns[1] = least, greatest
