from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kary_replay._parts import Parts
from kary_replay._ring import Ring
from kary_replay.windows import Output

class Gather:
    def __init__(self, ring: Ring, parts: Parts, outputs: Sequence[Output]) -> None: ...
    def read(
        self, slots: npt.NDArray[np.int64]
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def again(
        self,
        columns: dict[str, npt.NDArray[Any]],
        keys: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]: ...
