"""What a row holds: names, shapes and dtypes, and the check of what comes in."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kary_replay.expressions import Expression

Array: TypeAlias = npt.NDArray[Any]
Plain: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]

LARGEST_FIELD = 2**31 - 1  # bytes, as NumPy's records have it
RESERVED = frozenset({"td_errors", "lanes"})  # arguments of `add` beside the columns
LONG_DOUBLES = "gG"  # real and complex; equal ones may differ in the bytes that pad them
FLAGS = ("terminated", "truncated")  # of the step that ends an episode


@dataclass(frozen=True)
class Stored:
    """A stored column of which there is more to say than (shape, dtype).

    Parameters
    ----------
    shape, dtype
        Of one row.
    with_next : bool
        An observation, of which an episode has one more than steps.  `add` takes the one after
        the step too, as next_<name>; it is stored once, as that of the next step, which must be
        the same bit for bit.  A step that brings another one begins an episode.
    drawn : bool
        Whether batches have the column itself, or only what is derived from it.
    """

    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    with_next: bool = False
    drawn: bool = True


Declaration: TypeAlias = tuple[tuple[int, ...], npt.DTypeLike] | Stored | Expression
Columns: TypeAlias = Mapping[str, Declaration]


class Schema:
    """The declared columns of a buffer, and the record that a row of them makes.

    Parameters
    ----------
    columns : mapping of name to (shape, dtype), Stored, or an expression of time
        `shape` is that of one row, `()` for a number; `dtype` any bool, integer, real or
        complex dtype, which stays what it is.

    Attributes
    ----------
    declared : the declarations by name, (shape, dtype) for all that is plain
    stored : the stored columns, name to (shape, dtype)
    observed : the names of those with a next value
    derived : the expressions by name
    drawn : the names of a batch's columns
    record : the dtype of a row
    inputs : what `add` takes, name to (shape, dtype)

    Raises
    ------
    ValueError
        No column that is stored or none that is drawn, a name that `add` needs for itself, a
        size that is not >= 1, or no flags for columns that depend on time.
    TypeError
        A dtype that is not a plain number, or is a long double of a column with_next; a
        declaration that is none of the three.
    """

    def __init__(self, columns: Columns) -> None:
        if not isinstance(columns, Mapping):
            raise TypeError(f"columns must map names to (shape, dtype), got {columns!r}")
        self.declared = {name: _declared(name, column) for name, column in columns.items()}
        self.stored: dict[str, Plain] = {}
        self.observed: list[str] = []
        self.derived: dict[str, Expression] = {}
        self.drawn = list(self.declared)
        for name, column in self.declared.items():
            self._sort(name, column)
        if not self.stored:
            raise ValueError("columns must name at least one column that is stored")
        if not self.drawn:
            raise ValueError("columns must name at least one column that is drawn")
        self.record = _record(self.stored)
        self.inputs = {name: self.stored[name] for name in self.record.names or ()}
        for name in self.observed:
            self._take_next(name)
        if self.in_time:
            self._check_flags()

    @property
    def in_time(self) -> bool:
        """Whether rows belong to episodes, as columns that depend on time need it."""
        return bool(self.derived or self.observed)

    def declaration(self) -> dict[str, Any]:
        """What rows hold and depend on, as JSON can hold it."""
        return {
            "stored": {
                name: [list(shape), dtype.str] for name, (shape, dtype) in self.stored.items()
            },
            "with_next": self.observed,
            "derived": {name: str(expression) for name, expression in self.derived.items()},
        }

    def _sort(self, name: str, column: Plain | Stored | Expression) -> None:
        if isinstance(column, Expression):
            self.derived[name] = column
            return
        if isinstance(column, Stored):
            self.observed += [name] * column.with_next
            if not column.drawn:
                self.drawn.remove(name)
            column = (column.shape, np.dtype(column.dtype))
        self.stored[name] = column

    def _take_next(self, name: str) -> None:
        following = f"next_{name}"
        if following in self.stored:
            raise ValueError(
                f"column {following!r} must not be stored: "
                f"it is what add takes as the next value of {name!r}"
            )
        self.inputs[following] = self.stored[name]

    def _check_flags(self) -> None:
        for flag in FLAGS:
            if self.stored.get(flag) != ((), np.dtype(np.bool_)) or flag in self.observed:
                given = self.stored.get(flag, "none")
                names = ", ".join([*self.observed, *self.derived])
                raise ValueError(
                    f"column {flag!r} must be stored as ((), bool), since episodes bound "
                    f"{names}, got {given}"
                )

    def cast(self, columns: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The columns as arrays of the declared dtypes.

        Values must survive the cast: exactly in columns of integers or flags, up to rounding in
        others.

        Raises
        ------
        ValueError
            A column missing, unknown, of a wrong shape, of another length than the first, or
            with a value that its dtype cannot hold.
        TypeError
            A column whose kind of number its dtype cannot hold at all.
        """
        if columns.keys() != self.inputs.keys():
            raise ValueError(_wrong_names(self.inputs, columns))
        arrays = {name: _as_array(name, columns[name]) for name in self.inputs}
        leading = self._leading(arrays)
        for name, array in arrays.items():
            shape, _ = self.inputs[name]
            if array.shape != leading + shape:
                raise ValueError(_wrong_shape(name, array, shape, leading))
        return {name: as_dtype(name, array, self.inputs[name][1]) for name, array in arrays.items()}

    def _leading(self, arrays: Mapping[str, Array]) -> tuple[int, ...]:
        """(n,), or () for one row without a leading axis: what the first column says."""
        name, array = next(iter(arrays.items()))
        return array.shape[:1] if array.ndim == len(self.inputs[name][0]) + 1 else ()


def _declared(name: str, column: Any) -> Plain | Stored | Expression:
    if not isinstance(name, str) or not name:
        raise TypeError(f"column names must be non-empty strings, got {name!r}")
    if name in RESERVED:
        raise ValueError(f"a column must not be called {name!r}: it is an argument of add")
    if isinstance(column, Expression):
        return column
    if not isinstance(column, Stored):
        return _plain(name, column)
    for flag in ("with_next", "drawn"):
        if not isinstance(getattr(column, flag), bool):
            raise TypeError(f"{flag} of column {name!r} must be a bool, got {column!r}")
    shape, dtype = _plain(name, (column.shape, column.dtype))
    if column.with_next and dtype.char in LONG_DOUBLES:
        raise TypeError(
            f"column {name!r} with_next must have a dtype that can be compared by its bytes, "
            f"got {dtype}"
        )
    return replace(column, shape=shape, dtype=dtype)


def _plain(name: str, column: Any) -> Plain:
    try:
        shape, dtype = column
        if dtype is None:  # which NumPy takes for float64
            raise TypeError("no dtype")
        shape, dtype = tuple(operator.index(size) for size in shape), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"column {name!r} must be (shape, dtype), Stored or an expression, got {column!r}"
        ) from error
    if any(size < 1 for size in shape):
        raise ValueError(f"column {name!r} must have sizes >= 1, got shape {shape}")
    if math.prod(shape) * dtype.itemsize > LARGEST_FIELD:
        raise ValueError(f"column {name!r} must have < 2 GiB a row, got shape {shape} of {dtype}")
    if dtype.kind not in "biufc":
        raise TypeError(f"column {name!r} must have a dtype of plain numbers, got {dtype}")
    return shape, dtype


def _record(columns: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> np.dtype[Any]:
    """One row: fields by falling alignment, so that each is aligned and little is padding.

    The order of declaration makes no difference.
    """
    names = sorted(columns, key=lambda name: (-columns[name][1].alignment, name))
    fields = [np.dtype((columns[name][1], columns[name][0])) for name in names]
    offsets = np.cumsum([0] + [field.itemsize for field in fields])
    alignment = max(dtype.alignment for _, dtype in columns.values())
    return np.dtype(
        {
            "names": names,
            "formats": fields,
            "offsets": offsets[:-1].tolist(),
            "itemsize": -(-int(offsets[-1]) // alignment) * alignment,
        }
    )


def _as_array(name: str, values: npt.ArrayLike) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, RuntimeError) as error:  # ragged; or a tensor with grad
        raise ValueError(f"column {name!r} must be an array, got {values!r}") from error


def as_dtype(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """What goes into the column `name`, as `Columns.cast` has it; it raises the same."""
    if array.dtype == dtype:
        return array
    whole = array.dtype.kind in "iu" and dtype.kind in "biu"
    if not whole and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"column {name!r} is {dtype}, which cannot hold {array.dtype}")
    try:
        with np.errstate(over="raise"):
            cast = array.astype(dtype)
    except FloatingPointError as error:
        largest = array.flat[np.argmax(np.abs(array))]
        raise ValueError(f"column {name!r} is {dtype}, which cannot hold {largest}") from error
    if whole and not np.array_equal(cast, array):
        lost = array[cast != array].flat[0]
        raise ValueError(f"column {name!r} is {dtype}, which cannot hold {lost}")
    return cast


def _wrong_names(declared: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    missing = [name for name in declared if name not in given]
    unknown = [name for name in given if name not in declared]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
    return f"columns must be exactly {list(declared)}: " + ", ".join(parts)


def _wrong_shape(name: str, array: Array, shape: tuple[int, ...], leading: tuple[int, ...]) -> str:
    many = f"({', '.join(['n', *map(str, shape)])})"
    rule = f"column {name!r} must have shape {shape} for one row, {many} for n"
    if leading and array.ndim and array.shape[1:] == shape:
        return f"{rule}, with n = {leading[0]} in every column, got n = {array.shape[0]}"
    return f"{rule}, and like the other columns, got {array.shape}"
