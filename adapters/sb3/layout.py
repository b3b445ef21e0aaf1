"""How SB3's transitions lie in the core: which columns are stored, and which are drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kary_replay import Column, Horizon, Stored, t
from kary_replay.columns import Declaration
from kary_replay.expressions import Expression

from .observations import Array, Observation, Observations
from .stacks import FrameStack

DRAWN = "drawn "  # before the name of a column that is drawn as an expression of the stored one
ONE = np.ones((), np.float32)  # an array: NumPy would convert a number at every call
MARKS = ("terminated", "truncated", "age")  # stored for the core, which finds episodes by them


class Layout:
    """The columns of a buffer.

    Stored columns have the names of SB3's attributes.  What a batch holds under such a name is
    the column itself, or an expression of it:

    - With n_steps > 1, a row's next observation and flags are those of the last of its k steps,
      and its rewards are a window, since SB3 normalizes them before it sums them.
    - With `next_in_time`, an observation is stored once, and the next one is that of t + k.
      With stacks, what is stored is a frame.
    """

    def __init__(
        self,
        observations: Observations,
        actions: tuple[tuple[int, ...], np.dtype[Any]],
        *,
        next_in_time: bool,
        stack: FrameStack | None,
        n_steps: int,
    ) -> None:
        self.observations = observations
        self.next_in_time = next_in_time
        self.stack = stack
        self.n_steps = n_steps
        self.columns: dict[str, Declaration] = {"actions": actions}
        self._drawn_as: dict[str, str] = {}  # where it is not the stored column itself
        self._k = Horizon(n_steps)
        if next_in_time:
            self._store_observations_once()
        else:
            self._store_both_observations()
        self._store_numbers()

    @property
    def stored(self) -> list[str]:
        """The stored columns that SB3 has too."""
        return [n for n in self.columns if n not in MARKS and not n.startswith(DRAWN)]

    @property
    def in_time(self) -> bool:
        """Whether the core has to know where episodes end."""
        return self.next_in_time or self.n_steps > 1

    def _store_observations_once(self) -> None:
        for name, part in self.observations.columns("observations"):
            frame, shape = Column(name), part.shape
            next_name = part.column("next_observations")
            if self.stack is None:
                self.columns[name] = Stored(shape, part.dtype, with_next=True)
                self._draw(next_name, frame[t + self._k])
                continue
            shape, before = self.stack.frame_shape, self.stack.size - 1
            self.columns[name] = Stored(shape, part.dtype, with_next=True, drawn=False)
            self._draw(name, frame[t - before : t + 1])
            self._draw(next_name, frame[t + self._k - before : t + self._k + 1])
        if self.stack is not None:
            self.columns["age"] = Stored((), np.int32, with_next=True, drawn=False)

    def _store_both_observations(self) -> None:
        for name, part in self.observations.columns("observations"):
            self.columns[name] = (part.shape, part.dtype)
        for name, part in self.observations.columns("next_observations"):
            self._store_last(name, part.shape, part.dtype)

    def _store_numbers(self) -> None:
        if self.n_steps > 1:
            self._store_window("rewards")
        else:
            self.columns["rewards"] = ((), np.float32)
        for name in ("dones", "timeouts"):
            if self.next_in_time:
                self.columns[name] = Stored((), np.float32, drawn=False)
            else:
                self._store_last(name, (), np.dtype(np.float32))
        if self.in_time:
            for name in ("terminated", "truncated"):
                self.columns[name] = Stored((), np.bool_, drawn=False)
        if self.next_in_time:
            self._draw("terminated", Column("terminated")[t + self._k - 1])

    def _store_last(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """A column that is drawn as it is at the last of k steps."""
        if self.n_steps == 1:
            self.columns[name] = (shape, dtype)
            return
        self.columns[name] = Stored(shape, dtype, drawn=False)
        self._draw(name, Column(name)[t + self._k - 1])

    def _store_window(self, name: str) -> None:
        """A number that is drawn as it is at each of n_steps, with a mask of those there are."""
        self.columns[name] = Stored((), np.float32, drawn=False)
        window = Column(name)[t : t + self.n_steps]
        self._draw(name, window)
        self._draw("steps", window.valid())

    def _draw(self, name: str, expression: Expression) -> None:
        self._drawn_as[name] = DRAWN + name
        self.columns[DRAWN + name] = expression

    def drawn(self, batch: dict[str, Array], name: str) -> Array:
        """What `batch` holds under the name of a stored column."""
        return batch[self._drawn_as.get(name, name)]

    def observation(self, batch: dict[str, Array], attribute: str) -> Observation:
        """The observations, or next_observations, of a batch."""
        if self.observations.is_dict:
            return self.observations.put_together(attribute, partial(self.drawn, batch))
        drawn = self.drawn(batch, attribute)
        return drawn if self.stack is None else self.stack.stacked(drawn)

    def rewards(self, batch: dict[str, Array]) -> npt.NDArray[np.float32]:
        """Rewards of n_steps each, (B, n_steps)."""
        return self.drawn(batch, "rewards").reshape(-1, self.n_steps)

    def steps(self, batch: dict[str, Array]) -> npt.NDArray[np.bool_]:
        """Which of the n_steps there are, (B, n_steps)."""
        return self.drawn(batch, "steps")

    def terminated(self, batch: dict[str, Array]) -> npt.NDArray[np.float32]:
        """SB3's dones without those that are timeouts, float32, (B, 1)."""
        if self.next_in_time:
            return self.drawn(batch, "terminated").astype(np.float32).reshape(-1, 1)
        terminated: npt.NDArray[np.float32] = ONE - self.drawn(batch, "timeouts")
        terminated *= self.drawn(batch, "dones")
        return terminated.reshape(-1, 1)

    def flags(
        self, dones: npt.NDArray[np.float32], timeouts: npt.NDArray[np.float32]
    ) -> dict[str, Array]:
        """The stored columns for SB3's two flags."""
        flags: dict[str, Array] = {"dones": dones, "timeouts": timeouts}
        if self.in_time:
            truncated = timeouts != 0
            flags |= {"terminated": (dones != 0) & ~truncated, "truncated": truncated}
        return flags
