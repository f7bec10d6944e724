"""Export formats, one module each, with the session that runs the exported model."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import cast

from accel.errors import ConfigError
from accel.exporting.formats.base import ExportFormat

# name: module and class; imported on first use
_HOMES = MappingProxyType(
    {
        "onnx": "accel.exporting.formats.onnx:OnnxFormat",
        "ort": "accel.exporting.formats.ort:OrtFormat",
        "openvino": "accel.exporting.formats.openvino:OpenVinoFormat",
        "c": "accel.exporting.formats.c:CFormat",
    }
)
FORMATS = tuple(_HOMES)
# formats whose files are code, executed with the rights of the process that loads it
NATIVE_FORMATS = frozenset({"c"})


def make_format(name: str, *, writing: bool = True) -> ExportFormat:
    """The format of this name, to write or only to run it. Raises ConfigError, which lists them, MissingExtraError."""
    if name not in _HOMES:
        raise ConfigError(f"unknown format '{name}'; choose from {', '.join(FORMATS)}")
    module, _, attribute = _HOMES[name].partition(":")
    made = cast(ExportFormat, getattr(import_module(module), attribute)())
    made.require(writing=writing)
    return made
