"""MuJoCo's warnings in the log, once each, rather than in MUJOCO_LOG.TXT in every actor's working directory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

logger = logging.getLogger("accel")


def log_mujoco_warnings() -> None:
    """If MuJoCo has been imported, log what it warns of; what it calls deprecated is for model authors, hence debug."""
    hook: Callable[[Callable[[str], None]], None] | None = getattr(
        sys.modules.get("mujoco"), "set_mju_user_warning", None
    )
    if hook is None:
        return
    seen: set[str] = set()

    def log(message: str) -> None:
        if message not in seen:
            seen.add(message)
            logger.log(logging.DEBUG if "deprecated" in message else logging.WARNING, "MuJoCo: %s", message)

    hook(log)
