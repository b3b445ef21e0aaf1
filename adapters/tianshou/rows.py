"""The rows of a Batch: stored and read as Tianshou does it, by shorter ways."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd  # type: ignore[import-untyped]
from tianshou.data import Batch

Array: TypeAlias = npt.NDArray[Any]
Copy: TypeAlias = tuple[Array, Any]  # a column, and what goes into its rows

NUMBERS = frozenset("biufc")
ZERO = np.int8(0)


def plain_copies(columns: Batch, values: Batch, lead: tuple[int, ...]) -> list[Copy] | None:
    """What goes where, if it is numbers into arrays of numbers: such copies cannot fail.

    Values have the shape of a row behind `lead`.  A column without a value gets 0, as in Tianshou.
    None says that the rows hold anything else.
    """
    copies: list[Copy] = []
    return copies if _plan(columns.__dict__, values.__dict__, lead, copies) else None


def _plan(
    columns: dict[str, Any], values: dict[str, Any], lead: tuple[int, ...], copies: list[Copy]
) -> bool:
    if not values.keys() <= columns.keys():
        return False
    for key, column in columns.items():
        value = values.get(key, ZERO)
        if type(column) is Batch:
            nested = {} if value is ZERO else getattr(value, "__dict__", None)
            if nested is None or not _plan(column.__dict__, nested, lead, copies):
                return False
        elif _fits(column, value, lead):
            copies.append((column, value))
        else:
            return False
    return True


def _fits(column: Any, value: Any, lead: tuple[int, ...]) -> bool:
    if not _is_numbers(column):
        return False
    return value is ZERO or (_is_numbers(value) and value.shape == lead + column.shape[1:])


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMBERS


def any_nan(copies: list[Copy]) -> bool:
    """Whether one of the values is NaN (or perhaps, of complex numbers)."""
    for _, value in copies:
        if value.dtype.kind in "fc":
            squares = np.vdot(value, value)  # none of them is negative, so infinities stay
            if squares != squares:
                return True
    return False


def null_rows(values: Batch, count: int) -> npt.NDArray[np.bool_]:
    """Which of `count` rows have a value that Tianshou calls null: NaN, None, NaT, however deep."""
    nulls = np.zeros(count, np.bool_)
    for value in values.values():
        if isinstance(value, Batch):
            nulls |= null_rows(value, count)
        else:
            null = np.asarray(pd.isnull(value))
            nulls |= null.any(axis=tuple(range(1, null.ndim)))
    return nulls


def taken(column: Any, rows: Array) -> Any:
    """A column's values at `rows`, an array of integers of any shape; a copy."""
    if type(column) is np.ndarray:
        return column.take(rows, axis=0)
    if isinstance(column, Batch):
        values = Batch()
        values.__dict__.update((key, taken(inner, rows)) for key, inner in column.items())
        return values
    return None if column is None else column[rows]


def put(batch: Batch, key: str, column: Any, rows: Array) -> None:
    """Sets one key of a batch to the column's values at `rows`."""
    if _is_numbers(column):
        batch.__dict__[key] = column.take(rows, axis=0)
    else:
        batch[key] = taken(column, rows)  # Tianshou looks into objects


def shallow(batch: Batch) -> Batch:
    """A copy of the nested keys; the values are the same objects."""
    copied = Batch()
    for key, value in batch.items():
        copied.__dict__[key] = shallow(value) if isinstance(value, Batch) else value
    return copied
