"""Recurrent cores: an LSTM or a GRU over time that forgets at every ``first`` row, in one call."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from accel.experience.transfer import to_device
from accel.networks import dense
from accel.networks.initialisation import orthogonal_gates
from accel.networks.recurrence import unroll_gru, unroll_lstm


class RecurrentCore(nn.Module):
    """What a network keeps from step to step. In this one, the identity, features pass, and nothing is kept.

    Attributes:
        state_shapes: of one environment. size: features of its output.
    """

    def __init__(self, size: int, *state_shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.size, self.state_shapes = size, state_shapes

    def forward(self, features: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A whole unroll.

        Args:
            features: [T, B, F].
            first: [T, B] bool, rows that begin an episode. On the host: for one on a GPU an LSTM waits.
            state: before row 0, each [B, *shape].
        Returns:
            [T, B, size], and the state after the last row.
        """
        return features, state

    def step(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One row without resets: [B, F] and the state to the output [B, size] and the next state."""
        return features, state


class LSTMCore(RecurrentCore):
    """h_t, c_t = LSTM(x_t, m_t h_{t−1}, m_t c_{t−1}) with m_t = 0 where row t is the first of an episode, else 1.

    On a GPU in single precision under autocast too, which by torch's source computes it in float16 whatever it is asked
    for.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__(size, (size,), (size,))
        self.lstm = nn.LSTM(features, size)
        # The learner keeps all parameters in one vector; cuDNN copies an LSTM's at each call, which costs little.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        orthogonal_gates(self.lstm, 4)

    def forward(self, features: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See ``RecurrentCore``; the state is h and c."""
        if features.is_cuda and torch.is_autocast_enabled("cuda"):
            with torch.autocast("cuda", enabled=False):
                hidden, cell = (part.float() for part in state)
                return self.forward(features.float(), first, (hidden, cell))
        host = first.detach().cpu().numpy()
        hidden, cell = state
        if host[0].any():
            keep = to_device(torch.logical_not(first[0]), hidden.device).to(hidden.dtype).unsqueeze(1)
            hidden, cell = hidden * keep, cell * keep
        if host[1:].any():
            if not dense.suits(features):
                return self._packed(features, host, hidden, cell)
            # Row by row on a CPU, where autograd's packed sequences take time that grows with the square of T.
            w_input, w_hidden, b_input, b_hidden = self.lstm.parameters()
            keep = torch.logical_not(first).to(features).unsqueeze(2)
            output, *after = unroll_lstm(features, keep, (hidden, cell), (w_input, w_hidden, b_input, b_hidden))
            return output, tuple(after)
        output, (hidden, cell) = self.lstm(features, (hidden.unsqueeze(0), cell.unsqueeze(0)))
        return output, (hidden.squeeze(0), cell.squeeze(0))

    def step(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See ``RecurrentCore``."""
        hidden, cell = state
        _, (hidden, cell) = self.lstm(features.unsqueeze(0), (hidden.unsqueeze(0), cell.unsqueeze(0)))
        hidden, cell = hidden.squeeze(0), cell.squeeze(0)
        return hidden, (hidden, cell)

    def _packed(
        self, features: Tensor, first: npt.NDArray[np.bool_], hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Every episode, or piece of one, as a sequence of its own, for cuDNN."""
        length, batch = first.shape
        packing = _Packing(first)
        device = features.device
        rows, places, carried, last = (
            to_device(torch.from_numpy(indices), device)
            for indices in (packing.rows, packing.places, packing.carried, packing.last)
        )
        # Sequences that do not start at row 0 start from zero: they take the row of zeros appended to the state.
        initial = tuple(
            torch.cat((s, s.new_zeros(1, self.size))).index_select(0, carried).unsqueeze(0) for s in (hidden, cell)
        )
        packed = PackedSequence(
            features.reshape(length * batch, -1).index_select(0, rows), torch.from_numpy(packing.batch_sizes)
        )
        output, (hidden, cell) = self.lstm(packed, initial)
        unpacked = output.data.index_select(0, places).view(length, batch, self.size)
        return unpacked, (hidden[0].index_select(0, last), cell[0].index_select(0, last))


class GRUCore(RecurrentCore):
    """h_t = (1 − z) ∘ n + z ∘ h̃ with h̃ = m_t h_{t−1}, m_t = 0 where row t is the first of an episode, else 1, and

        r, z = σ(W_i^{rz} x_t + b_i + W_h^{rz} h̃ + b_h);   n = tanh(W_i^n x_t + b_i + r ∘ (W_h^n h̃ + b_h))

    Two linear layers of 3H outputs in the order r, z, n of ``nn.GRU``, so that an exported step is made of products
    that every compression scheme knows: onnxruntime has no integer kernel for its own GRU operator. The state alone is
    never pruned. Source: Cho et al. 2014, arXiv:1406.1078, in cuDNN's variant, which applies r after the product.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__(size, (size,))
        self.input = nn.Linear(features, 3 * size)
        self.hidden = nn.Linear(size, 3 * size)
        for layer in (self.input, self.hidden):
            orthogonal_gates(layer, 3)

    def forward(
        self, features: Tensor, first: Tensor, state: tuple[Tensor, ...], by_layers: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See ``RecurrentCore``; ``by_layers``: row by row, as quantisation-aware training takes the layers' place."""
        (hidden,) = state
        keep = to_device(torch.logical_not(first), features.device).to(features.dtype).unsqueeze(2)
        gates = self.input(features)
        if not by_layers and dense.suits(gates):
            output = unroll_gru(gates, keep, hidden, self.hidden.weight, self.hidden.bias)
            return output, (output[-1],)
        rows = []
        for row, m in zip(gates, keep, strict=True):
            hidden = self._advance(row, hidden * m)
            rows.append(hidden)
        return torch.stack(rows), (hidden,)

    def step(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See ``RecurrentCore``."""
        hidden = self._advance(self.input(features), state[0])
        return hidden, (hidden,)

    def _advance(self, gates: Tensor, hidden: Tensor) -> Tensor:
        """[B, 3H] from the features and h̃ [B, H] to h."""
        from_features, from_hidden = (torch.split(three, self.size, 1) for three in (gates, self.hidden(hidden)))
        reset = torch.sigmoid(from_features[0] + from_hidden[0])
        update = torch.sigmoid(from_features[1] + from_hidden[1])
        candidate = torch.tanh(from_features[2] + reset * from_hidden[2])
        return candidate + update * (hidden - candidate)


class _Packing:
    """How the episodes in an unroll [T, B] become a PackedSequence; row t of environment b is element t·B + b.

    Attributes:
        batch_sizes: [longest] sequences that reach each step.
        rows: [T·B] the element at each place of the packed order.
        places: [T·B] the place of each element, the inverse of ``rows``.
        carried: [S] for each sequence the environment whose state it continues, or B for none.
        last: [B] the sequence that each environment ends the unroll with.
    """

    def __init__(self, first: npt.NDArray[np.bool_]) -> None:
        length, batch = first.shape
        begins = first.copy()
        begins[0] = True
        environment, start = np.nonzero(begins.T)
        following = np.append(start[1:], 0)
        # A sequence ends where its environment's next begins; an environment's last one ends with the unroll.
        is_last = np.append(environment[1:] != environment[:-1], True)
        lengths = np.where(is_last, length, following) - start
        order = np.argsort(-lengths, kind="stable")
        environment, start, lengths, is_last = environment[order], start[order], lengths[order], is_last[order]
        steps = np.arange(lengths[0])[:, None]
        reached = steps < lengths
        self.batch_sizes = reached.sum(axis=1)
        self.rows = ((start + steps) * batch + environment)[reached]
        self.places = np.empty_like(self.rows)
        self.places[self.rows] = np.arange(length * batch)
        self.carried = np.where(start == 0, environment, batch)
        self.last = np.empty(batch, np.int64)
        self.last[environment[is_last]] = np.nonzero(is_last)[0]
