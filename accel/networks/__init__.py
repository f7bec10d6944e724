"""Policy and critic networks in torch, built from a short text such as ``impala-resnet:2+lstm:256``.

Names are resolved on first use: validating a text (``parse_network``) does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.networks.factory import build_from_config, build_network
    from accel.networks.policy import PolicyNetwork
    from accel.networks.text import parse_network

_HOMES = {
    "PolicyNetwork": "policy",
    "build_network": "factory",
    "build_from_config": "factory",
    "parse_network": "text",
}

__all__ = ["PolicyNetwork", "build_from_config", "build_network", "parse_network"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
