"""From an environment id to gymnasium's registration, with one clear message for everything that can be missing, and
for whatever environments and wrappers raise while they are made.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import find_highest_version, parse_env_id, registry

from accel.errors import EnvError, MissingExtraError
from accel.system.extras import missing_extra


class _Family(NamedTuple):
    """Environments of a package of their own: how their ids begin, what registers them, and how to go on."""

    ids: str
    module: str
    install: str
    use: str


_IMAGE_OF_MINIGRID = "--wrapper minigrid.wrappers:ImgObsWrapper, as the mission is a text"
_FAMILIES = (
    _Family(r"MiniGrid-|BabyAI-", "minigrid", "minigrid", f"--env minigrid:{{name}} {_IMAGE_OF_MINIGRID}"),
    _Family(r"MiniWorld-", "miniworld", "miniworld", "--env miniworld:{name}"),
    _Family(r"dm_control/", "shimmy", "'shimmy[dm-control]'", "--env shimmy:{name}"),
    _Family(r"bsuite/", "shimmy", "'shimmy[bsuite]'", "--env shimmy:{name}"),
    _Family(
        r"procgen-", "procgen", "procgen 'shimmy[gym-v21]'",
        "--env shimmy:GymV21Environment-v0 --env-arg env_id=procgen:{name}, as procgen is for the old gym",
    ),
    _Family(
        r"Fetch|HandReach|HandManipulate|Adroit|AntMaze|PointMaze|FrankaKitchen", "gymnasium_robotics",
        "gymnasium-robotics", "--env gymnasium_robotics:{name}",
    ),
    _Family(r"(highway|merge|roundabout|parking|intersection|racetrack)-", "highway_env", "highway-env",
            "--env highway_env:{name}"),
    _Family(r"pettingzoo[./]|mpe2[./]|(mpe|butterfly|sisl|classic|magent)/", "pettingzoo", "'accel-rl[pettingzoo]'",
            "--backend pettingzoo, with an id such as butterfly/pistonball_v6 or module mpe2.simple_spread_v3"),
)  # fmt: skip


def find_registration(env_id: str) -> Registration:
    """gymnasium's registration of ``env_id``: ``Name-v0``, ``namespace/Name-v0`` or ``module:Name-v0``.

    Raises:
        MissingExtraError: the id belongs to a package that is not installed.
        EnvError: the id is unknown (with its closest matches, or the package that it comes with and the options that
            take it), or its module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    family = next((family for family in _FAMILIES if re.match(family.ids, name)), None)
    if module:
        try:
            import_module(module, f"environment {env_id!r}")
        except EnvError as error:
            if family is None or _is_here(family):
                raise
            raise EnvError(_of_family(env_id, name, family)) from error
    if name.startswith("ALE/") and name not in registry:  # gymnasium does not import the module by itself
        gymnasium.register_envs(import_module("ale_py", f"environment {env_id!r}"))
    registration = registry.get(name) or registry.get(_latest(name))
    if registration is None:
        if family is None or any(re.match(family.ids, known) for known in registry):
            installed = "is the package that registers it installed? Use module:id to import it first"
            raise EnvError(f"unknown environment {env_id!r}: {suggestion(name, registry, installed)}")
        raise EnvError(_of_family(env_id, name, family))
    return registration


def _is_here(family: _Family) -> bool:
    return importlib.util.find_spec(family.module) is not None


def _of_family(env_id: str, name: str, family: _Family) -> str:
    """What to do for an id of a package of its own, none of whose environments is registered."""
    here = _is_here(family) and family.module not in sys.modules  # imported, it lacks what the ids need
    first = "imported first" if here else f"installed first: pip install {family.install}"
    return f"unknown environment {env_id!r}: {family.module} must be {first}; then {family.use.format(name=name)}"


def import_module(module: str, wanted_by: str) -> ModuleType:
    """Import ``module`` for something the user asked for.

    Raises:
        MissingExtraError: it, or something it imports, comes with one of our extras.
        EnvError: it cannot be found or raises while it is imported.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise creation_error(wanted_by, error, f"importing {module!r}") from error


def import_function(reference: str, wanted_by: str) -> Callable[..., object]:
    """The callable that ``package.module:name`` names.

    Raises:
        EnvError: the reference is malformed, its module cannot be imported, or it names nothing callable.
        MissingExtraError: importing it needs one of our extras.
    """
    module, separator, name = reference.partition(":")
    if not (separator and module and name):
        raise EnvError(f"{wanted_by} {reference!r} is not of the form package.module:function")
    value = getattr(import_module(module, f"{wanted_by} {reference!r}"), name, None)
    if not callable(value):
        raise EnvError(f"{wanted_by} {reference!r}: module {module!r} has no function {name!r}")
    found: Callable[..., object] = value
    return found


def created(what: str, make: Callable[[], object], args: Mapping[str, object]) -> object:
    """What ``make`` makes of ``args``; whatever a constructor raises is a named error, see ``creation_error``."""
    try:
        return make()
    except Exception as error:
        given = f"making it with arguments {dict(args)}" if args else "making it"
        raise creation_error(what, error, given) from error


def wrapped(env: object, wrapper: str) -> object:
    """What the wrapper ``package.module:function`` makes of an environment. Raises EnvError, MissingExtraError."""
    function = import_function(wrapper, "wrapper")
    return created(f"wrapper {wrapper!r}", lambda: function(env), {})


def picture(render: Callable[[], object]) -> npt.NDArray[np.uint8]:
    """What an environment's own ``render`` gives, as ``VectorEnvironment.render`` has it.

    Raises:
        EnvError: it cannot draw itself, or draws something else. MissingExtraError: see ``creation_error``.
    """
    drawn = np.asarray(created("no picture of the environment", render, {}))
    if drawn.ndim != 3 or drawn.shape[-1] != 3:
        raise EnvError(
            f"the environment's render() gives {drawn.dtype} {drawn.shape}, no RGB picture [height, width, 3]: add a "
            "wrapper"
        )
    return drawn.astype(np.uint8, copy=False)


def creation_error(what: str, error: BaseException, doing: str) -> EnvError | MissingExtraError:
    """The named error for whatever ``doing`` raised, looking for a missing package among its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if (missing := missing_extra(cause, f"{what}: {doing}")) is not None:
            return missing
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            module = cause.name.partition(".")[0]
            return EnvError(
                f"{what}: {doing} needs the module {module!r}, which cannot be imported here ({error}): install the "
                "package that brings it, or put its folder on PYTHONPATH"
            )
        cause = cause.__cause__ or cause.__context__
    first_line = (str(error).strip().splitlines() or ["no message"])[0]
    return EnvError(f"{what}: {doing} failed with {type(error).__name__}: {first_line}")


def _latest(name: str) -> str:
    """``name`` with its highest registered version where it was given without one."""
    try:
        namespace, base, version = parse_env_id(name)
    except gymnasium.error.Error:
        return name
    highest = find_highest_version(namespace, base) if version is None else None
    return name if highest is None else f"{name}-v{highest}"


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known names nearest to one that is unknown; ``otherwise`` where none is near."""
    by_folded = {key.casefold(): key for key in known}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=3)
    return f"did you mean {' or '.join(by_folded[match] for match in matches)}?" if matches else otherwise
