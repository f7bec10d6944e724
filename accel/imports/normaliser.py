"""Statistics that observations were normalised with in training, as constants of the graph."""

from __future__ import annotations

import io
import tokenize
import warnings
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.format import read_array
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from torch import Tensor, nn

from accel.errors import ConfigError
from accel.system.untrusted import parse_json, read_file, unpack

_LIMIT_BYTES = 2**28
_CLIP, _EPSILON = 10.0, 1e-8
GREATEST = float(np.finfo(np.float32).max)
_FORM = "mean and var of the observation's shape, and optionally clip and epsilon, as .npz, .safetensors or .json"


class FixedNormaliser(nn.Module):
    """clamp((x − mean) / √(var + epsilon), −clip, clip), as Stable-Baselines3's VecNormalize and gymnasium's
    NormalizeObservation with a clip compute it.

    Args:
        mean, variance: [*shape].
        clip: limit of the normalised values. epsilon: added to the variance.
    """

    mean: Tensor
    rstd: Tensor

    def __init__(
        self, mean: npt.ArrayLike, variance: npt.ArrayLike, *, clip: float = _CLIP, epsilon: float = _EPSILON
    ) -> None:
        super().__init__()
        wide = np.asarray(variance, np.float64)
        self.register_buffer("mean", torch.tensor(np.asarray(mean, np.float32)))
        self.register_buffer("rstd", torch.tensor((1.0 / np.sqrt(wide + epsilon)).astype(np.float32)))
        self.clip = clip

    def forward(self, observations: Tensor) -> Tensor:
        """Normalises [N, *shape] floats."""
        return torch.clamp((observations - self.mean) * self.rstd, -self.clip, self.clip)


def read_normaliser(path: Path, shape: tuple[int, ...]) -> FixedNormaliser:
    """Read statistics from a file.

    Args:
        path: an .npz, .safetensors or .json file with ``mean`` and ``var``, and optionally ``clip`` (10) and
            ``epsilon`` (1e-8).
        shape: of one observation.
    Raises:
        ConfigError: it cannot be read, lacks a value, or is for observations of another shape.
    """
    try:
        values = _read(path)
        mean, variance = (np.asarray(values[name], np.float64) for name in ("mean", "var"))
        clip, epsilon = float(values.get("clip", _CLIP)), float(values.get("epsilon", _EPSILON))  # type: ignore[arg-type]
    except OSError as error:
        raise ConfigError(f"cannot read normaliser {path}: {error.strerror or error}") from None
    except KeyError as error:
        raise ConfigError(f"normaliser {path} lacks {error.args[0]!r}: give {_FORM}") from None
    except (ValueError, TypeError, SafetensorError) as error:
        raise ConfigError(
            f"normaliser {path} cannot be read ({error}): give {_FORM}; pickles are not read, and VecNormalize v is "
            "written so: "
            "numpy.savez('normaliser.npz', mean=v.obs_rms.mean, var=v.obs_rms.var, clip=v.clip_obs, epsilon=v.epsilon)"
        ) from None
    if mean.shape != shape or variance.shape != shape:
        raise ConfigError(
            f"normaliser {path} has mean {mean.shape} and var {variance.shape}, the observations have shape {shape}: "
            "give the statistics of this environment"
        )
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance + epsilon > 0).all() and clip > 0):
        raise ConfigError(f"normaliser {path}: mean and var must be finite, var + epsilon and clip positive")
    if not (np.stack((np.abs(mean), 1.0 / np.sqrt(variance + epsilon))) <= GREATEST).all():
        raise ConfigError(f"normaliser {path}: mean and 1/√(var + epsilon) must fit into single precision")
    return FixedNormaliser(mean, variance, clip=min(clip, GREATEST), epsilon=epsilon)


def _read(path: Path) -> dict[str, object]:
    content = read_file(path, _LIMIT_BYTES)
    if path.suffix == ".json":
        value = parse_json(content)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        return value
    if path.suffix == ".npz":
        return read_npz(content, _LIMIT_BYTES)
    if path.suffix == ".safetensors":
        return cast("dict[str, object]", load_safetensors(content))
    raise ValueError(f"its name ends in {path.suffix!r}")


def read_npz(content: bytes, limit: int) -> dict[str, object]:
    """The arrays of an .npz file; no memory is taken for more than it may hold. Raises ValueError."""
    try:
        return {name.removesuffix(".npy"): _read_npy(array) for name, array in unpack(content, limit).items()}
    except (SyntaxError, tokenize.TokenError, EOFError, OverflowError, MemoryError) as error:  # numpy parses headers
        raise ValueError(f"it is no sound .npz file: {error}") from error


def _read_npy(content: bytes) -> npt.NDArray[np.generic]:
    """One array; numpy reads it part by part, and takes no pages for what is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote, which numpy reads
        return read_array(io.BytesIO(content), allow_pickle=False)
