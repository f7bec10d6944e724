"""torch layers in two thin factors, drop-in for the layers that they replace in a policy about to be exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def factored_linear(layer: nn.Linear, rank: int) -> nn.Sequential:
    """Linear to ``rank`` features, then to the outputs."""
    first = nn.Linear(layer.in_features, rank, bias=False)
    return nn.Sequential(first, nn.Linear(rank, layer.out_features, bias=layer.bias is not None))


def factored_convolution(layer: nn.Conv2d, rank: int) -> nn.Sequential:
    """The layer's convolution to ``rank`` channels, then 1 × 1 to the outputs."""
    first = nn.Conv2d(
        layer.in_channels,
        rank,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        layer.dilation,  # type: ignore[arg-type]
        bias=False,
    )
    return nn.Sequential(first, nn.Conv2d(rank, layer.out_channels, 1, bias=layer.bias is not None))


class FactoredLSTMCell(nn.ModuleList):
    """``nn.LSTMCell`` whose four gates come from one product in two factors; gate order i, f, g, o."""

    def __init__(self, input_size: int, hidden_size: int, rank: int, bias: bool) -> None:
        first = nn.Linear(input_size + hidden_size, rank, bias=False)
        super().__init__([first, nn.Linear(rank, 4 * hidden_size, bias=bias)])

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[N, I] and (h, c) [N, H] to the next (h, c)."""
        h, c = state
        first, second = self
        gates: Tensor = second(first(torch.cat([x, h], dim=1)))
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class FactoredLSTM(FactoredLSTMCell):
    """``nn.LSTM`` of one layer over one step, whose gates come from one product in two factors."""

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[1, N, I] and (h, c) [1, N, H] to the output [1, N, H] and the next (h, c) [1, N, H]."""
        h, c = super().forward(x[0], (state[0][0], state[1][0]))
        return h[None], (h[None], c[None])
