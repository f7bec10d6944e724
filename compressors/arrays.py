"""Array types of this package. Imports numpy only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
FloatArray = NDArray[np.float32]
# a module's parameters and buffers by name
State = Mapping[str, Array]
