"""What writers, updaters and readers of one buffer do in the tests, and what must hold for them.

Every number of a row carries the row's token, so a row that is torn, or not the key's, shows.
Spawned children load this and no more.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kary_replay import Batch, Column, Horizon, PrioritizedReplayBuffer, ReplayBuffer, Stored, t

Array = npt.NDArray[Any]

DRAWABLE = 32  # of a tag, see _tags.pxd
WRITER = 800_000  # a token is writer * WRITER + number, from 1 on
COLUMNS = {
    "token": ((), np.int64),
    "image": ((200,), np.int64),
    "small": ((3,), np.float32),  # holds tokens exactly: they are below 2 ** 24
    "byte": ((), np.uint8),
}


def rows(tokens: Array) -> dict[str, Array]:
    return {
        "token": tokens,
        "image": np.repeat(tokens[:, None], 200, axis=1),
        "small": np.repeat(tokens[:, None], 3, axis=1).astype(np.float32),
        "byte": tokens.astype(np.uint8),
    }


def assert_whole(batch: Batch) -> None:
    for name, column in rows(batch["token"]).items():
        assert np.array_equal(batch[name], column), f"a torn row: {name}"
    assert (batch["token"] % WRITER > 0).all(), "a row that nobody wrote"


def write(buffer: ReplayBuffer, writer: int, count: int, size: int, token_of: Any) -> None:
    """Adds `count` rows, `size` at a time, and notes which key has which token."""
    tokens = writer * WRITER + np.arange(1, count + 1)
    noted = np.frombuffer(token_of, np.int64)
    for first in range(0, count, size):
        some = tokens[first : first + size]
        if size == 1:
            noted[buffer.add(**{name: column[0] for name, column in rows(some).items()})] = some
        else:
            noted[buffer.add(**rows(some))] = some


def read(buffer: ReplayBuffer, times: int, seed: int, token_of: Any) -> None:
    """Draws 32 rows at a time, and notes what it saw of which key; gives them new priorities."""
    seen = np.frombuffer(token_of, np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(times):
        batch = buffer.sample(32)
        assert_whole(batch)
        before = seen[batch.keys]
        assert ((before == 0) | (before == batch["token"])).all(), "one key, two rows"
        seen[batch.keys] = batch["token"]
        update(buffer, batch.keys, rng)


def update(buffer: ReplayBuffer, keys: Array, rng: np.random.Generator) -> None:
    if isinstance(buffer, PrioritizedReplayBuffer):
        assert 0 <= buffer.update_priorities(keys, rng.random(len(keys)) * 3) <= len(keys)


# -- What holds when nobody is at work ----------------------------------------------------------


def drawable_keys(buffer: ReplayBuffer) -> Array:
    tags = buffer._arena["tags"]
    return tags[tags & DRAWABLE != 0] >> 16


def assert_consistent(buffer: ReplayBuffer) -> None:
    """Counts, tags, masses and sums say the same."""
    keys = drawable_keys(buffer)
    assert len(buffer) == len(keys)
    assert np.array_equal(np.sort(keys % buffer.capacity), np.unique(keys % buffer.capacity))
    assert buffer._ring.live(keys).all()
    if isinstance(buffer, PrioritizedReplayBuffer):
        tree = buffer._sampler.tree
        tree.check()
        assert set(np.flatnonzero(tree.masses())) == set((keys % buffer.capacity).tolist())


def assert_newest_are_there(buffer: ReplayBuffer, token_of: Array) -> None:
    """Of all the rows that were ever in a slot, the newest; of each writer, its last."""
    keys = np.flatnonzero(token_of)
    newest = np.zeros(buffer.capacity, np.int64)
    np.maximum.at(newest, keys % buffer.capacity, keys + 1)
    newest = newest[newest > 0] - 1
    assert np.array_equal(np.sort(newest), np.sort(drawable_keys(buffer)))
    assert np.array_equal(buffer.view("token")[newest % buffer.capacity], token_of[newest])


# -- Columns of time ----------------------------------------------------------------------------

STEPS, STACK, GAMMA = 3, 4, 0.5
HORIZON = Horizon(STEPS)
IN_TIME = {
    "obs": Stored((40,), np.int64, with_next=True),
    "reward": ((), np.float64),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
    "after": Column("obs")[t + 1],
    "stack": Column("obs")[t - (STACK - 1) : t + 1],
    "ahead": Column("obs")[t + HORIZON],
    "returns": Column("reward")[t : t + HORIZON].sum(GAMMA),
    "discount": GAMMA**HORIZON,
}
EPISODE = 7  # steps; observations are numbered lane * WRITER + 8 * episode + 0 .. 7, plus 8


def step(lanes: Array, number: int) -> dict[str, Array]:
    """Step `number` of each lane."""
    episode, place = divmod(number, EPISODE)
    token = lanes * WRITER + (EPISODE + 1) * (episode + 1) + place
    return {
        "obs": np.repeat(token[:, None], 40, axis=1),
        "next_obs": np.repeat(token[:, None] + 1, 40, axis=1),
        "reward": token.astype(np.float64),
        "terminated": np.full(len(lanes), place == EPISODE - 1 and episode % 2 == 0),
        "truncated": np.full(len(lanes), place == EPISODE - 1 and episode % 2 == 1),
    }


def write_in_time(buffer: ReplayBuffer, lanes: list[int], steps: int) -> None:
    for number in range(steps):
        buffer.add(lanes=lanes, **step(np.array(lanes), number))


def write_into_one_lane(buffer: ReplayBuffer, writer: int, steps: int) -> None:
    for number in range(steps):
        buffer.add(lanes=[0], **step(np.array([writer]), number))


def read_in_time(buffer: ReplayBuffer, times: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(times):
        batch = buffer.sample(32)
        assert_whole_in_time(batch)
        update(buffer, batch.keys, rng)


def read_cut_episodes(buffer: ReplayBuffer, times: int) -> None:
    for _ in range(times):
        batch = buffer.sample(32)
        begins_late = (batch["stack"] == 0).argmin(axis=1)[:, 0]
        assert_whole_in_time(batch, begins_late)


def assert_whole_in_time(batch: Batch, lost: Array | int = 0) -> None:
    """Windows hold numbers that follow one another, as far as the episode and the head allow.

    Of each stack that many rows are lost: another writer of the lane has cut them off.
    """
    token = batch["obs"][:, 0]
    place = token % (EPISODE + 1)
    assert (batch["obs"] == token[:, None]).all(), "a torn row"
    assert np.array_equal(batch["after"], batch["obs"] + 1)
    back = np.arange(-(STACK - 1), 1)
    first = np.maximum(-place, np.asarray(lost) - (STACK - 1))
    stack = np.where(back >= first[:, None], token[:, None] + back, 0)
    assert (batch["stack"] == stack[:, :, None]).all(), "a stack of other rows"
    steps = batch["ahead"][:, 0] - token
    assert (batch["ahead"] == batch["ahead"][:, :1]).all(), "a torn row ahead"
    assert ((steps >= 1) & (steps <= np.minimum(STEPS, EPISODE - place))).all()
    for count in range(1, STEPS + 1):
        of = steps == count
        expected = sum(GAMMA**j * (token[of] + j) for j in range(count))
        assert np.array_equal(batch["returns"][of], expected)
        episode = token[of] % WRITER // (EPISODE + 1) - 1
        terminated = (place[of] + count == EPISODE) & (episode % 2 == 0)
        assert np.array_equal(batch["discount"][of], np.where(terminated, 0.0, GAMMA**count))


# -- Copies -------------------------------------------------------------------------------------


def copy_again_and_again(buffer: ReplayBuffer, path: Path, times: int) -> None:
    """By pickle and by file, while others write to it."""
    for _ in range(times):
        looked_at(pickle.loads(pickle.dumps(buffer)))
        buffer.save(path)
        loaded = type(buffer)(**buffer._arguments())
        loaded.load(path)
        looked_at(loaded)


def looked_at(copy: ReplayBuffer) -> None:
    assert_consistent(copy)
    if len(copy):
        in_time = "after" in copy.columns
        (assert_whole_in_time if in_time else assert_whole)(copy.sample(300))


# -- Children -----------------------------------------------------------------------------------


def run(context: Any, *calls: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    """Makes the calls in as many children at the same time."""
    children = [context.Process(target=function, args=arguments) for function, arguments in calls]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * len(children)
    for child in children:
        child.close()
