"""``int8`` of a policy that is given or finished: the cheapest encoding that keeps it, chosen layer by layer.

All dense layers but a small one that reads observations have activations of one byte where that holds the bar
(``accel.runs.quality``). Else they begin with two bytes. Where that does not hold either, layers go to single
precision, each time the one that helps most, as long as three quarters of the multiply-adds after the observations
stay in integers. Then layers go to activations of one byte, those that save the most time first, wherever it still
holds. Time is measured beside full precision's on the same runtime, quality on rows that calibrated nothing; the
verdict is given later on rows of other episodes.

What is neither 1.2 times as fast as fp32 nor a third of its bytes, or has fewer multiply-adds in integers, is not
called int8: its scheme is ``mixed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from accel.compressors.artifact import CompressedPolicy, Json
from accel.compressors.int8.input_layers import input_layers, small_input_layers
from accel.compressors.layer_inventory import policy_layers
from accel.compressors.runtime import Runtime
from accel.display.progress import Progress
from accel.runs.fp32_comparison import time_in_turns
from accel.runs.quality import measure_rows
from accel.runs.trained_policy import Inputs, TrainedPolicy

INT8, MIXED, FULL_PRECISION = "int8", "mixed", "fp32"
LEAST_SHARE, LEAST_SPEED_UP, MOST_BYTES = 0.75, 1.2, 1 / 3
# where a choice is made: its rows flatter what they chose
_MOST_EXCESS = 0.6
_FEWEST, _MOST_LAYERS = 8, 12
_ROUNDS, _ROUND_S = 15, 0.002


@dataclass(frozen=True)
class Finished:
    """A finished policy's artifact.

    Attributes:
        artifact: where an encoding was chosen, that is in its metadata, and so are the shares of the multiply-adds in
            integers, of all and of those after the layers that read observations.
        full: the policy in full precision. cost: what the artifact takes beside it, in words; measured.
    """

    artifact: CompressedPolicy
    full: CompressedPolicy
    cost: str


Form = Callable[[CompressedPolicy], CompressedPolicy]


def finish(
    run: TrainedPolicy,
    scheme: str,
    inputs: Inputs,
    *,
    cpu: Iterable[str] | None = None,
    runtime: Runtime = "native",
    form: Form | None = None,
    progress: Progress | None = None,
) -> Finished:
    """A finished policy under a scheme; ``int8`` alone is chosen layer by layer.

    Args:
        run: the policy. scheme: how to compress it. cpu: features of the CPU that will act.
        runtime: of the comparison with full precision's time. form: what a format makes of an artifact before it runs.
        inputs: as ``calibration_inputs`` gives them: the first half calibrates ``int8``, and the other one, of other
            episodes, chooses its encoding, by the worse of its own halves.
    Raises:
        CompressorError: the scheme is unknown or cannot compress this network.
    """
    full = run.compress(FULL_PRECISION)
    if scheme == FULL_PRECISION:
        return Finished(full, full, f"{len(full.to_bytes()):,} bytes")
    if scheme != INT8:
        artifact = run.compress(scheme, inputs, cpu=cpu)
        return Finished(artifact, full, _Cost(artifact, inputs, full, runtime, form).text)
    cost = partial(_Cost, full=full, runtime=runtime, form=form)
    return _Choice(run, inputs, cpu, cost, Progress() if progress is None else progress, full).finished()


class _Cost:
    """Microseconds of a call and bytes of two policies; calls are timed in turns."""

    def __init__(
        self, artifact: CompressedPolicy, inputs: Inputs, full: CompressedPolicy, runtime: Runtime, form: Form | None
    ) -> None:
        own = artifact if form is None else form(artifact)
        samples = time_in_turns((own, full), inputs, 1, rounds=_ROUNDS, round_s=_ROUND_S, runtime=runtime)
        self._own_us, self._full_us = (float(np.median(times)) for times in samples)
        self._bytes, self._full_bytes = len(own.to_bytes()), len(full.to_bytes())

    @property
    def share(self) -> float:
        """Of full precision's time and bytes, what it takes: time counts, and bytes where times are alike."""
        return self._own_us / self._full_us + 0.01 * self._bytes / self._full_bytes

    @property
    def pays(self) -> bool:
        """Whether it is faster or smaller by enough."""
        return self._full_us >= LEAST_SPEED_UP * self._own_us or self._bytes <= MOST_BYTES * self._full_bytes

    @property
    def text(self) -> str:
        """In words."""
        times = f"{self._own_us:.3g} µs a call against {self._full_us:.3g} in fp32"
        return f"it takes {times}, {self._bytes:,} bytes against {self._full_bytes:,}"


class _Choice:
    def __init__(
        self,
        run: TrainedPolicy,
        inputs: Inputs,
        cpu: Iterable[str] | None,
        cost: Callable[[CompressedPolicy, Inputs], _Cost],
        progress: Progress,
        full: CompressedPolicy,
    ) -> None:
        self._run, self._cost, self._progress, self._cpu, self._full = run, cost, progress, cpu, full
        count = len(next(iter(inputs.values())))
        quarter = 0 if count < _FEWEST else count // 4
        parts = [slice(2 * quarter or None), slice(2 * quarter, 3 * quarter or None), slice(3 * quarter, None)]
        self._calibration, *halves = ({name: array[part] for name, array in inputs.items()} for part in parts)
        self._halves = dict(zip(("first", "second"), halves, strict=True))
        layers = policy_layers(run.graph, run.policy, {})
        self._macs = _multiply_adds(run, {layer.name: layer.outputs * layer.inputs for layer in layers})
        self._inputs, self._in_floats = input_layers(run.graph), small_input_layers(run.graph)
        self._dense = [layer.name for layer in layers if layer.kind == "linear" and layer.name not in self._in_floats]

    def finished(self) -> Finished:
        """The cheapest encoding that holds, or the one that is nearest to it."""
        if len(self._dense) > _MOST_LAYERS:
            return self._as(dict.fromkeys(self._dense, "x16"))
        cheapest = dict.fromkeys(self._dense, "int8")
        if not self._tried(cheapest)[0]:
            return self._as(cheapest)
        choice = dict.fromkeys(self._dense, "x16")
        lost = self._tried(choice)[0]
        while lost:
            floats = [{**choice, layer: "float"} for layer, form in choice.items() if form != "float"]
            tried = [(self._tried(changed), changed) for changed in floats if self._shares(changed)[1] >= LEAST_SHARE]
            (least, _), best = min(tried, key=lambda found: found[0], default=((lost, 0.0), choice))
            if least >= lost:
                return self._as(choice)
            choice, lost = best, least
        alone = {layer: self._tried({**choice, layer: "int8"}) for layer in choice if choice[layer] == "x16"}
        takes = {layer: share for layer, (lost, share) in alone.items() if not lost}
        for layer in sorted(takes, key=lambda layer: takes[layer]):
            changed = {**choice, layer: "int8"}
            if not self._tried(changed)[0]:
                choice = changed
        return self._as(choice)

    def _encoding(self, choice: Mapping[str, str]) -> str:
        return f"{INT8}({','.join(f'{layer}={form}' for layer, form in choice.items())})"

    def _tried(self, choice: Mapping[str, str]) -> tuple[tuple[float, ...], float]:
        """What a choice loses on either half, the worse one first, or () where it holds; and what it takes of full
        precision's time and bytes."""
        encoding = self._encoding(choice)
        self._progress.begin(f"trying {encoding}")
        artifact = self._run.compress(encoding, self._calibration)
        rows = measure_rows(self._run, artifact, self._halves, self._full)
        lost = sorted((row.excess for row in rows), reverse=True)
        return () if lost[0] <= _MOST_EXCESS else (*lost,), self._cost(artifact, self._calibration).share

    def _shares(self, choice: Mapping[str, str]) -> tuple[float, float]:
        floats = {*self._in_floats, *(layer for layer, form in choice.items() if form == "float")}
        inside = {name: count for name, count in self._macs.items() if name not in self._inputs}
        shares = [
            1.0 - sum(count for name, count in counts.items() if name in floats) / max(sum(counts.values()), 1)
            for counts in (self._macs, inside)
        ]
        return shares[0], shares[1]

    def _as(self, choice: Mapping[str, str]) -> Finished:
        encoding, (share, inside) = self._encoding(choice), self._shares(choice)
        artifact = self._run.compress(encoding, self._calibration, cpu=self._cpu)
        told: dict[str, Json] = {
            "encoding": encoding,
            "integer_share": share,
            "integer_share_after_observations": inside,
        }
        cost = self._cost(artifact, self._calibration)
        text = (
            f"{cost.text}\nin integers: {inside:.0%} of the multiply-adds after the observations, {share:.0%} of all, "
            f"as {encoding}"
        )
        scheme = INT8
        if inside < LEAST_SHARE or not cost.pays:
            scheme, why = MIXED, f"neither {LEAST_SPEED_UP} times as fast as fp32 nor a third of its bytes"
            if inside < LEAST_SHARE:
                why = f"less than {LEAST_SHARE:.0%} of the multiply-adds are in integers"
            told["mixed"] = f"int8 does not pay here, so that this is called {MIXED}: {why}"
            text += f"\n{told['mixed']}"
        made = replace(artifact, scheme=scheme, metadata={**artifact.metadata, **told})
        return Finished(made, self._full, text)


def _multiply_adds(run: TrainedPolicy, sizes: Mapping[str, int]) -> dict[str, int]:
    """Multiply-adds of a row by layer: a convolution's weights count at each of its positions, those of a transformer's
    keys and values at each step that it remembers."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run.policy(*run.example_inputs.values())
    # two operations each; of a recurrent layer, of which torch counts none, its weights
    counted = {name.partition(".")[2]: sum(ops.values()) // 2 for name, ops in counter.get_flop_counts().items()}
    return {name: counted.get(name) or size for name, size in sizes.items()}
