"""LSTMs and GRUs that forget at episode starts, over a whole unroll as one differentiable call: what runs on a CPU.

LSTM, with z_t = x_t W_ihᵀ + b_ih + b_hh + (m_t h_{t−1}) W_hhᵀ and m_t = 0 where row t begins an episode, else 1:

    i, f, o = σ(z^i), σ(z^f), σ(z^o);   g = tanh(z^g)
    c_t = f ∘ m_t c_{t−1} + i ∘ g;      h_t = o ∘ tanh(c_t)

GRU, with x^g = x_t W_ihᵀ + b_ih given and h̃ = m_t h_{t−1}, u = h̃ W_hhᵀ + b_hh:

    r, z = σ(x^r + u^r), σ(x^z + u^z);   n = tanh(x^n + r ∘ u^n);   h_t = n + z ∘ (h̃ − n)

The gradients of the weights are one product over all rows, where torch's own autograd adds up one a step; resets cost
two multiplications a step. Gate order i, f, g, o, as in ``nn.LSTM``, and r, z, n, as in ``nn.GRU``.
Sources: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; Cho et al. 2014, arXiv:1406.1078.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def unroll_lstm(
    x: Tensor, keep: Tensor, state: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs over time on the CPU; gradients reach x, the state and the weights.

    Args:
        x: [T, B, F].
        keep: m as [T, B, 1] of x's dtype.
        state: h and c before row 0, each [B, H].
        weights: W_ih [4H, F], W_hh [4H, H], b_ih [4H], b_hh [4H].
    Returns:
        h of every row [T, B, H], and h and c after the last, each [B, H].
    """
    result: tuple[Tensor, Tensor, Tensor] = _Unroll.apply(x, keep, *state, *weights)  # type: ignore[no-untyped-call]
    return result


def unroll_gru(gates: Tensor, keep: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Runs over time on the CPU; gradients reach gates, state, weight and bias.

    Args:
        gates: x^r, x^z, x^n as [T, B, 3H].
        keep: m as [T, B, 1] of their dtype.
        hidden: h before row 0, [B, H].
        weight, bias: W_hh [3H, H], b_hh [3H].
    Returns:
        h of every row [T, B, H].
    """
    output: Tensor = _UnrollGRU.apply(gates, keep, hidden, weight, bias)  # type: ignore[no-untyped-call]
    return output


class _UnrollGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, gates: Tensor, keep: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        length, batch, size = gates.shape[0], gates.shape[1], hidden.shape[1]
        before, candidate, from_hidden, output = (gates.new_empty(length, batch, size) for _ in range(4))
        updates = gates.new_empty(length, batch, 2 * size)
        transposed = weight.t()
        rows = zip(gates, keep, before, updates, candidate, from_hidden, output, strict=True)
        for gate, m, h, rz, n, u_n, out in rows:
            torch.mul(hidden, m, out=h)
            u = torch.addmm(bias, h, transposed)
            torch.add(gate[:, : 2 * size], u[:, : 2 * size], out=rz).sigmoid_()
            u_n.copy_(u[:, 2 * size :])
            torch.addcmul(gate[:, 2 * size :], rz[:, :size], u_n, out=n)
            array = n.numpy()
            np.tanh(array, array)
            hidden = torch.lerp(n, h, rz[:, size:], out=out)
        ctx.save_for_backward(keep, weight, before, updates, candidate, from_hidden)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, d_output: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        keep, weight, before, updates, candidate, from_hidden = saved
        length, batch, size = before.shape
        r, z = torch.split(updates, size, 2)
        # Everything that does not depend on later rows, for all rows at once.
        of_z = (before - candidate) * z * (1 - z)
        of_n = (1 - z) * (1 - candidate * candidate)
        of_r = from_hidden * r * (1 - r)
        d_gates = d_output.new_empty(length, batch, 3 * size)
        d_u = torch.empty_like(d_gates)
        d_hidden = d_output.new_zeros(batch, size)
        for t in range(length - 1, -1, -1):
            d_hidden = d_hidden + d_output[t]
            d_n = of_n[t] * d_hidden
            gate, u = d_gates[t], d_u[t]
            torch.mul(of_r[t], d_n, out=gate[:, :size])
            torch.mul(of_z[t], d_hidden, out=gate[:, size : 2 * size])
            gate[:, 2 * size :] = d_n
            u[:, : 2 * size] = gate[:, : 2 * size]
            torch.mul(r[t], d_n, out=u[:, 2 * size :])
            d_hidden = torch.addcmul(u @ weight, d_hidden, z[t]).mul_(keep[t])
        flat = d_u.view(length * batch, 3 * size)
        return d_gates, None, d_hidden, flat.t() @ before.view(length * batch, size), flat.sum(0)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor,
        w_input: Tensor, w_hidden: Tensor, b_input: Tensor, b_hidden: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        length, batch, features = x.shape
        size = hidden.shape[1]
        gates = torch.addmm(b_input + b_hidden, x.reshape(-1, features), w_input.t()).view(length, batch, 4 * size)
        before_h, before_c, output, squashed = (x.new_empty(length, batch, size) for _ in range(4))
        transposed = w_hidden.t()
        for gate, m, h, c, out, tanh_c in zip(gates, keep, before_h, before_c, output, squashed, strict=True):
            torch.mul(hidden, m, out=h)
            torch.mul(cell, m, out=c)
            gate.addmm_(h, transposed)
            _activate(gate, size)
            i, f, g, o = torch.split(gate, size, 1)
            cell = torch.addcmul(f * c, i, g)
            np.tanh(cell.numpy(), tanh_c.numpy())
            hidden = torch.mul(o, tanh_c, out=out)
        ctx.save_for_backward(x, keep, w_input, w_hidden, gates, before_h, before_c, squashed)
        return output, hidden.clone(), cell

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, d_output: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        x, keep, w_input, w_hidden, gates, before_h, before_c, tanh_c = saved
        length, batch, size = before_h.shape
        i, f, g, o = torch.split(gates, size, 2)
        # Everything that does not depend on later rows, for all rows at once.
        of_cell = torch.stack((g * i * (1 - i), before_c * f * (1 - f), i * (1 - g * g)), dim=2)
        of_hidden = tanh_c * o * (1 - o)
        cell_of_hidden = o * (1 - tanh_c * tanh_c)
        forget = f * keep
        d_gates = x.new_empty(length, batch, 4, size)
        for t in range(length - 1, -1, -1):
            d_hidden = d_hidden + d_output[t]
            d_cell = torch.addcmul(d_cell, d_hidden, cell_of_hidden[t])
            d_gate = d_gates[t]
            torch.mul(of_cell[t], d_cell.unsqueeze(1), out=d_gate[:, :3])
            torch.mul(of_hidden[t], d_hidden, out=d_gate[:, 3])
            d_hidden = (d_gate.view(batch, -1) @ w_hidden).mul_(keep[t])
            d_cell = d_cell * forget[t]
        flat = d_gates.view(length * batch, 4 * size)
        d_x = (flat @ w_input).view_as(x) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        d_bias = flat.sum(0)
        d_w_input = flat.t() @ x.reshape(length * batch, -1)
        d_w_hidden = flat.t() @ before_h.view(length * batch, size)
        return d_x, None, d_hidden, d_cell, d_w_input, d_w_hidden, d_bias, d_bias.clone()


def _activate(gates: Tensor, size: int) -> None:
    """[B, 4H] before activation to i, f, g, o in place."""
    gates[:, : 2 * size].sigmoid_()
    gates[:, 3 * size :].sigmoid_()
    candidate = gates[:, 2 * size : 3 * size].numpy()
    np.tanh(candidate, candidate)
