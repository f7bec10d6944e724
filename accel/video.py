"""One episode of a policy as a video file: .mp4 through ffmpeg, .gif without it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Protocol, cast

from accel.errors import ConfigError, MissingExtraError
from accel.extras import install_command
from accel.loading import TrainedRun
from accel.players import Policy
from accel.playing import Episodes, Picture, play

FRAMES_PER_S = 30
_NEEDS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}


class _Writer(Protocol):
    def append_data(self, im: Picture) -> None: ...
    def close(self) -> None: ...


def record_episode(policy: Policy, run: TrainedRun, path: Path, *, seed: int = 0, greedy: bool = True) -> Episodes:
    """Play one episode and write what it looks like; the file appears when it is complete.

    Args:
        policy: who plays.
        run: where the environment comes from.
        path: an .mp4 or .gif file, replaced if it is there.
        seed, greedy: as for ``play``.
    Raises:
        ConfigError: another kind of file, or one that cannot be written.
        MissingExtraError: the writer, or what the environment draws with, is not installed.
        EnvError: the environment cannot draw itself.
    """
    suffix = path.suffix.lower()
    if suffix not in _NEEDS:
        raise ConfigError(f"video {path} must end in {' or '.join(_NEEDS)}")
    for module in _NEEDS[suffix]:
        try:
            importlib.import_module(module)
        except ImportError:
            other = ", or give a .gif file" if suffix == ".mp4" and module != "imageio" else ""
            raise MissingExtraError(
                f"writing {suffix} files needs {module}: {install_command('video')}{other}"
            ) from None
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's own choice needs a display, even to draw off screen
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{suffix}")
    try:
        writer = _open_writer(partial, suffix)
        try:
            episodes = play(
                policy,
                run,
                episodes=1,
                seed=seed,
                greedy=greedy,
                frame=lambda p: _append(writer, p),
            )
        finally:
            writer.close()
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"cannot write video {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return episodes


def _open_writer(path: Path, suffix: str) -> _Writer:
    import imageio.v2 as imageio

    path.touch()
    if suffix == ".gif":
        return cast(_Writer, imageio.get_writer(path, mode="I", duration=1000 / FRAMES_PER_S, loop=0))
    return cast(_Writer, imageio.get_writer(path, fps=FRAMES_PER_S, macro_block_size=2))


def _append(writer: _Writer, picture: Picture) -> None:
    """Encoders take even sizes only."""
    height, width = picture.shape[:2]
    writer.append_data(picture[: height // 2 * 2, : width // 2 * 2].copy())
