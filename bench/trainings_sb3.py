"""Trainings in SB3 that take turns, so that whatever the machine does, it does to all of them.

Each learns in a thread of its own, of which one runs at a time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch


class EndOfRace(Exception):
    """Ends a training that has had its turns."""


class Run:
    """A training that stands still but in its turns, and what it takes.

    Parameters
    ----------
    model : learns for `steps` steps
    trains : calls of `train` in a turn

    Attributes
    ----------
    steps_per_second : of processor time, in each turn
    shares : of it that was spent in the buffer
    """

    def __init__(self, model: Any, steps: int, trains: int) -> None:
        self.model, self._total, self._trains = model, steps, trains
        self.steps_per_second: list[float] = []
        self.shares: list[float] = []
        self._error: BaseException | None = None
        self._in_buffer, self._trained, self._is_over = 0.0, 0, False
        self._go, self._stop = threading.Semaphore(0), threading.Semaphore(0)
        self._numbers = _numbers()
        for name in ("add", "sample", "update_priorities"):
            if hasattr(model.replay_buffer, name):
                method = partial(self._timed, getattr(model.replay_buffer, name))
                setattr(model.replay_buffer, name, method)
        model.train = partial(self._count, model.train)
        self._thread = threading.Thread(target=self._learn, daemon=True)
        self._thread.start()

    def turn(self) -> None:
        """The next one."""
        if self._error is None:
            self._go.release()
            self._stop.acquire()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """It has no more turns."""
        self._is_over = True
        self._go.release()
        self._thread.join()

    # In its thread.

    def _learn(self) -> None:
        torch.set_num_threads(1)  # each thread has a number of its own
        try:
            self._begin_turn()
            self.model.learn(self._total)
            raise RuntimeError(f"a training of {self._total} steps is too short for its turns")
        except EndOfRace:
            return
        except BaseException as error:
            self._error = error
        self._stop.release()

    def _begin_turn(self) -> None:
        self._go.acquire()
        if self._is_over:
            raise EndOfRace
        _set_numbers(self._numbers)
        self._in_buffer, self._began = 0.0, self.model.num_timesteps
        self._start = time.process_time()

    def _count(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        train(*args, **kwargs)
        self._trained += 1
        if self._trained % self._trains == 0:
            self._end_turn()

    def _end_turn(self) -> None:
        seconds = time.process_time() - self._start
        self.steps_per_second.append((self.model.num_timesteps - self._began) / seconds)
        self.shares.append(self._in_buffer / seconds)
        self._numbers = _numbers()
        self._stop.release()
        self._begin_turn()

    def _timed(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = method(*args, **kwargs)
        self._in_buffer += time.process_time() - start
        return result


# The global generators, of which all draw


def _numbers() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _set_numbers(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    torch.set_rng_state(state[2])
