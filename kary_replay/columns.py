"""What a row holds: names, shapes and dtypes, and the check of what comes in."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
Array: TypeAlias = npt.NDArray[Any]

LARGEST_FIELD = 2**31 - 1  # bytes, as NumPy's records have it
RESERVED = frozenset({"td_errors", "lanes"})  # arguments of `add` beside the columns


class Schema:
    """The declared columns of a buffer, and the record that a row of them makes.

    Parameters
    ----------
    columns : mapping of name to (shape, dtype)
        `shape` is that of one row, `()` for a number; `dtype` any bool, integer, real or
        complex dtype, which stays what it is.

    Raises
    ------
    ValueError
        No column, a name that `add` needs for itself, or a size that is not >= 1.
    TypeError
        A dtype that is not a plain number, or a declaration that is not (shape, dtype).
    """

    def __init__(self, columns: Columns) -> None:
        if not isinstance(columns, Mapping):
            raise TypeError(f"columns must map names to (shape, dtype), got {columns!r}")
        if not columns:
            raise ValueError("columns must name at least one column")
        self.columns = {name: _declared(name, column) for name, column in columns.items()}
        self.record = _record(self.columns)
        # Where each column lies among the fields of the record, in the order of declaration.
        self.fields = {name: (self.record.names or ()).index(name) for name in self.columns}

    def declaration(self) -> dict[str, list[Any]]:
        """The columns as JSON can hold them."""
        return {name: [list(shape), dtype.str] for name, (shape, dtype) in self.columns.items()}

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
        if columns.keys() != self.columns.keys():
            raise ValueError(_wrong_names(self.columns, columns))
        arrays = {name: _as_array(name, columns[name]) for name in self.record.names or ()}
        leading = self._leading(arrays)
        for name, array in arrays.items():
            shape, _ = self.columns[name]
            if array.shape != leading + shape:
                raise ValueError(_wrong_shape(name, array, shape, leading))
        return {name: _cast(name, array, self.columns[name][1]) for name, array in arrays.items()}

    def _leading(self, arrays: Mapping[str, Array]) -> tuple[int, ...]:
        """(n,), or () for one row without a leading axis: what the first column says."""
        name, array = next(iter(arrays.items()))
        return array.shape[:1] if array.ndim == len(self.columns[name][0]) + 1 else ()


def _declared(name: str, column: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"column names must be non-empty strings, got {name!r}")
    if name in RESERVED:
        raise ValueError(f"a column must not be called {name!r}: it is an argument of add")
    try:
        shape, dtype = column
        if dtype is None:  # which NumPy takes for float64
            raise TypeError("no dtype")
        shape, dtype = tuple(operator.index(size) for size in shape), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"column {name!r} must be (shape, dtype), got {column!r}") from error
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


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
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
    if leading and array.shape[1:] == shape:
        return f"{rule}, with n = {leading[0]} in every column, got n = {array.shape[0]}"
    return f"{rule}, and like the other columns, got {array.shape}"
