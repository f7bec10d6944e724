"""The search space of a sweep after training: choices per layer, and the scheme text of a set of choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, get_args

from optuna.trial import Trial

from accel.compressors.layer_inventory import PolicyLayer
from accel.config import did_you_mean
from accel.errors import ConfigError

T = TypeVar("T")
Bits = Literal["fp32", "int8", "int8-per-channel", "int4"]
BITS: tuple[Bits, ...] = get_args(Bits)
ORDERS = ("prune+lowrank", "lowrank+prune")
_LAYER_FORMATS: Mapping[Bits, str] = {
    "fp32": "float", "int8": "per_tensor", "int8-per-channel": "per_channel", "int4": "int4",
}  # fmt: skip
_WHOLE_RANK = 1.0


@dataclass(frozen=True)
class LayerChoice:
    """The compression of one layer.

    Attributes:
        bits: number format of its weights.
        pruned: share of its units to remove, 0 for none.
        rank: rank of its factorisation as a share of the full rank, 1 for none.
    """

    bits: Bits = "fp32"
    pruned: float = 0.0
    rank: float = _WHOLE_RANK


@dataclass(frozen=True)
class ChoiceOptions:
    """The choices for each layer.

    Attributes:
        bits: see ``BITS``.
        pruned: shares of units to remove, 0 for none, each below 1.
        ranks: shares of the full rank, 1 for no factorisation.
    """

    bits: tuple[Bits, ...] = BITS
    pruned: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    ranks: tuple[float, ...] = (1.0, 0.5, 0.25)

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not self.bits or not self.pruned or not self.ranks:
            raise ConfigError("the space is empty: bits, prune and rank need at least one choice each")
        if any(not 0.0 <= share < 1.0 for share in self.pruned):
            raise ConfigError(f"prune = {self.pruned}: shares to remove lie from 0 to below 1")
        if any(not 0.0 < share <= 1.0 for share in self.ranks):
            raise ConfigError(f"rank = {self.ranks}: shares of the full rank lie above 0 and up to 1")

    @classmethod
    def with_bits(cls, names: Sequence[str]) -> Self:
        """The default choices with only the given number formats. Raises ConfigError: an unknown one."""
        for name in names:
            if name == "qat":
                raise ConfigError(
                    "bits 'qat' is a training method: after training its graph is that of int8, so give int8; for a "
                    "sweep in training, make qat a choice of [space.compressor]"
                )
            if name not in BITS:
                raise ConfigError(f"unknown bits {name!r}{did_you_mean(name, BITS)}; there are {', '.join(BITS)}")
        return cls(tuple(bits for bits in BITS if bits in names))


@dataclass(frozen=True)
class SchemeSpace:
    """All schemes of per-layer choices for a policy."""

    layers: tuple[PolicyLayer, ...]
    options: ChoiceOptions

    def __post_init__(self) -> None:
        """Raises ConfigError if there is nothing to choose."""
        if len(self.options.bits) == 1 and not any(len(self._pruned(a)) + len(self._ranks(a)) > 2 for a in self.layers):
            raise ConfigError(
                "the space is empty: there is one number format, and the given shares and ranks make no layer of this "
                "policy smaller; allow more of bits, prune or rank"
            )

    def suggest(self, trial: Trial) -> str:
        """A scheme's text, by a trial's parameters ``bits/LAYER``, ``prune/LAYER``, ``rank/LAYER`` and ``order``."""
        choices: dict[str, LayerChoice] = {}
        for layer in self.layers:
            name = layer.name
            chosen: Bits = _suggest(trial, f"bits/{name}", self.options.bits)
            pruned = _suggest(trial, f"prune/{name}", self._pruned(layer))
            rank = _suggest(trial, f"rank/{name}", self._ranks(layer))
            choices[name] = LayerChoice(chosen, pruned, rank)
        reducing = any(len(self._pruned(a)) > 1 for a in self.layers) and any(
            len(self._ranks(a)) > 1 for a in self.layers
        )
        order = _suggest(trial, "order", ORDERS if reducing else ORDERS[:1])
        return self.scheme(choices, order)

    def scheme(self, choices: Mapping[str, LayerChoice], order: str = ORDERS[0]) -> str:
        """The shortest text for the choices; other layers are not compressed.

        Args:
            choices: by layer.
            order: of ``ORDERS``; matters only where layers are both pruned and factorised.
        """
        whole = {layer.name: choices.get(layer.name, LayerChoice()) for layer in self.layers}
        pruned = {n: c.pruned for n, c in whole.items() if c.pruned}
        ranks = {n: c.rank for n, c in whole.items() if c.rank < _WHOLE_RANK}
        parts: list[str] = []
        if pruned and ranks and order == ORDERS[1]:
            # a factorised layer's units are those of its second factor
            parts = [self._lowrank(ranks), self._prune({f"{n}.1" if n in ranks else n: s for n, s in pruned.items()})]
        else:
            parts = [self._prune(pruned)] if pruned else []
            parts += [self._lowrank(ranks)] if ranks else []
        number_format = _format({name: choice.bits for name, choice in whole.items()})
        if number_format or not parts:
            parts.append(number_format or "fp32")
        return "+".join(parts)

    def uniform(self) -> Iterator[Mapping[str, object]]:
        """Parameters of the first trials, which treat all layers alike: each format, unpruned and mildly pruned."""
        mildest = [share for share in sorted(self.options.pruned) if share > 0][:1]
        for bits in self.options.bits:
            yield self._parameters(bits, 0.0)
        for bits in self.options.bits[:2]:
            for share in mildest:
                yield self._parameters(bits, share)

    def alone(self) -> Iterator[tuple[PolicyLayer, LayerChoice]]:
        """Every layer with each of its options, to be compressed alone."""
        for layer in self.layers:
            yield from ((layer, LayerChoice(bits=bits)) for bits in self.options.bits if bits != "fp32")
            yield from ((layer, LayerChoice(pruned=share)) for share in self._pruned(layer) if share)
            yield from ((layer, LayerChoice(rank=share)) for share in self._ranks(layer) if share < _WHOLE_RANK)

    def _parameters(self, bits: Bits, pruned: float) -> Mapping[str, object]:
        found: dict[str, object] = {}
        for layer in self.layers:
            found[f"bits/{layer.name}"] = bits
            found[f"prune/{layer.name}"] = _text(pruned if pruned in self._pruned(layer) else self._pruned(layer)[0])
            found[f"rank/{layer.name}"] = _text(max(self._ranks(layer)))
        return {**found, "order": ORDERS[0]}

    def _pruned(self, layer: PolicyLayer) -> tuple[float, ...]:
        """Shares that remove different numbers of units."""
        found = {0: 0.0} if 0.0 in self.options.pruned or not layer.units else {}
        for share in sorted(self.options.pruned):
            removed = layer.units - layer.keeps(share) if layer.units else 0
            found.setdefault(removed, share if removed else 0.0)
        return tuple(sorted(found.values()))

    def _ranks(self, layer: PolicyLayer) -> tuple[float, ...]:
        """Shares of different ranks whose factors are smaller than the weight."""
        found: dict[int | None, float] = {None: _WHOLE_RANK} if _WHOLE_RANK in self.options.ranks else {}
        for share in sorted(self.options.ranks):
            rank = layer.rank(share)
            if rank is not None:
                found.setdefault(rank, share)
        return tuple(sorted(found.values())) or (_WHOLE_RANK,)

    def _prune(self, pruned: Mapping[str, float]) -> str:
        return _with_ratios("prune", pruned, {layer.name for layer in self.layers if layer.units})

    def _lowrank(self, ranks: Mapping[str, float]) -> str:
        # one rank for all is only right if all layers are factorised
        return _with_ratios("lowrank", ranks, {layer.name for layer in self.layers})


def _suggest(trial: Trial, name: str, choices: Sequence[T]) -> T:
    """One of the choices; a parameter only if there are several."""
    if len(choices) == 1:
        return choices[0]
    texts = [_text(choice) for choice in choices]
    return choices[texts.index(trial.suggest_categorical(name, texts))]


def _text(choice: object) -> str:
    return f"{choice:g}" if isinstance(choice, float) else str(choice)


def _with_ratios(method: str, ratios: Mapping[str, float], every: set[str]) -> str:
    values = set(ratios.values())
    if set(ratios) == every and len(values) == 1:
        return f"{method}({values.pop():g})"
    return f"{method}({','.join(f'{layer}={ratio:g}' for layer, ratio in ratios.items())})"


def _format(bits: Mapping[str, Bits]) -> str:
    """The number format's part of a scheme, "" for single precision everywhere."""
    used = Counter(bits.values())
    if set(used) == {"fp32"}:
        return ""
    if set(used) == {"int4"}:
        return "int4"
    most: Bits = "int8-per-channel" if used["int8-per-channel"] > used["int8"] else "int8"
    arguments = ["per_channel", "x8"] if most == "int8-per-channel" else ["x8"]
    arguments += [f"{layer}={_LAYER_FORMATS[choice]}" for layer, choice in bits.items() if choice != most]
    return f"int8({','.join(arguments)})"
