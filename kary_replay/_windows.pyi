from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kary_replay._ring import Ring
from kary_replay.windows import Output

class Gather:
    def __init__(self, ring: Ring, outputs: Sequence[Output]) -> None: ...
    def read(self, slots: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]: ...
