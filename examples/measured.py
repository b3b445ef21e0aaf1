"""What the training examples measure: a learning curve, and the time spent in the buffer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

SOLVED = 475.0  # mean return over EPISODES at which CartPole-v1 counts as solved
EPISODES = 20


@dataclass
class Run:
    """One training run; `curve` holds (environment steps, mean return of an evaluation)."""

    framework: str
    steps: int = 0
    seconds: float = 0.0
    buffer_seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def mean_return(self) -> float:
        return self.curve[-1][1]

    @property
    def solved(self) -> bool:
        return bool(self.curve) and self.mean_return >= SOLVED

    def watch(self, buffer: Any, *methods: str) -> None:
        """Counts the seconds spent in these methods of a buffer."""
        for name in methods:
            setattr(buffer, name, self._timed(getattr(buffer, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.buffer_seconds += time.perf_counter() - start

        return timed
