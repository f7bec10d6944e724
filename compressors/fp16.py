"""``fp16``: weights are stored in half precision and computed in single: half the bytes, no faster on a CPU."""

from __future__ import annotations

import numpy as np

from accel.compressors.fp32 import FloatEncoder
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.methods import Encoder, Format
from accel.compressors.scheme import MethodText


class Float16(Format):
    """Half precision for every weight of two dimensions or more; biases and normaliser statistics stay single."""

    @property
    def method(self) -> MethodText:
        """``fp16``."""
        return MethodText("fp16")

    def encoder(self, graph: PolicyGraph) -> Encoder:
        """See ``Format.encoder``."""
        weights = graph.parameters.items()
        return FloatEncoder(graph, {name for name, w in weights if w.ndim > 1 and w.dtype == np.float32})
