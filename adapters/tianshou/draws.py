"""What was drawn and not answered yet: so that a TD error that comes too late is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .lanes import Int64s

Bools = npt.NDArray[np.bool_]

# Of each index: no TD error is awaited; its row was drawn, and its TD error is awaited; the row
# that was drawn has been overwritten while its TD error was awaited.
IDLE, DRAWN, LOST = np.uint8(0), np.uint8(1), np.uint8(2)
GONE = np.array([IDLE, LOST, LOST])  # what becomes of each when its row is overwritten


class Draws:
    """The draws of a buffer of `size` rows: which TD errors are awaited, and the last weights."""

    def __init__(self, size: int) -> None:
        self._states = np.full(size, IDLE)
        self._weights = self._as_drawn = np.empty(0, np.float32)

    def note(self, rows: Int64s, weights: npt.NDArray[np.float32]) -> None:
        """These rows were drawn."""
        self._states[rows] = DRAWN
        self._weights, self._as_drawn = weights, weights.copy()

    def lose(self, rows: Int64s | slice) -> None:
        """These rows are overwritten."""
        self._states[rows] = GONE.take(self._states[rows])

    def answer(self, rows: Int64s) -> None:
        """The TD errors of these rows have come."""
        self._states[rows] = IDLE

    def kept(self, rows: Int64s) -> Bools | None:
        """Which of these rows have not been lost; None if all were drawn and await TD errors."""
        states = self._states[rows]
        if np.count_nonzero(states == DRAWN) == len(rows):
            return None
        kept: Bools = states != LOST
        return kept

    def has_weights(self, td_errors: Any) -> bool:
        """Whether TD errors are the last draw's weights: its memory, or a copy of another kind."""
        drawn = self._as_drawn
        if getattr(td_errors, "shape", None) != drawn.shape or not len(drawn):
            return False
        if isinstance(td_errors, np.ndarray) and td_errors.dtype == np.float32:
            if not np.may_share_memory(td_errors, self._weights):
                return False
            return bool((td_errors == drawn).all())  # and not TD errors that were written there
        copied = td_errors.detach().cpu().numpy() if hasattr(td_errors, "detach") else td_errors
        return len(drawn) > 1 and drawn.min() < 1.0 and bool((copied == drawn).all())
