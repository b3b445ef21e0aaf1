"""What columns of time mean, in plain Python: episodes are lists, a row is a place in one.

The law that the compiled gather is held to.  No marks, no tree, and of the ring only that the
newest rows of a lane are still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from kary_replay import Column, Horizon, t

Array = npt.NDArray[Any]
Values = dict[str, Array]  # of one step: column to array


class Derived(Protocol):
    """A derived column: how it is declared, and what it is at step `i` of an episode.

    It looks at up to `back` steps before `i`, and is whole where nothing cuts it short.
    """

    @property
    def back(self) -> int: ...
    def expression(self) -> Any: ...
    def at(self, episode: Episode, i: int) -> Any: ...
    def whole(self, episode: Episode, i: int) -> bool: ...


@dataclass
class Episode:
    """Steps in order, and the observations announced after the last of them."""

    first: int  # number in its lane of the row of its first step
    observations: frozenset[str]  # the columns with one value more than there are steps
    steps: list[Values] = field(default_factory=list)
    announced: Values = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return bool(self.steps[-1]["terminated"] or self.steps[-1]["truncated"])

    @property
    def rows(self) -> int:
        return len(self.steps) + bool(self.observations)

    def values(self, column: str) -> list[Array]:
        values = [step[column] for step in self.steps]
        return [*values, self.announced[column]] if column in self.observations else values

    def rewards_summed(self, i: int, n_steps: int) -> int:
        return min(n_steps, len(self.steps) - i)


@dataclass(frozen=True)
class Window:
    """`column[t + start : t + stop]`, or around `t + k` with a horizon."""

    column: str
    start: int
    stop: int
    n_steps: int | None = None
    pad: str | None = None  # None: not said

    def expression(self) -> Any:
        return self._padded(Column(self.column)[self._time(self.start) : self._time(self.stop)])

    def _time(self, offset: int) -> Any:
        return (t if self.n_steps is None else t + Horizon(self.n_steps)) + offset

    def _padded(self, window: Any) -> Any:
        return window if self.pad is None else window.pad(self.pad)

    @property
    def back(self) -> int:
        """Steps before its own that it may look at: k is at least 1."""
        return max(0, -self.start - (self.n_steps is not None))

    def times(self, episode: Episode, i: int) -> range:
        if self.n_steps is not None:
            i += episode.rewards_summed(i, self.n_steps)
        return range(i + self.start, i + self.stop)

    def at(self, episode: Episode, i: int) -> Array:
        values = episode.values(self.column)
        edges = values if self.pad == "edge" else [np.zeros_like(values[0])]
        before, after = edges[0], edges[-1]
        return np.stack(
            [
                before if time < 0 else after if time >= len(values) else values[time]
                for time in self.times(episode, i)
            ]
        )

    def valid(self, episode: Episode, i: int) -> Array:
        values = len(episode.values(self.column))
        return np.array([0 <= time < values for time in self.times(episode, i)])

    def whole(self, episode: Episode, i: int) -> bool:
        k = episode.rewards_summed(i, self.n_steps or 1)
        return k == (self.n_steps or 1) and bool(self.valid(episode, i).all())


class Value(Window):
    """`column[t + offset]`, or `column[t + k + offset]` with a horizon."""

    def __init__(
        self, column: str, offset: int, n_steps: int | None = None, pad: str | None = None
    ) -> None:
        super().__init__(column, offset, offset + 1, n_steps, pad)

    def expression(self) -> Any:
        return self._padded(Column(self.column)[self._time(self.start)])

    def at(self, episode: Episode, i: int) -> Array:
        value: Array = super().at(episode, i)[0]
        return value

    def valid(self, episode: Episode, i: int) -> Array:
        valid: Array = super().valid(episode, i)[0]
        return valid


@dataclass(frozen=True)
class Mask:
    """`window.valid()`"""

    window: Window

    @property
    def back(self) -> int:
        return self.window.back

    def expression(self) -> Any:
        return self.window.expression().valid()

    def at(self, episode: Episode, i: int) -> Array:
        return self.window.valid(episode, i)

    def whole(self, episode: Episode, i: int) -> bool:
        return self.window.whole(episode, i)


@dataclass(frozen=True)
class Return:
    """`column[t : t + k].sum(gamma)`"""

    column: str
    n_steps: int
    gamma: float
    back: ClassVar[int] = 0

    def expression(self) -> Any:
        return Column(self.column)[t : t + Horizon(self.n_steps)].sum(self.gamma)

    def at(self, episode: Episode, i: int) -> Any:
        total = np.zeros_like(episode.steps[i][self.column])
        for j in range(episode.rewards_summed(i, self.n_steps)):
            total = total + self.gamma**j * episode.steps[i + j][self.column]
        return total

    def whole(self, episode: Episode, i: int) -> bool:
        return episode.rewards_summed(i, self.n_steps) == self.n_steps


@dataclass(frozen=True)
class Discount:
    """`gamma**k`"""

    n_steps: int
    gamma: float
    back: ClassVar[int] = 0

    def expression(self) -> Any:
        return self.gamma ** Horizon(self.n_steps)

    def at(self, episode: Episode, i: int) -> float:
        k = episode.rewards_summed(i, self.n_steps)
        return 0.0 if episode.steps[i + k - 1]["terminated"] else self.gamma**k

    def whole(self, episode: Episode, i: int) -> bool:
        return episode.rewards_summed(i, self.n_steps) == self.n_steps


class Lane:
    """One environment's episodes, oldest first, of which the newest rows are held."""

    def __init__(self, rows_held: int) -> None:
        self.rows_held = rows_held
        self.episodes: list[Episode] = []

    @property
    def head(self) -> int:
        """The rows there have ever been."""
        return self.episodes[-1].first + self.episodes[-1].rows if self.episodes else 0

    def add(self, step: Values, announced: Values) -> int:
        """Adds a step to the episode that it continues; returns the number of its row."""
        if not self._continues(step):
            self.episodes.append(Episode(self.head, frozenset(announced)))
        episode = self.episodes[-1]
        episode.steps.append(step)
        episode.announced = announced
        return episode.first + len(episode.steps) - 1

    def _continues(self, step: Values) -> bool:
        if not self.episodes or self.episodes[-1].ended:
            return False
        announced = self.episodes[-1].announced
        return all(step[name].tobytes() == value.tobytes() for name, value in announced.items())

    def holds(self, number: int) -> bool:
        return number >= self.head - self.rows_held

    def whole(self, back: int) -> Iterator[tuple[int, Episode, int]]:
        """The steps that are held with the `back` steps before them, or all of their episode.

        As number of the row, episode, and place in it.
        """
        for episode in self.episodes:
            for i in range(len(episode.steps)):
                if self.holds(episode.first + max(0, i - back)):
                    yield episode.first + i, episode, i


class Episodes:
    """What a buffer of `columns` should hold, by key.

    Parameters
    ----------
    observations : the stored columns with_next
    derived : the derived columns
    """

    def __init__(
        self,
        lanes: int,
        rows_per_lane: int,
        observations: Sequence[str],
        derived: Mapping[str, Derived],
    ) -> None:
        self.lanes = [Lane(rows_per_lane) for _ in range(lanes)]
        self.observations = tuple(observations)
        self.derived = dict(derived)

    @property
    def back(self) -> int:
        return max((column.back for column in self.derived.values()), default=0)

    def add(self, lane: int, values: Values) -> int:
        """Adds one step as `ReplayBuffer.add` takes it; returns its key."""
        step = dict(values)
        announced = {name: step.pop(f"next_{name}") for name in self.observations}
        return self.lanes[lane].add(step, announced) * len(self.lanes) + lane

    def drawable(self) -> dict[int, Values]:
        """Every row that can be drawn: key to the values of all columns, derived ones too."""
        return {
            number * len(self.lanes) + lane: self._values(episode, i)
            for lane, stream in enumerate(self.lanes)
            for number, episode, i in stream.whole(self.back)
        }

    def keys(self) -> list[int]:
        """The keys of all steps ever added."""
        return [
            (episode.first + i) * len(self.lanes) + lane
            for lane, stream in enumerate(self.lanes)
            for episode in stream.episodes
            for i in range(len(episode.steps))
        ]

    def _values(self, episode: Episode, i: int) -> Values:
        derived = {name: column.at(episode, i) for name, column in self.derived.items()}
        return episode.steps[i] | derived
