"""How observations of a space lie in the core's columns: one column, or one for each key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape

Array: TypeAlias = npt.NDArray[Any]
Observation: TypeAlias = Array | dict[str, Array]


@dataclass(frozen=True)
class Part:
    """One array of an observation: the whole of it, or what a Dict has under `key`."""

    key: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_number: bool  # of a Discrete space, which environments give without an axis

    def column(self, attribute: str) -> str:
        """What the core calls it, among the `attribute` of the buffer."""
        return attribute if self.key is None else f"{attribute}.{self.key}"


class Observations:
    """The parts of the observations of a space, for `n_envs` environments.

    Raises NotImplementedError for a space that SB3 has no observations of.
    """

    def __init__(self, space: spaces.Space[Any], n_envs: int) -> None:
        self.is_dict = isinstance(space, spaces.Dict)  # whether they are dictionaries of arrays
        if isinstance(space, spaces.Dict):
            self.parts = [_part(key, subspace) for key, subspace in space.spaces.items()]
        else:
            self.parts = [_part(None, space)]
        self._shapes = {part.key: (n_envs, *part.shape) for part in self.parts}

    def columns(self, attribute: str) -> Iterator[tuple[str, Part]]:
        """The name of each part's column, and the part."""
        return ((part.column(attribute), part) for part in self.parts)

    def taken_apart(self, name: str, attribute: str, given: Any) -> dict[str, Array]:
        """`given`, the argument `name` of add, as the columns of `attribute`.

        Arrays have a leading axis of `n_envs`, which may be left out where it is 1.  Nothing is
        copied, and nothing of the caller's is changed.
        """
        if not self.is_dict:
            part = self.parts[0]
            return {attribute: self._rows(name, given, part)}
        if not isinstance(given, Mapping):
            raise TypeError(f"{name} must be a dict of arrays, got {type(given).__name__}")
        keys = [part.key for part in self.parts]
        if set(given) != set(keys):
            raise ValueError(f"{name} must have exactly the keys {keys}, got {list(given)}")
        return {
            column: self._rows(f"{name}[{part.key!r}]", given[part.key], part)
            for column, part in self.columns(attribute)
        }

    def put_together(self, attribute: str, part: Callable[[str], Array]) -> Observation:
        """The observation whose part in the column `c` is `part(c)`."""
        if not self.is_dict:
            return part(attribute)
        return {str(p.key): part(column) for column, p in self.columns(attribute)}

    def _rows(self, name: str, given: Any, part: Part) -> Array:
        return rows(name, given, self._shapes[part.key], in_any_shape=part.is_number)


def rows(name: str, given: Any, shape: tuple[int, ...], *, in_any_shape: bool = False) -> Array:
    """`given`, the argument `name`, if it is of this shape; one environment needs no axis.

    With `in_any_shape` the number of elements decides.
    """
    array = given if isinstance(given, np.ndarray) else np.asarray(given)
    if array.shape == shape:
        return array
    if shape[0] == 1 and array.shape == shape[1:]:
        return array[np.newaxis]
    if in_any_shape and array.size == math.prod(shape):
        return array.reshape(shape)
    raise ValueError(f"{name} must have shape {shape}, got {array.shape}")


def _part(key: str | None, space: spaces.Space[Any]) -> Part:
    shape = get_obs_shape(space)
    assert isinstance(shape, tuple)  # SB3 refuses a Dict in a Dict
    return Part(key, shape, np.dtype(space.dtype), isinstance(space, spaces.Discrete))
