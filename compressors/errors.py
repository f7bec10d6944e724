"""Named errors of the compressors: each message says what was wrong and what to do."""

from __future__ import annotations


class CompressorError(Exception):
    """Base of every error raised by this package."""


class SchemeError(CompressorError):
    """A scheme's text is malformed, names an unknown method, or combines methods that do not go together."""


class ArtifactError(CompressorError):
    """Bytes that are no undamaged, supported policy artifact, or an artifact that this machine cannot run."""


class GraphError(CompressorError):
    """The policy module cannot be turned into a graph whose weights can be refreshed."""


class UnsupportedLayerError(CompressorError):
    """A layer that the scheme cannot compress; the message names the layer and what would work."""


class CalibrationError(CompressorError):
    """Calibration inputs are missing, empty, of the wrong shape, or not finite."""


class WeightsError(CompressorError):
    """The module to refresh from is not the one bound, or holds weights that are not finite."""


class VerificationError(CompressorError):
    """An artifact does not agree with the policy that it was made from."""
