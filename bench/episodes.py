"""A stream of steps in episodes, to be played into every buffer, and what is true of it.

Episodes take 100 to 499 steps; one half ends by termination, the other by truncation, and the
last is still going on.  An episode of T steps has T + 1 observations.  The first number of a
step's action is the step's own number, so every row that comes back can be compared with the
stream.  "q" stands in for a value network: it is one number of a next observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rivals import Call, Rows

N_STEPS, GAMMA = 3, 0.99
STACK = 4
CHECKED = 16  # samples

Truth = Callable[[NDArray[np.int64]], Rows]


class Replay(Protocol):
    """A buffer that computes something from neighbouring steps, by whatever way it has."""

    name: str
    prioritized: bool
    sample: Callable[[int], Any]

    def fill(self, episodes: Episodes) -> None: ...
    def adding(self, episodes: Episodes, step: int) -> Call:
        """A call that inserts one step."""

    def columns(self, sampled: Any) -> Rows:
        """What `sample` returned, in the names of `Episodes`."""


class Episodes:
    """Steps 0 .. count - 1; an observation is what `make(rng, how_many)` makes."""

    def __init__(
        self, count: int, action_size: int, make: Callable[[np.random.Generator, int], NDArray[Any]]
    ) -> None:
        rng = np.random.default_rng(2)
        ends = np.cumsum(rng.integers(100, 500, size=count // 100 + 1))
        ends = np.append(ends[ends < count], count)  # one behind the last step of each
        lengths = np.diff(ends, prepend=0)
        episode = np.repeat(np.arange(len(ends)), lengths)
        self.count, self.ends = count, ends
        self.first, self.last = (ends - lengths)[episode], ends[episode] - 1
        self.observations = make(rng, count + len(ends))
        self.place = np.arange(count) + episode  # of a step's observation; the next one follows
        self.action = rng.random((count, action_size), dtype=np.float32)
        self.action[:, 0] = np.arange(count)
        self.reward = rng.random(count, dtype=np.float32)
        by_termination = rng.random(len(ends)) < 0.5
        self.terminated, self.truncated = np.zeros((2, count), np.bool_)
        self.terminated[ends[:-1] - 1] = by_termination[:-1]
        self.truncated[ends[:-1] - 1] = ~by_termination[:-1]

    def rows(self, start: int, stop: int) -> Rows:
        """Steps of one episode, with one observation each and the next one."""
        steps, places = slice(start, stop), slice(self.place[start], self.place[stop - 1] + 1)
        return {
            "obs": self.observations[places],
            "action": self.action[steps],
            "reward": self.reward[steps],
            "next_obs": self.observations[places.start + 1 : places.stop + 1],
            "terminated": self.terminated[steps],
            "truncated": self.truncated[steps],
        }

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Of each episode, the first step and the one behind its last."""
        return zip([0, *self.ends[:-1].tolist()], self.ends.tolist(), strict=True)

    def n_step(self, steps: NDArray[np.int64]) -> Rows:
        """The observations, and the targets of a learner whose network is `q`."""
        taken = np.minimum(N_STEPS, self.last[steps] - steps + 1)
        target = np.zeros(len(steps))
        for ahead in range(N_STEPS):
            reached = np.minimum(steps + ahead, self.last[steps])
            target += np.where(ahead < taken, GAMMA**ahead * self.reward[reached], 0.0)
        end = steps + taken - 1
        discount = np.where(self.terminated[end], 0.0, GAMMA**taken)
        target += discount * q(self.observations[self.place[end] + 1])
        return {"obs": self.observations[self.place[steps]], "target": target}

    def stacks(self, steps: NDArray[np.int64]) -> Rows:
        """Stacks of the last frames, and of those one step later; the first is repeated."""
        places = self.place[steps][:, None] + np.arange(1 - STACK, 2)
        frames = np.maximum(places, self.place[self.first[steps]][:, None])
        return {
            "obs": self.observations[frames[:, :-1]],
            "next_obs": self.observations[frames[:, 1:]],
        }


def q(observations: NDArray[Any]) -> NDArray[Any]:
    return observations[:, 1]


def vectors(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    return rng.random((count, 17), dtype=np.float32)


def frames(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    return rng.integers(256, size=(count, 84, 84), dtype=np.uint8)


def agrees(replay: Replay, truth: Truth, batch: int) -> float:
    """The share of sampled rows that are what `truth` says of their steps."""
    return float(np.mean([_share(replay, truth, batch) for _ in range(CHECKED)]))


def _share(replay: Replay, truth: Truth, batch: int) -> float:
    sampled = replay.columns(replay.sample(batch))
    steps = sampled.pop("action")[:, 0].astype(np.int64)
    right = truth(steps)
    same = [
        np.isclose(column, right[name], rtol=1e-5).reshape(batch, -1).all(axis=1)
        for name, column in sampled.items()
    ]
    return float(np.mean(np.all(same, axis=0)))
