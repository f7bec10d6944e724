"""Makes the vector environment that an id, a backend and its options ask for, by the fastest route that is exact."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from accel.envs.base import EnvRequest, Seed, VectorEnvironment
from accel.envs.lookup import created, find_registration, import_function, wrapped
from accel.envs.loop import EnvLoop, SingleEnv
from accel.envs.masks import MaskFromInfo, announces_masks
from accel.envs.mujoco_warnings import log_mujoco_warnings
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import NativeEnv, VectorisedEnv
from accel.errors import AccelError, EnvError

Backend = Literal["gymnasium", "envpool", "pettingzoo", "device"]
_ATARI_VECTOR = "ale_py.vector_env:AtariVectorEnv"
# A vector step in numpy costs about as much as six steps of one environment in plain Python (CartPole-v1: 43 and 7 us).
_VECTOR_PAYS_FROM = 6
_RESERVED = {"id", "num_envs", "seed", "disable_env_checker", "vectorization_mode", "vector_kwargs", "wrappers"}


def make_vector_env(
    id: str,
    num_envs: int,
    *,
    backend: Backend = "gymnasium",
    env_args: Mapping[str, object] | None = None,
    wrappers: Sequence[str] = (),
    seed: Seed = 0,
    squash_actions: bool = False,
    render: bool = False,
) -> VectorEnvironment:
    """B environments of one kind behind one interface.

    The gymnasium backend takes, in this order: ALE's C++ vector environment where an id registers it; the
    environment's own vector implementation where it registers one that takes ``env_args``; a loop over single ones.
    Wrappers apply to single environments, so that with wrappers it is always the loop, and an ``ALE/`` id is then the
    plain emulator, without the C++ preprocessing and with the registration's own sticky actions.

    Args:
        id: a gymnasium id, or ``module:id`` to import a module that registers it first.
        num_envs: B, at least 1.
        backend: ``gymnasium``; ``envpool`` for EnvPool's C++ environments (one thread) where it has the id;
            ``pettingzoo`` for a module of PettingZoo's parallel environments, whose agents are rows; ``device`` for a
            ``module:factory`` of environments that are tensors.
        env_args: the environment's own arguments; ``max_episode_steps`` changes its time limit.
        wrappers: ``package.module:function`` each, called with a single environment and returning the wrapped one,
            applied in this order.
        seed: the run's seed, or (the run's seed, the actor's rank).
        squash_actions: Box actions arrive as tanh(sample) rescaled to finite bounds.
        render: make environments that ``VectorEnvironment.render`` can draw.
    Returns:
        The vector environment; call ``reset`` first.
    Raises:
        EnvError: unknown id, unsupported space, refused argument or wrapper.
        MissingExtraError: the environment's package is not installed; names the extra.
    """
    request = EnvRequest(id, num_envs, dict(env_args or {}), tuple(wrappers), seed, squash_actions, render)
    if num_envs < 1:
        raise EnvError(f"num_envs is {num_envs}: at least one environment is needed")
    if reserved := sorted(_RESERVED & request.args.keys()):
        raise EnvError(f"environment arguments {reserved} are set by the pipeline's own options: leave them out")
    if backend == "envpool":
        from accel.envs.envpool_backend import EnvPoolEnv

        return EnvPoolEnv(request)
    if backend == "pettingzoo":
        from accel.envs.pettingzoo_backend import PettingZooEnv

        return PettingZooEnv(request)
    if backend == "device":
        from accel.envs.device_backend import DeviceEnv

        return DeviceEnv(request)
    if backend != "gymnasium":
        raise EnvError(f"unknown environment backend {backend!r}: choose gymnasium, envpool, pettingzoo or device")
    registration = find_registration(id)
    try:
        return _make(registration, request)
    except AccelError as error:
        raise type(error)(f"environment {id!r}: {error}") from error


def _make(registration: Registration, request: EnvRequest) -> VectorEnvironment:
    is_endless = "max_episode_steps" in request.args and _time_limit(request.args["max_episode_steps"]) is None
    has_vector = not request.wrappers and _vector_accepts(registration, request.args)
    if has_vector and registration.vector_entry_point == _ATARI_VECTOR:
        from accel.envs.atari import make_atari

        return make_atari(registration, request)
    are_few = request.num_envs < _VECTOR_PAYS_FROM
    # A vector implementation takes -1 for a limit that is over.
    if not has_vector or is_endless or request.render or (are_few and _loop_is_the_same(registration)):
        return _make_loop(registration, request)
    make_vec = cast(Callable[..., object], gymnasium.make_vec)
    env = created(
        "cannot be made",
        lambda: make_vec(registration, request.num_envs, "vector_entry_point", **request.args),
        request.args,
    )
    return VectorisedEnv(cast(NativeEnv, env), seed=request.seed, squash_actions=request.squash_actions)


def _make_loop(registration: Registration, request: EnvRequest) -> EnvLoop:
    for wrapper in request.wrappers:
        import_function(wrapper, "wrapper")  # named before an environment is made
    args, limit = dict(request.args), None
    if not request.wrappers and not registration.additional_wrappers:
        # The loop itself counts steps and never steps before a reset: no wrapper is needed for either.
        limit = _time_limit(args.pop("max_episode_steps", registration.max_episode_steps))
        args["max_episode_steps"] = -1
        registration = copy.copy(registration)
        registration.order_enforce = False
    if request.render:
        args["render_mode"] = "rgb_array"
    make = cast(Callable[..., object], gymnasium.make)
    if isinstance(registration.entry_point, str):
        created("cannot be made", lambda: load_env_creator(cast(str, registration.entry_point)), {})
    log_mujoco_warnings()

    masks: list[bool] = []  # whether info has them, once the first environment was asked

    def make_single() -> SingleEnv:
        made = created("cannot be made", lambda: make(registration, disable_env_checker=True, **args), request.args)
        env = cast(SingleEnv, made)
        for wrapper in request.wrappers:
            made = wrapped(env, wrapper)
            if not isinstance(made, gymnasium.Env):
                raise EnvError(f"wrapper {wrapper!r} returned {type(made).__name__}, not a gymnasium.Env")
            env = made
        if not masks:
            masks.append(announces_masks(env, env_seeds(request.seed, 1)[0]))
        return MaskFromInfo(env) if masks[0] else env

    return EnvLoop(
        make_single,
        request.num_envs,
        seed=request.seed,
        squash_actions=request.squash_actions,
        max_episode_steps=limit,
    )


def _time_limit(value: object) -> int | None:
    """None, or -1 as gymnasium has it, for no limit."""
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise EnvError(f"max_episode_steps is {value!r}: a positive number of steps, or -1 for no limit")
    return value


def _vector_creator(registration: Registration) -> Callable[..., object] | None:
    """What makes the environment's own vector implementation; None where it has none."""
    entry_point = registration.vector_entry_point
    if not isinstance(entry_point, str):
        return entry_point
    return cast(Callable[..., object], created("cannot be made", lambda: load_env_creator(entry_point), {}))


def _loop_is_the_same(registration: Registration) -> bool:
    """Whether single environments in NEXT_STEP mode, the loop's own, behave like the vector implementation."""
    creator = _vector_creator(registration)
    if creator is None or registration.entry_point is None:
        return False
    # Its own metadata only: SyncVectorEnv writes its mode into the dictionary that every vector environment inherits.
    metadata: Mapping[str, object] = vars(creator).get("metadata") or {}
    return metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP


def _vector_accepts(registration: Registration, args: Mapping[str, object]) -> bool:
    """Whether there is a vector implementation that takes ``args`` and applies the time limit."""
    if registration.vector_entry_point is None or registration.additional_wrappers:
        return False
    if registration.entry_point is None or registration.vector_entry_point == _ATARI_VECTOR:
        return True
    parameters = inspect.signature(cast(Callable[..., object], _vector_creator(registration))).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    needed = {*args, *registration.kwargs} | ({"max_episode_steps"} if registration.max_episode_steps else set())
    return needed <= parameters.keys()
