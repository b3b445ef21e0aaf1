"""What a draw hands out."""

from __future__ import annotations

from collections.abc import Iterator

from kary_replay.columns import Array
from kary_replay.sampler import Draw, Int64s


class Batch:
    """Rows drawn together: copies that belong to the caller.

    ``batch["obs"]`` is the column of shape (n, *shape of one row); iteration is over the names.

    Attributes
    ----------
    columns : dict of name to array
    keys : int64 array, shape (n,).  Which transitions; they go back with the priorities.
    slots : int64 array, shape (n,).  Where they lay.
    probabilities : float64 array, shape (n,), or None.  As drawn.
    weights : float32 array, shape (n,), or None.  Importance-sampling weights.
    """

    __slots__ = ("columns", "keys", "probabilities", "slots", "weights")

    def __init__(self, columns: dict[str, Array], keys: Int64s, draw: Draw) -> None:
        self.columns = columns
        self.keys = keys
        self.slots, self.probabilities, self.weights = draw

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows of {', '.join(self.columns)})"
