"""n-step returns as SB3 has them: in float32, summed in its order, of rewards it has normalized."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]


class Returns:
    """Discounted sums over the steps that there are, at most `n_steps`.

    The core has such sums too; but SB3 normalizes and clips each reward before it adds them up.
    """

    def __init__(self, n_steps: int, gamma: float) -> None:
        self._powers: Float32s = gamma ** np.arange(n_steps + 1, dtype=np.float32)

    def of(self, rewards: Float32s, there: npt.NDArray[np.bool_]) -> tuple[Float32s, Float32s]:
        """The sum of the rewards of the k steps that are `there`, and gamma**k: (B, 1) each.

        Both arrays have the shape (B, n_steps).
        """
        discounted = rewards * self._powers[:-1]
        discounted *= there
        steps = there.sum(axis=1, keepdims=True)
        return discounted.sum(axis=1, keepdims=True), self._powers[steps]
