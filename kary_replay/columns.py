"""What a row holds: names, shapes and dtypes, and the check of what comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
Array: TypeAlias = npt.NDArray[Any]

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
        if not columns:
            raise ValueError("columns must name at least one column")
        self.columns = {name: _declared(name, column) for name, column in columns.items()}
        self.record = _record(self.columns)
        self._names = self.columns.keys()

    def rows(self, columns: Mapping[str, npt.ArrayLike]) -> tuple[int | None, list[Array]]:
        """The columns as arrays of the declared dtypes, C-contiguous, each with a leading axis.

        Returns the number of rows, or None for one row given without a leading axis, and the
        arrays in the order of `record`.  Values must survive the cast to the declared dtype:
        integers exactly, floats up to rounding.

        Raises
        ------
        ValueError
            A column missing, unknown, of a wrong shape, or with a value that its dtype cannot
            hold; columns of different lengths.
        TypeError
            A column whose kind of number its dtype cannot hold at all.
        """
        if columns.keys() != self._names:
            raise ValueError(_wrong_names(self.columns.keys(), columns.keys()))
        arrays = []
        count: int | None = -1
        for name in self.record.names or ():
            shape, dtype = self.columns[name]
            array = np.asarray(columns[name])
            rows = _row_count(name, array, shape)
            if count == -1:
                first, count = name, rows
            elif rows != count:
                raise ValueError(
                    f"columns must have one length, got {_length(count)} of {first!r} "
                    f"and {_length(rows)} of {name!r}"
                )
            if array.dtype != dtype:
                array = _cast(name, array, dtype)
            arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return count, arrays


def _declared(name: str, column: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"column names must be non-empty strings, got {name!r}")
    if name in RESERVED:
        raise ValueError(f"a column must not be called {name!r}: it is an argument of add")
    try:
        shape, dtype = column
        shape, dtype = tuple(int(size) for size in shape), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"column {name!r} must be (shape, dtype), got {column!r}") from error
    if any(size < 1 for size in shape):
        raise ValueError(f"column {name!r} must have sizes >= 1, got shape {shape}")
    if dtype.kind not in "biufc":
        raise TypeError(f"column {name!r} must have a dtype of plain numbers, got {dtype}")
    return shape, dtype


def _record(columns: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> np.dtype[Any]:
    """One row: fields by falling alignment, so that each is aligned and little is padding."""
    names = sorted(columns, key=lambda name: -columns[name][1].alignment)
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


def _row_count(name: str, array: Array, shape: tuple[int, ...]) -> int | None:
    if array.shape == shape:
        return None
    if array.ndim == len(shape) + 1 and array.shape[1:] == shape:
        return len(array)
    raise ValueError(
        f"column {name!r} must have shape {shape} for one row or {('n', *shape)} for n, "
        f"got {array.shape}".replace("'n'", "n")
    )


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if not np.can_cast(array.dtype, dtype, "same_kind") and not (
        array.dtype.kind in "iu" and dtype.kind in "biu"
    ):
        raise TypeError(f"column {name!r} is {dtype}, which cannot hold {array.dtype}")
    with np.errstate(over="ignore"):  # reported below, by name
        cast = array.astype(dtype)
    if dtype.kind in "biu":
        lost = cast != array
    else:
        lost = np.isinf(cast) & ~np.isinf(array)
    if lost.any():
        raise ValueError(f"column {name!r} is {dtype}, which cannot hold {array[lost].flat[0]}")
    return cast


def _wrong_names(declared: Any, given: Any) -> str:
    missing = [name for name in declared if name not in given]
    unknown = [name for name in given if name not in declared]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
    return f"columns must be exactly {list(declared)}: " + ", ".join(parts)


def _length(rows: int | None) -> str:
    return "one row" if rows is None else f"{rows} rows"
