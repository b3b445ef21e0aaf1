"""What a batch is made of: each column as offsets from the row that was drawn.

Expressions are compiled here once, when a buffer is made; `_windows.Gather` follows the offsets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from kary_replay.columns import Schema
from kary_replay.expressions import Discount, Expression, Mask, Sum, Window


class Kind(IntEnum):
    """How a column of a batch comes about; the numbers are those of `_windows.Kind`."""

    WINDOW = 0  # the values of a field at the times start .. stop - 1
    MASK = 1  # which of those times the episode has
    SUM = 2  # of gamma**j * field[t + j] over the horizon
    DISCOUNT = 3  # gamma**k


class Output(NamedTuple):
    """A column of a batch.  Times count from the row that was drawn, or from k steps after it."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    field: str = ""  # that is read
    observed: bool = False  # whether the field has a value after the last step
    start: int = 0
    stop: int = 1
    n_steps: int = 0  # of the horizon that the times count from; 0 where they count from the row
    edge: bool = False
    gamma: float = 0.0

    @property
    def back(self) -> int:
        """How many steps before the row it reads."""
        return max(0, -(self.start + min(1, self.n_steps)))

    @property
    def ahead(self) -> int:
        """How many rows after the row it reads, or must know of to count k."""
        return max(self.steps - 1, self.n_steps + self.stop - 1)

    @property
    def steps(self) -> int:
        """How many steps it needs from the row's own on, to be whole."""
        return max(1, self.n_steps, self.n_steps + self.stop - self.observed)


def outputs(schema: Schema, lane_rows: int) -> list[Output]:
    """The columns of a batch, of a buffer with `lane_rows` rows in each lane.

    Raises ValueError for an expression of an unknown column, of one that cannot be summed, of
    more rows than a lane has, of powers of gamma beyond float64, or of times that an episode may
    not have and no mask tells apart.
    """
    if schema.observed and lane_rows < 2:
        raise ValueError(f"lanes must have 2 rows or more for {schema.observed}, got {lane_rows}")
    return [_output(schema, name, lane_rows) for name in schema.drawn]


def _output(schema: Schema, name: str, lane_rows: int) -> Output:
    if name in schema.stored:
        return Output(name, Kind.WINDOW, *schema.stored[name], field=name)
    expression = schema.derived[name]
    try:
        output = _compiled(name, expression, schema)
        _check_powers(output)
        rows = output.back + output.steps + bool(schema.observed)  # of what the last step saw
        if rows > lane_rows:
            raise ValueError(f"needs {rows} rows of a lane, which has {lane_rows}")
    except ValueError as error:
        raise ValueError(f"column {name} = {expression} {error}") from None
    return output


def _compiled(name: str, expression: Expression, schema: Schema) -> Output:
    if isinstance(expression, Discount):
        horizon = expression.horizon.n_steps
        dtype = np.dtype(np.float32)
        return Output(
            name, Kind.DISCOUNT, (), dtype, stop=0, n_steps=horizon, gamma=expression.gamma
        )
    if isinstance(expression, Sum):
        return _sum(name, expression, schema)
    if isinstance(expression, Mask):
        window = _window(name, expression.window, schema)
        length = window.shape[: 0 if expression.window.single else 1]
        return window._replace(kind=Kind.MASK, shape=length, dtype=np.dtype(np.bool_))
    window = _window(name, expression, schema)
    _check_reach(window, expression, schema)
    return window


def _check_powers(output: Output) -> None:
    try:
        output.gamma**output.n_steps
    except OverflowError:
        raise ValueError(f"must have a gamma**{output.n_steps} that float64 can hold") from None


def _sum(name: str, expression: Sum, schema: Schema) -> Output:
    shape, dtype = _stored(expression.column, schema)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"must be of a column of float32 or float64, got {dtype}")
    return Output(
        name,
        Kind.SUM,
        shape,
        dtype,
        field=expression.column,
        stop=0,
        n_steps=expression.horizon.n_steps,
        gamma=expression.gamma,
    )


def _window(name: str, window: Window, schema: Schema) -> Output:
    shape, dtype = _stored(window.column, schema)
    start, stop = window.start.offset, window.stop.offset
    if window.start.horizon != window.stop.horizon:
        raise ValueError("must have both ends at t or both at t+k, unless it is t:t+k and summed")
    if stop <= start:
        raise ValueError("must end after its start")
    return Output(
        name,
        Kind.WINDOW,
        shape if window.single else (stop - start, *shape),
        dtype,
        field=window.column,
        observed=window.column in schema.observed,
        start=start,
        stop=stop,
        n_steps=0 if window.start.horizon is None else window.start.horizon.n_steps,
        edge=window.padding == "edge",
    )


def _stored(column: str, schema: Schema) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if column not in schema.stored:
        raise ValueError(f"must read one of the stored columns {list(schema.stored)}")
    return schema.stored[column]


def _check_reach(output: Output, window: Window, schema: Schema) -> None:
    """Every row that is drawn has a step at t and t+k-1, and an observation at t+1 and t+k too."""
    last = output.observed - min(1, output.n_steps)
    if output.stop - 1 <= last or any(_tells(mask, window, schema) for mask in schema.derived):
        return
    remedy = f"add a column with its mask, {window.pad('zeros').valid()}"
    if not output.observed:
        remedy = f"store {window.column} as Stored(..., with_next=True), or {remedy}"
    raise ValueError(f"may reach past the end of its episode: {remedy}")


def _tells(name: str, window: Window, schema: Schema) -> bool:
    """Whether the column `name` is a mask that holds for `window`."""
    mask = schema.derived[name]
    if not isinstance(mask, Mask):
        return False
    ends = {column in schema.observed for column in (mask.window.column, window.column)}
    return len(ends) == 1 and (mask.window.start, mask.window.stop) == (window.start, window.stop)
