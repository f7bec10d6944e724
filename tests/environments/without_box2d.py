"""Imported before an environment, this takes Box2D away from its process, as where the extra was never installed."""

from __future__ import annotations

import sys

sys.modules["Box2D"] = None  # type: ignore[assignment]
