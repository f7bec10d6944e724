"""A torso of the user's own: made by a factory, and held to what actors and learner need of it before a run begins.

The learner runs the torso in the modes that the factory leaves its layers in, and actors run its export, which is in
eval mode. Dropout, batch norm and noise of training make these two networks, of which one acts and the other learns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn

from accel.envs.spaces import ACTION_MASK, EnvSpec
from accel.errors import ConfigError
from accel.networks.observations import Parts

_ROWS = 8
_TOLERANCE = 1e-3


def make_custom_torso(path: str, spec: EnvSpec) -> tuple[nn.Module, int]:
    """What the factory makes, and F, its number of features.

    Args:
        path: ``package.module:factory``, a function of the EnvSpec that returns an ``nn.Module`` from [N, *obs] float
            to [N, F]; uint8 observations reach it scaled to [0, 1], and a Dict as a dictionary of tensors.
    Raises:
        ConfigError: it cannot be made, fails, gives something else, depends on chance or on the other rows, or a layer
            of it computes something else in train mode than in eval mode.
    """
    torso = make_module(f"network '{path}'", path, spec)
    zeros = {part.name: torch.zeros(2, *part.shape) for part in spec.inputs if part.name != ACTION_MASK}
    with torch.no_grad():
        features = _run(path, torso, zeros, spec).shape[1]  # settles lazy layers, too
    _check_that_actors_compute_the_same(path, torso, spec)
    return torso, features


def make_module(who: str, reference: str, spec: EnvSpec) -> nn.Module:
    """The module that ``package.module:factory`` makes, called with the layout if it needs an argument.

    Args:
        who: how messages begin, such as ``network 'mine:torso'``. reference: the factory, or a module itself.
    Raises:
        ConfigError: it cannot be imported or called, or does not make a torch module.
    """
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{who} is not of the form package.module:factory, such as ppo:Agent")
    try:
        factory: object = getattr(import_module(module_name), name, None)
    except Exception as error:  # the user's own code, which raises anything
        raise ConfigError(
            f"{who}: cannot import '{module_name}' ({type(error).__name__}: {error}): it is looked for in the working "
            "directory and on PYTHONPATH, and a script must train under if __name__ == '__main__' only"
        ) from error
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise ConfigError(f"{who}: module '{module_name}' has no function '{name}'")
    try:
        module: object = factory(spec) if _takes_argument(factory) else factory()
    except Exception as error:
        raise ConfigError(
            f"{who}: calling it with the environment's layout failed with {type(error).__name__}: {error}; give a "
            "function of one argument, the EnvSpec, that returns a torch.nn.Module"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{who}: the factory returned {type(module).__name__}, not a torch.nn.Module")
    return module


def _takes_argument(factory: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _run(path: str, torso: nn.Module, parts: Parts, spec: EnvSpec) -> Tensor:
    """Features [N, F] of observations of N rows. Raises ConfigError."""
    observations: Tensor | Parts = parts if spec.parts else parts["observations"]
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    shown = shapes if spec.parts else shapes["observations"]
    rows = next(iter(shapes.values()))[0]
    try:
        output: object = torso(observations)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise ConfigError(f"network '{path}' fails on observations {shown}: {type(error).__name__}: {error}") from error
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[0] != rows:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(f"network '{path}' must map {shown} to [{rows}, features], it gave {got}")
    return output


def _check_that_actors_compute_the_same(path: str, torso: nn.Module, spec: EnvSpec) -> None:
    """Raise ConfigError unless rows count alone, and every layer's mode makes no difference."""
    generator = torch.Generator().manual_seed(0)
    inputs = [part for part in spec.inputs if part.name != ACTION_MASK]
    parts = {part.name: torch.rand(_ROWS, *part.shape, generator=generator) for part in inputs}
    with torch.no_grad(), _restored(torso) as trained_layers, torch.random.fork_rng(devices=[]):
        learning = _run(path, torso, parts, spec)
        torso.eval()
        acting = _run(path, torso, parts, spec)
        first = _run(path, torso, {name: part[:1] for name, part in parts.items()}, spec)
        if _differ(acting[:1], first):
            raise ConfigError(
                f"network '{path}' answers an observation differently alone and beside others, or from call to call: "
                "leave out noise, and normalisation over the batch"
            )
        if not _differ(acting, learning):
            return
        for name, layer in trained_layers.items():
            layer.training = True
            if _differ(acting, _run(path, torso, parts, spec)):
                where = f"layer {name!r}" if name else "the module"
                raise ConfigError(
                    f"network '{path}': {where} ({type(layer).__name__}) computes something else in train "
                    "mode, in which the learner runs it, than in eval mode, in which actors do, so that another policy "
                    "acts than learns: take LayerNorm or GroupNorm in place of batch norm, and leave out dropout and "
                    "noise; or call eval() in the factory for layers that stay as they are"
                )
            layer.training = False


@contextmanager
def _restored(torso: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Gives the layers that are in train mode; modes and buffers are afterwards what they were."""
    modes = [(name, layer, layer.training) for name, layer in torso.named_modules()]
    buffers = [(buffer, buffer.clone()) for buffer in torso.buffers()]
    try:
        yield {name: layer for name, layer, is_training in modes if is_training}
    finally:
        for _, layer, is_training in modes:
            layer.training = is_training
        for buffer, before in buffers:
            buffer.copy_(before)


def _differ(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) > _TOLERANCE * float(ours.abs().max())
