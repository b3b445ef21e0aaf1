"""Tianshou's buffers and ours, side by side, through random schedules of operations."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("tianshou")

import tianshou.data
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tianshou.data import Batch

from kary_replay.adapters import tianshou as ours

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Tianshou's weights of 0 / 0

SEEDS = st.integers(0, 2**32 - 1)
INFOS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], dict[str, Any]]] = {
    "nothing": lambda rng, shape: {},
    "number": lambda rng, shape: {"number": rng.integers(9, size=shape)},
    "nested": lambda rng, shape: {
        "number": rng.integers(9, size=shape),
        "nested": {
            "real": rng.normal(size=(*shape, 2)),
            "deeper": {"flag": rng.random(shape) < 0.5},
        },
    },
    "text": lambda rng, shape: {"text": "some" if shape == () else np.array(["some"] * shape[0])},
}


def assert_same(mine: Any, its: Any) -> None:
    """The same keys, values, shapes and dtypes, however deep."""
    if isinstance(its, Batch):
        assert isinstance(mine, Batch)
        assert set(mine.get_keys()) == set(its.get_keys())
        for key in its.get_keys():
            assert_same(mine[key], its[key])
        return
    np.testing.assert_array_equal(mine, its)
    assert np.asarray(mine).dtype == np.asarray(its).dtype


def through_a_file(buffer: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "buffer.hdf5"))
        buffer.save_hdf5(path)
        return type(buffer).load_hdf5(path)


COPIES = [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer)), through_a_file]


class Pair(RuleBasedStateMachine):
    """One of Tianshou's buffers and ours, which are told the same."""

    make: ClassVar[Callable[[Any, dict[str, Any]], Any]]
    lanes: ClassVar[int] = 0  # 0 is a buffer without sub-buffers

    @initialize(
        stack_num=st.integers(1, 3),
        ignore_obs_next=st.booleans(),
        save_only_last_obs=st.booleans(),
        sample_avail=st.booleans(),
        nested_obs=st.booleans(),
        reward_shape=st.sampled_from([(), (2,)]),
        reward_dtype=st.sampled_from([np.float64, np.float32, np.int64]),
    )
    def begin(self, **chosen: Any) -> None:
        self.nested_obs, self.reward_shape, self.reward_dtype = (
            chosen.pop(name) for name in ("nested_obs", "reward_shape", "reward_dtype")
        )
        self.options = chosen
        self.mine = type(self).make(ours, chosen)
        self.its = type(self).make(tianshou.data, chosen)

    def observation(self, rng: np.random.Generator, shape: tuple[int, ...], nan: bool) -> Any:
        shape = (*shape, 3) if self.options["save_only_last_obs"] else shape
        array = rng.integers(9, size=(*shape, 2)).astype(np.float32)
        if nan:
            array.reshape(-1)[0] = np.nan
        if not self.nested_obs:
            return array
        return {"array": array, "inner": {"number": rng.integers(9, size=shape)}}

    def batch(self, seed: int, shape: tuple[int, ...], info: str, nan: bool) -> Batch:
        rng = np.random.default_rng(seed)
        ends = rng.random((2, *shape)) < 0.15
        return Batch(
            obs=self.observation(rng, shape, nan),
            obs_next=self.observation(rng, shape, nan),
            act=rng.integers(4, size=shape),
            rew=rng.integers(-4, 5, size=(*shape, *self.reward_shape)).astype(self.reward_dtype),
            terminated=ends[0],
            truncated=ends[1],
            info=INFOS[info](rng, shape),
            policy=Batch(),
        )

    def add_to_both(self, batch: Batch, ids: Any) -> None:
        before = copy.deepcopy(batch)
        for mine, its in zip(
            self.mine.add(batch, ids), self.its.add(copy.deepcopy(batch), ids), strict=True
        ):
            assert_same(mine, its)
        assert_same(batch, before)

    @rule(
        seeds=st.lists(SEEDS, min_size=1, max_size=8),
        info=st.sampled_from(list(INFOS)),
        nan=st.sampled_from([False] * 9 + [True]),
        leading=st.booleans(),
    )
    def add(self, seeds: list[int], info: str, nan: bool, leading: bool) -> None:
        for seed in seeds:
            if self.lanes:
                rng = np.random.default_rng(seed)
                ids = rng.permutation(self.lanes)[: rng.integers(1, self.lanes + 1)]
                if leading:  # all of them, without a word
                    self.add_to_both(self.batch(seed, (self.lanes,), info, nan), None)
                else:
                    self.add_to_both(self.batch(seed, (len(ids),), info, nan), ids)
            else:
                shape = (1,) if leading else ()
                self.add_to_both(self.batch(seed, shape, info, nan), [0] if leading else None)

    @rule(keep=st.booleans())
    def reset(self, keep: bool) -> None:
        self.mine.reset(keep_statistics=keep)
        self.its.reset(keep_statistics=keep)

    @precondition(lambda self: len(self.mine))
    @rule(copied=st.sampled_from(COPIES))
    def copy_ours(self, copied: Callable[[Any], Any]) -> None:
        self.mine = copied(self.mine)

    # Of a vector buffer with a key of its own, Tianshou's class refuses later keys.
    @precondition(lambda self: len(self.mine) and not self.lanes)
    @rule(seed=SEEDS)
    def set_array(self, seed: int) -> None:
        rows = self.its.sample_indices(0)[:3]
        values = np.random.default_rng(seed).normal(size=len(rows))
        for buffer in (self.mine, self.its):
            buffer.set_array_at_key(values, "extra", index=rows, default_value=0.5)

    @invariant()
    def counts_are_the_same(self) -> None:
        assert len(self.mine) == len(self.its)
        assert self.mine.maxsize == self.its.maxsize
        assert_same(self.mine._meta, self.its._meta)
        assert_same(self.mine.last_index, self.its.last_index)
        np.testing.assert_array_equal(self.mine.subbuffer_edges, self.its.subbuffer_edges)

    @invariant()
    def rows_are_the_same(self) -> None:
        if not len(self.its):
            return
        every = self.its.sample_indices(0)
        assert_same(self.mine.sample_indices(0), every)
        assert_same(self.mine.unfinished_index(), self.its.unfinished_index())
        if not len(every):  # sample_avail: Tianshou's prioritized buffers cannot be asked for none
            return
        assert self.mine.hasnull() == self.its.hasnull()
        for index in (every, every[::-1], int(every[0])):
            assert_same(self.mine.prev(index), self.its.prev(index))
            assert_same(self.mine.next(index), self.its.next(index))
        for index in (every, int(every[-1]), slice(None), slice(0, 1)):
            self.assert_same_rows(self.mine[index], self.its[index])
        for key in ("obs", "act", "info"):
            assert_same(
                self.mine.get(every, key, stack_num=2), self.its.get(every, key, stack_num=2)
            )
        assert_same(self.mine.isnull().obs, self.its.isnull().obs)

    def assert_same_rows(self, mine: Batch, its: Batch) -> None:
        assert_same(mine, its)

    @precondition(lambda self: len(self.mine))
    @rule(start=st.integers(0, 11), stop=st.integers(0, 12))
    def get_buffer_indices(self, start: int, stop: int) -> None:
        try:
            its = self.its.get_buffer_indices(start, stop)
        except (ValueError, IndexError) as error:
            with pytest.raises(type(error)):
                self.mine.get_buffer_indices(start, stop)
        else:
            assert_same(self.mine.get_buffer_indices(start, stop), its)


class Single(Pair):
    make = staticmethod(lambda module, options: module.ReplayBuffer(7, random_seed=3, **options))

    @precondition(lambda self: len(self.mine) and len(self.its.sample_indices(0)))
    @rule(size=st.integers(0, 9))
    def sample(self, size: int) -> None:
        """One generator, one seed, the same draws."""
        (mine, rows), (its, its_rows) = self.mine.sample(size), self.its.sample(size)
        assert_same(rows, its_rows)
        assert_same(mine, its)

    @precondition(lambda self: len(self.mine))
    @rule()
    def rows_of_any_shape(self) -> None:
        every = self.its.sample_indices(0)
        for index in (every.reshape(1, -1), every[:0], every[:, None]):
            assert_same(self.mine.prev(index), self.its.prev(index))
            assert_same(self.mine.next(index), self.its.next(index))
            assert_same(self.mine[index], self.its[index])
        if len(every):
            assert_same(self.mine[every.tolist()], self.its[every.tolist()])

    @precondition(lambda self: len(self.mine))
    @rule()
    def update(self) -> None:
        targets = [type(self).make(module, self.options) for module in (ours, tianshou.data)]
        mine, its = targets
        assert_same(mine.update(self.mine), its.update(self.its))
        assert_same(mine._meta, its._meta)
        assert mine.hasnull() == its.hasnull()
        self.mine, self.its = targets


class Vector(Pair):
    lanes = 3
    make = staticmethod(lambda module, options: module.VectorReplayBuffer(11, 3, **options))

    @invariant()
    def sub_buffers_are_the_same(self) -> None:
        for mine, its in zip(self.mine.buffers, self.its.buffers, strict=True):
            assert len(mine) == len(its)
            assert_same(mine.last_index, its.last_index)
            if len(its):
                assert_same(mine.sample_indices(0), its.sample_indices(0))
                assert_same(mine.unfinished_index(), its.unfinished_index())
                assert_same(mine[:], its[:])


class Prioritized(Pair):
    make = staticmethod(
        lambda module, options: module.PrioritizedReplayBuffer(7, alpha=0.6, beta=0.4, **options)
    )

    def assert_same_rows(self, mine: Batch, its: Batch) -> None:
        assert np.shape(mine.pop("weight")) == np.shape(its.pop("weight"))
        assert_same(mine, its)

    @precondition(lambda self: len(self.mine) and self.mine.weight.reduce() > 0)
    @rule(seed=SEEDS)
    def learn(self, seed: int) -> None:
        _, rows = self.mine.sample(4)
        td_errors = np.random.default_rng(seed).normal(size=4)
        self.mine.update_weight(rows, td_errors)
        self.its.update_weight(rows, td_errors)
        assert np.isin(rows, self.its.sample_indices(0)).all()


class PrioritizedVector(Prioritized):
    lanes = 3
    make = staticmethod(
        lambda module, options: module.PrioritizedVectorReplayBuffer(
            11, 3, alpha=0.6, beta=0.4, **options
        )
    )


TestSingle, TestVector, TestPrioritized, TestPrioritizedVector = (
    machine.TestCase for machine in (Single, Vector, Prioritized, PrioritizedVector)
)
for _case in (TestSingle, TestVector, TestPrioritized, TestPrioritizedVector):
    _case.settings = settings(max_examples=20, stateful_step_count=20, report_multiple_bugs=False)
del _case
