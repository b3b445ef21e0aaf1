"""The checks of arguments that are numbers."""

from __future__ import annotations

import math
import numbers

import numpy as np


def check_number(name: str, value: float) -> float:
    """`value` as a float; TypeError or ValueError unless it is a finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and >= 0, got {value!r}")
    return float(value)


def check_count(name: str, value: int) -> int:
    """`value` as Python's int; TypeError or ValueError unless it is an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    return int(value)
