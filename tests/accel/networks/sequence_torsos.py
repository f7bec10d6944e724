"""Torsos over rows of three observations each, as a user writes them: a set, attention, and an LSTM over the rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accel.envs.spaces import EnvSpec

_FEATURES = 3


class Sets(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        (size,) = spec.observation_shape
        self.places = nn.Parameter(0.5 * torch.randn(size // _FEATURES, 16))
        self.first, self.second = nn.Linear(_FEATURES, 16), nn.Linear(16, 32)

    def forward(self, observations: Tensor) -> Tensor:
        rows = self.first(observations.reshape(-1, len(self.places), _FEATURES)) + self.places
        return torch.relu(self.second(torch.tanh(rows))).mean(1)


class Attention(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        (size,) = spec.observation_shape
        self.places = nn.Parameter(0.5 * torch.randn(size // _FEATURES, 16))
        self.embedding = nn.Linear(_FEATURES, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, observations: Tensor) -> Tensor:
        rows = self.embedding(observations.reshape(-1, len(self.places), _FEATURES)) + self.places
        return self.encoder(rows).flatten(1)


class Window(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_FEATURES, 16, batch_first=True)

    def forward(self, observations: Tensor) -> Tensor:
        return self.lstm(observations.unflatten(1, (-1, _FEATURES)))[0][:, -1]
