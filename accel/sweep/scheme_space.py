"""The search space of a sweep after training: choices per layer, and the scheme text of a set of choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from accel.compressors.layer_inventory import PolicyLayer
from accel.errors import ConfigError
from accel.sweep.search import Bits, CandidateOptions

ORDERS = ("prune+lowrank", "lowrank+prune")
_LAYER_FORMATS: Mapping[Bits, str] = {"fp32": "float", "int8": "int8", "int4": "int4"}
_WHOLE_RANK = 1.0


class SchemeSpace:
    """All schemes of per-layer choices for a policy.

    Attributes:
        parameters: those of a trial, as far as there is a choice: ``bits/LAYER``, ``prune/LAYER``, ``rank/LAYER`` and
            ``order``.
    """

    def __init__(self, layers: Sequence[PolicyLayer], options: CandidateOptions) -> None:
        """Raises ConfigError if there is nothing to choose."""
        self.layers = tuple(layers)
        self._bits = options.bits
        self._pruned = {layer.name: _pruned(layer, options.prune) for layer in layers}
        self._ranks = {layer.name: _ranks(layer, options.rank) for layer in layers}
        reduces = [any(len(shares) > 1 for shares in table.values()) for table in (self._pruned, self._ranks)]
        choices: dict[str, Sequence[str | float]] = {"order": ORDERS if all(reduces) else ORDERS[:1]}
        for name in self._pruned:
            choices[f"bits/{name}"] = options.bits
            choices[f"prune/{name}"] = self._pruned[name]
            choices[f"rank/{name}"] = self._ranks[name]
        self._first = {name: values[0] for name, values in choices.items()}
        self.parameters: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in choices.items() if len(values) > 1
        }
        if not self.parameters:
            raise ConfigError(
                "the space is empty: there is one number format, and the given shares and ranks make no layer of this "
                "policy smaller; allow more of bits, prune or rank"
            )

    def scheme_of(self, parameters: Mapping[str, object]) -> str:
        """The shortest text for a trial's parameters; those that are left out have the first of their choices."""
        chosen: dict[str, Any] = {**self._first, **parameters}
        names = [layer.name for layer in self.layers]
        pruned = {name: share for name in names if (share := chosen[f"prune/{name}"])}
        ranks = {name: rank for name in names if (rank := chosen[f"rank/{name}"]) < _WHOLE_RANK}
        parts: list[str] = []
        if pruned and ranks and chosen["order"] == ORDERS[1]:
            # a factorised layer's units are those of its second factor
            parts = [self._lowrank(ranks), self._prune({f"{n}.1" if n in ranks else n: s for n, s in pruned.items()})]
        else:
            parts = [self._prune(pruned)] if pruned else []
            parts += [self._lowrank(ranks)] if ranks else []
        number_format = _format({name: chosen[f"bits/{name}"] for name in names})
        if number_format or not parts:
            parts.append(number_format or "fp32")
        return "+".join(parts)

    def uniform(self) -> Iterator[Mapping[str, object]]:
        """Parameters of the first trials, which treat all layers alike: each format, unpruned and mildly pruned."""
        shares = sorted({share for found in self._pruned.values() for share in found if share})
        pairs = [(bits, 0.0) for bits in self._bits] + [
            (bits, share) for bits in self._bits[:2] for share in shares[:1]
        ]
        for bits, share in pairs:
            alike: dict[str, object] = dict(self._first)
            for name, found in self._pruned.items():
                alike |= {f"bits/{name}": bits, f"prune/{name}": share if share in found else found[0]}
            yield alike

    def _prune(self, pruned: Mapping[str, float]) -> str:
        return _with_ratios("prune", pruned, {layer.name for layer in self.layers if layer.units})

    def _lowrank(self, ranks: Mapping[str, float]) -> str:
        # one rank for all is only right if all layers are factorised
        return _with_ratios("lowrank", ranks, {layer.name for layer in self.layers})


def _pruned(layer: PolicyLayer, shares: Sequence[float]) -> tuple[float, ...]:
    """Shares that remove different numbers of units, least first."""
    found = {0: 0.0} if 0.0 in shares or not layer.units else {}
    for share in sorted(shares):
        removed = layer.units - layer.keeps(share) if layer.units else 0
        found.setdefault(removed, share if removed else 0.0)
    return tuple(sorted(found.values()))


def _ranks(layer: PolicyLayer, shares: Sequence[float]) -> tuple[float, ...]:
    """Shares of different ranks whose factors are smaller than the weight, greatest first."""
    found: dict[int | None, float] = {None: _WHOLE_RANK} if _WHOLE_RANK in shares else {}
    for share in sorted(shares):
        rank = layer.rank(share)
        if rank is not None:
            found.setdefault(rank, share)
    return tuple(sorted(found.values(), reverse=True)) or (_WHOLE_RANK,)


def _with_ratios(method: str, ratios: Mapping[str, float], every: set[str]) -> str:
    values = set(ratios.values())
    if set(ratios) == every and len(values) == 1:
        return f"{method}({values.pop():g})"
    return f"{method}({','.join(f'{layer}={ratio:g}' for layer, ratio in ratios.items())})"


def _format(bits: Mapping[str, Bits]) -> str:
    """The number format's part of a scheme, "" for single precision everywhere."""
    used = set(bits.values())
    if used == {"fp32"}:
        return ""
    if used == {"int4"}:
        return "int4"
    others = [f"{layer}={_LAYER_FORMATS[choice]}" for layer, choice in bits.items() if choice != "int8"]
    return f"int8({','.join(['x8', *others])})"
