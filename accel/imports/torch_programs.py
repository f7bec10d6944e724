"""Policies as TorchScript and ``torch.export`` archives: run and recorded, then held against the program itself.

Buffers that a call changes, as exporters of recurrent policies keep the state, become the graph's recurrent state.
"""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from accel.errors import AccelError, CheckpointError, ConfigError
from accel.imports.policy_file import Array, PolicyFile, PolicyReader, ReadPolicy
from accel.imports.torch_files import read_plain
from accel.imports.torch_modules import FactorySpec
from accel.imports.traced_program import State, TracedProgram, in_order, reason_of

logger = logging.getLogger("accel")


class _TorchPolicy:
    """A torch program that maps observations to outputs, and may keep state in its buffers.

    Args:
        arguments: their names; None for a dictionary by the names of the environment's observations.
    """

    def __init__(self, module: nn.Module, arguments: Sequence[str] | None, path: Path) -> None:
        self._module, self._arguments, self._path = module, arguments, path
        self._states: list[State] = []
        self._observed: Sequence[str] = ()
        self._dtype = torch.float32
        self._initial = {name: buffer.clone() for name, buffer in module.named_buffers()}
        # states are zeros where an episode begins: of others the difference is the state
        self._offsets = {name: value for name, value in self._initial.items() if value.any()}

    def make(self, spec: FactorySpec) -> nn.Module:
        names = [part.name for part in spec.inputs]
        self._observed = names if self._arguments is None else in_order(self._arguments, spec, self._path)
        examples = [torch.zeros(1, *part.shape) for part in spec.inputs]
        self._states = [State(name, name, tuple(value.shape)) for name, value in self._changed(examples)]
        for state in self._states:
            state.check(self._path)
        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        examples += [torch.zeros(1, *state.row) for state in self._states]
        return TracedProgram(self._run, examples, len(self._states), tensors)

    def answer(self, row: Sequence[Array]) -> list[Array]:
        with torch.no_grad():
            return [value.numpy() for value in self._run(*(torch.tensor(value) for value in row))]

    def _run(self, *rows: Tensor) -> list[Tensor]:
        observed, held = rows[: len(self._observed)], rows[len(self._observed) :]
        for state, value in zip(self._states, held, strict=True):
            held_as = self._initial[state.source].dtype
            value = state.of_rows(value.clone()).to(held_as) + self._offsets.get(state.source, 0)
            _assign(self._module, state.source, value)
        outputs: object = self._called(observed)
        outputs = outputs[0] if isinstance(outputs, tuple | list) else outputs
        if not isinstance(outputs, Tensor):
            raise ConfigError(f"{self._path} returns {type(outputs).__name__}: a policy returns a tensor first")
        buffers = dict(self._module.named_buffers())
        names = [state.source for state in self._states]
        following = [(buffers[name] - self._offsets.get(name, 0)).to(torch.float32) for name in names]
        return [outputs, *(state.to_rows(value) for state, value in zip(self._states, following, strict=True))]

    def _called(self, observed: Sequence[Tensor]) -> object:
        values = dict(zip(self._observed, (value.to(self._dtype) for value in observed), strict=True))
        own = [values] if self._arguments is None else [values[name] for name in self._arguments]
        return self._module(*own)

    def _changed(self, examples: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """Buffers that a call changes; finds the precision that the program takes."""
        reason = ""
        weights = (p.dtype for p in self._module.parameters() if p.is_floating_point())
        for self._dtype in dict.fromkeys((torch.float32, *weights)):
            for name, value in self._initial.items():
                _assign(self._module, name, value.clone())
            try:
                with torch.no_grad():
                    found = self._called([torch.rand(example.shape) for example in examples])
                break
            except Exception as error:  # noqa: BLE001 - somebody else's program
                reason = reason_of(error)
        else:
            shapes = ", ".join(f"{n} {tuple(e.shape)}" for n, e in zip(self._observed, examples, strict=True))
            raise ConfigError(
                f"{self._path} fails on an observation of {shapes}: {reason}; give the environment of its training, "
                "with its --env-arg and --wrapper; entries of a Dict that are no images are flat"
            )
        if isinstance(found, tuple | list) and len(found) > 1:
            logger.warning("%s returns %d values: the first is taken as its policy's", self._path, len(found))
        after = dict(self._module.named_buffers())
        return [(name, value) for name, value in self._initial.items() if not torch.equal(value, after[name])]


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, last, value)


# What a TorchScript program could read or write files with; its own code is text in the archive.
_FILES = re.compile(rb"\b(from_file|save|load|_save|_load|classes)\b")


def _is_script(file: PolicyFile) -> bool:
    return "constants.pkl" in file.members and any(name.startswith("code/") for name in file.members)


def _read_script(file: PolicyFile) -> ReadPolicy:
    for name, text in file.unpack(lambda name: name.endswith(".py")).items():
        if found := _FILES.search(text):
            raise ConfigError(f"{file.path}: its program calls {found[1].decode()!r} ({name}), which no policy needs")
    try:
        with warnings.catch_warnings(action="ignore"):
            module = torch.jit.load(io.BytesIO(file.content), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        needed = [argument for argument in module.forward.schema.arguments[1:] if not argument.has_default_value()]
        takes_dict = len(needed) == 1 and isinstance(needed[0].type, torch.DictType)
        arguments = None if takes_dict else [argument.name for argument in needed]
    except Exception as error:  # torch's errors share no base, of damaged files and of programs without forward
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"TorchScript archive {file.path} cannot be loaded: {reason}") from error
    program = _TorchPolicy(module, arguments, file.path)
    return ReadPolicy(f"TorchScript: {module.original_name}", program.make, program.answer, takes_parts=True)


def _is_exported(file: PolicyFile) -> bool:
    return "archive_format" in file.members and any(name.startswith("models/") for name in file.members)


def _read_exported(file: PolicyFile) -> ReadPolicy:
    try:
        _require_tensors(file)
        with warnings.catch_warnings(action="ignore"):
            program = torch.export.load(io.BytesIO(file.content))
            module = program.module(check_guards=False)
        for check in [*module._forward_pre_hooks_with_kwargs]:  # of the number of rows, which is looked at here
            del module._forward_pre_hooks[check], module._forward_pre_hooks_with_kwargs[check]
        positional = program.call_spec.in_spec.child(0)
    except AccelError:
        raise
    except Exception as error:  # torch's errors share no base
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"torch.export program {file.path} cannot be loaded: {reason}") from error
    takes_dict = positional.num_children == 1 and positional.child(0).type is dict
    policy = _TorchPolicy(module, None if takes_dict else program.graph_signature.user_inputs, file.path)
    return ReadPolicy("torch.export program", policy.make, policy.answer, takes_parts=True)


def _require_tensors(file: PolicyFile) -> None:
    """Raise ConfigError for a pickle that builds more than tensors: torch's loader would run what it names."""
    pickled = {
        str(payload.get("path_name"))
        for text in file.unpack(lambda name: name.endswith("_config.json")).values()
        for payload in json.loads(text).get("config", {}).values()
        if payload.get("use_pickle")
    }
    odd = r"(^|/)(custom_obj|opaque|script_obj)[^/]*$"
    for name, content in file.unpack(lambda name: not name.endswith(".json")).items():
        # Of any protocol that Python reads: raw weights may begin with the first byte too.
        looks_pickled = content[:1] == b"\x80" and content[1:2] <= b"\x05"
        is_pickle = name.rpartition("/")[2] in pickled or "sample_inputs/" in name or looks_pickled
        try:
            if re.search(odd, name):
                raise ValueError("it is an object of Python")
            if is_pickle:
                read_plain(content, name)
        except (ValueError, CheckpointError) as error:
            raise ConfigError(
                f"{file.path}: {name!r} needs more than tensors, and nothing is unpickled: load it in a factory of "
                "your own, torch.export.load(FILE).module(), and give --module package:factory"
            ) from error


TORCH_SCRIPT = PolicyReader("TorchScript archive", _is_script, _read_script)
"""What ``torch.jit.save`` wrote. Its program is interpreted, with no access to files."""
EXPORTED_PROGRAM = PolicyReader("torch.export program", _is_exported, _read_exported)
"""What ``torch.export.save`` wrote, where its tensors are no pickles that need more than tensors."""
