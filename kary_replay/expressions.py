"""Columns as functions of time: what derived columns are declared with.

After TimeRL (arXiv 2501.05408): what a step depends on at other steps is an expression of the
symbol `t`, and the system finds it when it is needed, so that nothing is stored twice.

    frame, reward = Column("frame"), Column("reward")
    k = Horizon(3)

    frame[t - 3 : t + 1]          four frames, the newest that of the step that is drawn
    frame[t + 1]                  the one after the step
    reward[t : t + k].sum(0.99)   k discounted rewards: 3, or as many as there are
    0.99**k                       what a value at t + k counts then
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import ClassVar, SupportsIndex, TypeAlias

import numpy as np

from kary_replay.checks import check_count, check_number

PADDINGS = ("zeros", "edge")


@dataclass(frozen=True)
class Horizon:
    """`k`: the number of steps summed from `t` on, at most `n_steps`.

    Fewer where the episode ends before, or the write head comes.  `t + k` is the time of the
    observation after them, and `gamma**k` a column: 0 where the last of them terminated.
    """

    n_steps: int

    __array_ufunc__: ClassVar[None] = None  # or NumPy's floats would take gamma**k for theirs

    def __post_init__(self) -> None:
        # NumPy's small integers would overflow where times are added up.
        object.__setattr__(self, "n_steps", check_count("n_steps", self.n_steps))

    def __rpow__(self, gamma: float) -> Discount:
        return Discount(check_number("gamma", gamma), self)

    def __str__(self) -> str:
        return f"k({self.n_steps})"


@dataclass(frozen=True)
class Time:
    """A time: that of the step that is drawn, `offset` steps off, counted from `t` or `t + k`."""

    offset: int = 0
    horizon: Horizon | None = None

    def __add__(self, later: SupportsIndex | Horizon) -> Time:
        if isinstance(later, Horizon):
            if self.horizon is not None:
                raise ValueError(f"a time must have one horizon, got {self} + k")
            return replace(self, horizon=later)
        return replace(self, offset=self.offset + _as_offset(later))

    __radd__ = __add__

    def __sub__(self, earlier: SupportsIndex) -> Time:
        return replace(self, offset=self.offset - _as_offset(earlier))

    def __str__(self) -> str:
        anchor = "t" if self.horizon is None else f"t+{self.horizon}"
        return f"{anchor}{self.offset:+d}" if self.offset else anchor


t = Time()


@dataclass(frozen=True)
class Column:
    """The stored column `name`, to be read at other times: `column[t-1]`, `column[t-3:t+1]`."""

    name: str

    def __getitem__(self, when: Time | slice) -> Window:
        if isinstance(when, Time):
            return Window(self.name, when, when + 1, single=True)
        if not isinstance(when, slice):
            raise TypeError(f"{self.name}[...] must be a time or a slice of times, got {when!r}")
        start, stop = when.start, when.stop
        if not isinstance(start, Time) or not isinstance(stop, Time):
            raise TypeError(f"{self.name}[start:stop] must be of times, got {start!r}, {stop!r}")
        if when.step is not None:
            raise ValueError(f"{self.name}[{start}:{stop}] must have no step, got {when.step!r}")
        return Window(self.name, start, stop)


@dataclass(frozen=True)
class Window:
    """The values of a stored column at the times start .. stop - 1: shape (stop - start, *shape).

    A `single` one has no axis of time.  Outside of the episode lie zeros, or with `pad("edge")`
    the nearest value of the episode.
    """

    column: str
    start: Time
    stop: Time
    single: bool = False
    padding: str = "zeros"

    def pad(self, padding: str) -> Window:
        """The same window, filled with "zeros" or from the "edge" where no episode is."""
        if padding not in PADDINGS:
            raise ValueError(f"padding must be one of {PADDINGS}, got {padding!r}")
        return replace(self, padding=padding)

    def valid(self) -> Mask:
        """Which of the times lie in the episode and before the write head: bools.

        Of a column with_next, that is one time more: of the observation after the last step.
        """
        return Mask(self)

    def sum(self, gamma: float) -> Sum:
        """Of x[t:t+k]: x[t] + gamma * x[t+1] + ... over the k steps, in the dtype of x."""
        horizon = self.stop.horizon
        if horizon is None or (self.start, self.stop) != (t, t + horizon):
            raise ValueError(f"only {self.column}[t:t+k] can be summed, got {self}")
        return Sum(self.column, check_number("gamma", gamma), horizon)

    def __str__(self) -> str:
        when = f"{self.start}" if self.single else f"{self.start}:{self.stop}"
        pad = "" if self.padding == "zeros" else f'.pad("{self.padding}")'
        return f"{self.column}[{when}]{pad}"


@dataclass(frozen=True)
class Mask:
    """Which times of a window lie in the episode and before the write head."""

    window: Window

    def __str__(self) -> str:
        return f"{self.window}.valid()"


@dataclass(frozen=True)
class Sum:
    """The discounted sum of a stored column over a horizon."""

    column: str
    gamma: float
    horizon: Horizon

    def __str__(self) -> str:
        return f"{self.column}[t:{t + self.horizon}].sum({self.gamma})"


@dataclass(frozen=True)
class Discount:
    """gamma**k, float32; 0 where the last of the k steps terminated."""

    gamma: float
    horizon: Horizon

    def __str__(self) -> str:
        return f"{self.gamma}**{self.horizon}"


Expression: TypeAlias = Window | Mask | Sum | Discount


def _as_offset(steps: SupportsIndex) -> int:
    if isinstance(steps, (bool, np.bool_)):
        raise TypeError(f"times must be moved by whole steps or a Horizon, got {steps!r}")
    try:
        return operator.index(steps)
    except TypeError as error:
        raise TypeError(
            f"times must be moved by whole steps or a Horizon, got {steps!r}"
        ) from error
