"""One episode of a policy as a video file: .mp4 through ffmpeg, .gif without it."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from accel.display.progress import Progress
from accel.errors import ConfigError, EnvError, MissingExtraError
from accel.runs.playing import Episodes, Picture, Policy, play
from accel.runs.trained_policy import TrainedPolicy
from accel.system.atomic import write_atomically
from accel.system.extras import install_command

FRAMES_PER_S = 30
_NEEDS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}
_OPTIONS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        ".mp4": {"fps": FRAMES_PER_S, "macro_block_size": 2, "ffmpeg_log_level": "error"},
        ".gif": {"duration": 1000 / FRAMES_PER_S, "loop": 0},
    }
)

# silences pygame's greeting and Mesa's search for a GPU driver
_SETTINGS = MappingProxyType({"PYGAME_HIDE_SUPPORT_PROMPT": "1", "EGL_LOG_LEVEL": "fatal"})
# by default MuJoCo and SDL need a display, even to render off screen
_OFF_SCREEN = MappingProxyType({"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"})
_LIBRARIES = MappingProxyType(
    {
        "egl": "libEGL, package libegl1 of Debian and Ubuntu",
        "osmesa": "libOSMesa, package libosmesa6 of Debian and Ubuntu",
        "glfw": "glfw, which also needs a display",
    }
)
_NOISY_LOGGERS = ("OpenGL", "imageio", "imageio_ffmpeg")


def record_episode(
    policy: Policy,
    run: TrainedPolicy,
    path: Path,
    *,
    seed: int = 0,
    greedy: bool = True,
    progress: Progress | None = None,
) -> Episodes:
    """Record one episode as a video; the file appears when it is complete.

    Args:
        path: an .mp4 or .gif file, replaced if it is there.
        policy, run, seed, greedy, progress: as for ``play``.
    Raises:
        ConfigError: another kind of file, or one that cannot be written.
        MissingExtraError: the video writer or the environment's renderer is not installed.
        EnvError: the environment cannot render; for MuJoCo, with a remedy.
    """
    suffix = path.suffix.lower()
    if suffix not in _NEEDS:
        raise ConfigError(f"video {path} must end in {' or '.join(_NEEDS)}")
    if missing := [module for module in _NEEDS[suffix] if find_spec(module) is None]:
        other = ", or give a .gif file" if missing == ["imageio_ffmpeg"] else ""
        raise MissingExtraError(f"writing {suffix} files needs {missing[0]}: {install_command('video')}{other}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write video {path}: there is no directory {path.parent}")
    _set_up_drawing()
    import imageio.v2 as imageio

    content = io.BytesIO()
    try:
        writer = imageio.get_writer(content, suffix, "I", **_OPTIONS[suffix])

        def append(picture: Picture) -> None:
            height, width = (size // 2 * 2 for size in picture.shape[:2])  # encoders take even sizes only
            writer.append_data(picture[:height, :width].copy())

        try:
            with _quiet_libraries():
                episodes = play(policy, run, episodes=1, seed=seed, greedy=greedy, frame=append, progress=progress)
        except EnvError as error:
            if remedy := _remedy(error):
                raise EnvError(f"{error}; {remedy}") from error
            raise
        finally:
            writer.close()
        if suffix == ".mp4" and b"moov" not in content.getvalue():  # ffmpeg's failure is not told
            raise ConfigError(f"cannot write video {path}: what was written is incomplete; is the disk full?")
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise ConfigError(f"cannot write video {path}: {error.strerror or error}") from error
    return episodes


def _set_up_drawing() -> None:
    """Set the variables that rendering libraries read at import; a user's settings stay."""
    off_screen = not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    for name, value in (_SETTINGS | _OFF_SCREEN if off_screen else _SETTINGS).items():
        os.environ.setdefault(name, value)


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Suppress logs and warnings of rendering libraries; failures still raise."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(glfw|pygame|pkg_resources|OpenGL|imageio)\b")
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def _remedy(error: EnvError) -> str:
    """The remedy where MuJoCo lacks a rendering library; empty for other errors."""
    if error.__cause__ is None or not any(name.partition(".")[0] == "mujoco" for name in sys.modules):
        return ""
    way = os.environ.get("MUJOCO_GL", "glfw")
    install = f"install {_LIBRARIES[way]}, or " if way in _LIBRARIES else ""
    return f"MuJoCo renders with MUJOCO_GL={way} here: {install}set MUJOCO_GL to another of {', '.join(_LIBRARIES)}"
