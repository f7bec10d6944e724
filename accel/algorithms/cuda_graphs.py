"""Parts of an update that are recorded once and launched as a whole: CUDA graphs.

A small network's step is hundreds of kernels, which take the host longer to launch than the device to compute. A
recorded step is one launch. It repeats what was recorded, on the memory that it was recorded with, and runs no Python.
So a step is a function of its inputs, which are copied to where it was recorded to read them, and of tensors that stay
where they are: parameters, gradients, moments, learning rate, target networks. It draws no random numbers, reads no
number of the device's, and its shapes are those of its inputs. What it returns is overwritten by its next run.

The first runs of a step are ordinary ones, in which libraries choose their algorithms, on the stream that records:
autograd adds up a parameter's gradients on the stream on which it first met it, as long as a graph with it lives. So
what a step returns has no graph.

Source: the notes on CUDA graphs in torch's documentation; LeanRL, which shows what they are worth to these algorithms.
Deviation: the runs before a recording count as training, so that nothing has to be put back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from accel.algorithms.gradient_exchange import GradientExchange
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.networks.text import parse_network

Result = TypeVar("Result")
Mark = Callable[[str], object]

WARM_RUNS = 3
"""Ordinary runs of a step before it is recorded."""
MAX_RECORDED = 16
"""Steps and shapes that are recorded at most; each keeps its own memory."""

logger = logging.getLogger("accel")


class StepRunner:
    """How the parts of an update are run. This one, the identity, calls them.

    Attributes:
        fixed_shapes: whether steps have to come in few shapes.
        outcome: for the run's summary: ``on``, or ``off`` and why.
    """

    fixed_shapes = False

    def __init__(self, outcome: str = "off") -> None:
        self.outcome = outcome

    def run(self, step: Callable[..., Result], mark: Mark, *inputs: object) -> Result:
        """``step(mark, *inputs)``; what it returns is valid until its next run.

        Args:
            step: a function as the module's docstring asks for, the same in every run.
            mark: called with the phases that end in it.
            inputs: tensors, dataclasses and tuples of tensors, None, and booleans that choose what the step is.
        """
        return step(mark, *inputs)


class CudaRecorder:
    """Records what a CUDA device is told to do, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._failed: list[torch.cuda.CUDAGraph] = []

    def warm(self, call: Callable[[], Result]) -> Result:
        """An ordinary run before a recording."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = call()
        current.wait_stream(self._stream)
        return result

    def record(self, call: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Record a call without running it; its result, which is filled by calling the second.

        Waits for the device, once. Raises RuntimeError.
        """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        # Other threads of this process, such as the publisher's, may use the device meanwhile. Where a recording fails,
        # torch leaves its stream the current one: the outer context puts this one back.
        try:
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = call()
        except RuntimeError:
            self._leave(pool)
            self._failed.append(graph)  # torch's allocator of pinned memory goes on asking it
            raise
        return result, graph.replay

    def _leave(self, pool: tuple[int, int]) -> None:
        """End the allocator's part of a failed recording. torch leaves it in there: memory that two streams use would
        never be free again, and no other recording could begin."""
        with suppress(RuntimeError):  # raised by the first call where the recording has ended in order
            torch._C._cuda_endAllocateToPool(self._stream.device_index, pool)
            torch._C._cuda_releasePool(self._stream.device_index, pool)


class RecordedSteps(StepRunner):
    """Records each step for each shape of its inputs, up to a number. Others run as they are, as do those that cannot
    be recorded.

    Args:
        recorder: of the device. device: whose tensors are inputs; of others, a step may use the shape alone.
        required: whether it is an error that a step cannot be recorded.
    """

    fixed_shapes = True

    def __init__(self, recorder: CudaRecorder, device: torch.device, *, required: bool = False) -> None:
        super().__init__("on")
        self._recorder, self._device, self._required = recorder, device, required
        self._steps: dict[object, _Step] = {}
        self._refused: set[object] = set()
        self._reasons: set[str] = set()

    def run(self, step: Callable[..., Result], mark: Mark, *inputs: object) -> Result:
        """See ``StepRunner``. A recorded step's phases are one, ``backward``.

        Raises:
            ConfigError: it is required, and cannot be recorded.
            TypeError: an input is a number, which a recording would keep.
        """
        key = (step.__name__, *map(signature, inputs))
        if key not in self._steps and key not in self._refused:
            if len(self._steps) < MAX_RECORDED:
                self._steps[key] = _Step(step, inputs, self._device)
            else:
                self._refuse(key, f"steps have more than {MAX_RECORDED} shapes")
        if key not in self._refused:
            try:
                result = self._steps[key].run(inputs, self._recorder)
            except RecordingError as error:
                del self._steps[key]
                reason = f"{step.__name__} cannot be recorded ({error})"
                if self._required:
                    raise ConfigError(
                        f"learner_graphs = 'on', but {reason}: use --learner-graphs auto, or off"
                    ) from error
                self._refuse(key, reason)
            else:
                mark("backward")
                return cast(Result, result)
        return step(mark, *inputs)

    def _refuse(self, key: object, reason: str) -> None:
        self._refused.add(key)
        if reason not in self._reasons:
            self._reasons.add(reason)
            logger.warning("without a CUDA graph: %s", reason)
            self.outcome = f"on, but {'; '.join(sorted(self._reasons))}"


class RecordingError(Exception):
    """A step could not be recorded; nothing of it was run."""


class _Step:
    """One step with inputs of one shape."""

    def __init__(self, step: Callable[..., object], inputs: Sequence[object], device: torch.device) -> None:
        self._step, self._device = step, device
        self._own = [torch.empty_like(tensor) for value in inputs for tensor in tensors_of(value, device)]
        own = iter(self._own)
        self._inputs = [with_tensors(value, own, device) for value in inputs]
        self._runs = 0
        self._recorded: tuple[object, Callable[[], None]] | None = None

    def run(self, inputs: Sequence[object], recorder: CudaRecorder) -> object:
        """Its result. Raises RecordingError."""
        self._take([tensor for value in inputs for tensor in tensors_of(value, self._device)])
        if self._runs < WARM_RUNS:
            self._runs += 1
            return recorder.warm(self._call)
        if self._recorded is None:
            try:
                self._recorded = recorder.record(self._call)
            except RuntimeError as error:
                raise RecordingError(str(_first(error)).strip().split("\n")[0]) from error
        result, replay = self._recorded
        replay()
        return result

    def _take(self, tensors: Sequence[Tensor]) -> None:
        """Copy inputs to where the step reads them, in one launch for each dtype."""
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, new in zip(self._own, tensors, strict=True):
            targets, sources = by_dtype.setdefault(own.dtype, ([], []))
            targets.append(own)
            sources.append(new)
        with torch.no_grad():
            for targets, sources in by_dtype.values():
                torch._foreach_copy_(targets, sources)

    def _call(self) -> object:
        return self._step(_unmarked, *self._inputs)


def _first(error: BaseException) -> BaseException:
    """What went wrong first: the end of a broken recording raises too, and says less."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


def make_runner(config: TrainConfig, exchange: GradientExchange, device: torch.device) -> StepRunner:
    """What runs the steps of a run's algorithm. Raises ConfigError: its steps are to be recorded and cannot be."""
    wanted = config.learner.learner_graphs
    if wanted == "off":
        return StepRunner()
    reason = why_unrecorded(config, exchange, device)
    if reason is None:
        return RecordedSteps(CudaRecorder(device), device, required=wanted == "on")
    if wanted == "on":
        raise ConfigError(f"learner_graphs = 'on', but {reason}: use --learner-graphs auto, or off")
    if device.type == "cuda":
        logger.info("without CUDA graphs: %s", reason)
    return StepRunner(f"off: {reason}")


def why_unrecorded(config: TrainConfig, exchange: GradientExchange, device: torch.device) -> str | None:
    """Why the steps of a run cannot be recorded; None: they can."""
    network, algorithm = config.policy.network, config.algorithm.algorithm
    if device.type != "cuda":
        return "the learner is on no CUDA device"
    if ":" in algorithm:
        return f"algorithm '{algorithm}' runs its own steps"
    if type(exchange) is not GradientExchange:
        return "several learners exchange gradients within a step"
    if parse_network(network).core is not None:
        return f"network '{network}' is recurrent, and plans each pass on the host"
    if re.search(r"\bqat\b", config.compression.compressor):
        return f"compressor '{config.compression.compressor}' changes the ranges that it rounds with"
    return None


def _unmarked(phase: str) -> None:
    """The phases of a recorded step are not told apart."""


def signature(value: object) -> object:
    """What two inputs have in common where one recording serves both. Raises TypeError: see ``RecordedSteps``."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, str(value.device)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return tuple(map(signature, value))
    if isinstance(value, Mapping):
        return len(value)  # of the host's, of which a step reads nothing
    if is_dataclass(value):
        return type(value), *(signature(getattr(value, field.name)) for field in fields(value))
    raise TypeError(f"a recorded step cannot take {value!r}: give it as a tensor")


def tensors_of(value: object, device: torch.device) -> Iterator[Tensor]:
    """The tensors on a device in an input, in order."""
    if isinstance(value, Tensor):
        if value.device.type == device.type:
            yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_of(part, device)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name), device)


def with_tensors(value: object, own: Iterator[Tensor], device: torch.device) -> object:
    """An input with other tensors in the place of those of ``tensors_of``."""
    if isinstance(value, Tensor):
        return next(own) if any(True for _ in tensors_of(value, device)) else value
    if isinstance(value, tuple):
        return tuple(with_tensors(part, own, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: with_tensors(getattr(value, f.name), own, device) for f in fields(value)})
    return value
