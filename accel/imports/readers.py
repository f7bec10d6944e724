"""From a file or a torch module to its policy: which reader a file is for is found in its content."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from accel.errors import CheckpointError, ConfigError
from accel.imports.onnx_models import ONNX
from accel.imports.policy_file import PolicyFile, PolicyReader, ReadPolicy
from accel.imports.rsl_rl import RSL_RL
from accel.imports.stable_baselines3 import STABLE_BASELINES3
from accel.imports.torch_files import fill, is_safetensors, read_tensors
from accel.imports.torch_modules import FactorySpec, with_forward
from accel.imports.torch_programs import EXPORTED_PROGRAM, TORCH_SCRIPT
from accel.networks.custom import make_module


def _holds_weights(file: PolicyFile) -> bool:
    is_saved = "data.pkl" in file.members and "constants.pkl" not in file.members
    return is_saved or is_safetensors(file.content) or file.content[:2] in (b"\x80\x02", b"\x80\x04")


def _read_weights(file: PolicyFile) -> ReadPolicy:
    if file.module is None:
        raise ConfigError(
            f"{file.path} holds tensors by name, or a pickle, which is not read, and not what computes with them: "
            "give the code of the policy too, --module package:factory, such as ppo:Agent of CleanRL"
        )
    return read_module(file.module, file)


def read_module(module: nn.Module | str, weights: PolicyFile | None = None) -> ReadPolicy:
    """A torch module, or what ``package:factory`` makes, with the weights of a file."""

    def make(spec: FactorySpec) -> nn.Module:
        made = make_module(f"--module {module}", module, spec) if isinstance(module, str) else module
        if weights is not None:
            load_weights(made, weights)
        return with_forward(made, spec)

    return ReadPolicy(module if isinstance(module, str) else type(module).__name__, make)


def load_weights(module: nn.Module, file: PolicyFile) -> None:
    """Load a state dict into a module.

    Raises:
        CheckpointError: the file cannot be read, or is not of this module; names the first parameter that differs.
    """
    name = f"weights {file.path}"
    weights = read_tensors(file.content, name)
    fill(module, weights, name)
    if unknown := [key for key in weights if key not in module.state_dict()]:
        raise CheckpointError(f"{name} are not of {type(module).__name__}: '{unknown[0]}' is absent in the module")


# the last but one is for a state dict, by torch.save or in safetensors, of the module that --module makes
READERS = (
    STABLE_BASELINES3,
    TORCH_SCRIPT,
    EXPORTED_PROGRAM,
    RSL_RL,
    PolicyReader("file of tensors", _holds_weights, _read_weights, takes_module=True),
    ONNX,
)


def read_policy_file(path: Path, *, activation: str | None = None, module: str | None = None) -> ReadPolicy:
    """Read a policy of any known kind, of which nothing is unpickled.

    Args:
        path: the file.
        activation: of a file that does not name it. module: ``package:factory``, which the file's weights belong to.
    Raises:
        CheckpointError: a damaged file, or one of no known kind. ConfigError: see ``PolicyReader.read``.
    """
    file = PolicyFile(path, activation, module)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: give a run of accel train without --policy, and else a file")
    reader = next((reader for reader in READERS if reader.owns(file)), None)
    if reader is None:
        raise CheckpointError(f"{path} is none of these: {'; '.join(reader.kind for reader in READERS)}")
    if module is not None and not reader.takes_module:
        raise ConfigError(f"{path} is a {reader.kind}, which brings its own network: leave out --module")
    if activation is not None and not reader.takes_activation:
        raise ConfigError(f"--activation is for files that do not name it, and {path} is a {reader.kind}: leave it out")
    return reader.read(file)
