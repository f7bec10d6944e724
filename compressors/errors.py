"""Errors of the compressors: each message names the value, the reason and the remedy."""

from __future__ import annotations


class CompressorError(Exception):
    """Base of every error of compression: of a scheme, a policy that it does not suit, or an artifact."""


class SchemeError(CompressorError):
    """A scheme's text is malformed, names an unknown method, or combines methods that cannot be combined."""


class ArtifactError(CompressorError):
    """Bytes that are not an intact artifact of a supported version, or an artifact that this machine cannot run."""


class GraphError(CompressorError):
    """The policy module cannot be exported to a graph whose weights can be refreshed."""


class UnsupportedLayerError(CompressorError):
    """A layer that the scheme cannot compress; the message names the layer and what would work."""


class CalibrationError(CompressorError):
    """Calibration inputs are missing, empty, of the wrong shape, or not finite."""


class WeightsError(CompressorError):
    """The module to refresh from is not the one bound, or holds weights that are not finite."""


class VerificationError(CompressorError):
    """An artifact's outputs differ too much from those of the policy that it was made from."""
