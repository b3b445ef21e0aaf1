"""What is wrong with Tianshou's buffers, and right with ours: each test fails on Tianshou's."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

import pandas as pd
import tianshou.data
from tianshou.data import Batch

from kary_replay.adapters import tianshou as ours


@pytest.fixture(
    params=[
        pytest.param(tianshou.data, marks=pytest.mark.xfail(strict=True), id="tianshou"),
        pytest.param(ours, id="ours"),
    ]
)
def module(request: pytest.FixtureRequest) -> Any:
    """Where the classes come from; Tianshou's must fail."""
    return request.param


def steps(rows: int, first: int = 0, terminated: bool = False) -> Batch:
    numbers = np.arange(first, first + rows)
    return Batch(
        obs=numbers[:, None].astype(np.float32),
        obs_next=numbers[:, None].astype(np.float32),
        act=numbers,
        rew=numbers.astype(float),
        terminated=np.full(rows, terminated),
        truncated=np.zeros(rows, bool),
        info=Batch(),
        policy=Batch(),
    )


def prioritized(module: Any, rows: int = 3, **keywords: Any) -> Any:
    """A vector buffer of 3 x 4 rows, with `rows` of them filled in each sub-buffer."""
    buffer = module.PrioritizedVectorReplayBuffer(12, 3, **{"alpha": 1.0, "beta": 0.5} | keywords)
    for row in range(rows):
        buffer.add(steps(3, 3 * row))
    return buffer


def single(module: Any, rows: int = 3, **keywords: Any) -> Any:
    buffer = module.PrioritizedReplayBuffer(4, **{"alpha": 1.0, "beta": 0.5} | keywords)
    for row in range(rows):
        buffer.add(steps(1, row), buffer_ids=[0])
    return buffer


def test_set_beta_of_the_vector_class_takes_effect(module: Any) -> None:
    buffer = prioritized(module, rows=1)
    buffer.update_weight(np.array([0, 4, 8]), np.array([1.0, 4.0, 4.0]))
    buffer.set_beta(1.0)
    assert buffer[np.array([0, 4, 8])].weight.tolist() == pytest.approx([1.0, 0.25, 0.25])


@pytest.mark.parametrize("make", [prioritized, single])
def test_reset_clears_priorities(module: Any, make: Callable[..., Any]) -> None:
    buffer = make(module, rows=4)
    buffer.reset()
    rows, *_ = buffer.add(steps(1), buffer_ids=[0])
    assert set(buffer.sample(64)[1].tolist()) == set(rows.tolist())


@pytest.mark.parametrize("make", [prioritized, single])
def test_weights_without_norm_are_those_of_the_paper(module: Any, make: Callable[..., Any]) -> None:
    buffer = make(module, weight_norm=False)
    rows = buffer.sample_indices(0)
    td_errors = np.linspace(3.0, 9.0, len(rows))
    buffer.update_weight(rows, td_errors)
    probabilities = td_errors / td_errors.sum()
    want = (len(rows) * probabilities) ** -0.5
    np.testing.assert_allclose(buffer[rows].weight, want, rtol=1e-5)


def test_draws_of_sub_buffers_are_independent(module: Any) -> None:
    buffer = module.VectorReplayBuffer(400, 4)
    for row in range(100):
        buffer.add(steps(4, row))
    offsets = buffer.sample_indices(64) % 100
    # 47 different ones are expected of 64 draws of 100.
    assert len(set(offsets.tolist())) > 35


def test_vector_draws_follow_the_seed(module: Any) -> None:
    """Also how many come from each sub-buffer."""
    lanes = []
    for seed in (7, 8, 9):
        buffer = module.VectorReplayBuffer(400, 4, random_seed=seed)
        for row in range(100):
            buffer.add(steps(4, row))
        lanes.append(tuple(np.bincount(buffer.sample_indices(64) // 100)))
    assert len(set(lanes)) > 1


@pytest.mark.parametrize("make", [prioritized, single])
def test_prioritized_draws_follow_the_seed(module: Any, make: Callable[..., Any]) -> None:
    draws = [make(module, random_seed=seed).sample(64)[1].tolist() for seed in (7, 7, 8)]
    assert draws[0] == draws[1] != draws[2]


def by_pickle(buffer: Any, _: Path) -> Any:
    return pickle.loads(pickle.dumps(buffer))


def by_hdf5(buffer: Any, folder: Path) -> Any:
    buffer.save_hdf5(str(folder / "buffer.hdf5"))
    return type(buffer).load_hdf5(str(folder / "buffer.hdf5"))


@pytest.mark.parametrize("copied", [by_pickle, by_hdf5])
@pytest.mark.parametrize(
    "make", [lambda module: module.VectorReplayBuffer(12, 3), lambda module: prioritized(module, 0)]
)
def test_a_copy_has_its_rows_once_and_knows_where_episodes_go_on(
    module: Any, make: Callable[[Any], Any], copied: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    buffer = make(module)
    for row in range(2):
        buffer.add(steps(3, 3 * row))
    twin = copied(buffer, tmp_path)
    assert all(np.shares_memory(child.obs, twin.obs) for child in twin.buffers)
    twin.add(steps(3, terminated=True))
    assert twin.unfinished_index().tolist() == []


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [prioritized, single])
def test_priorities_that_are_no_numbers_are_refused(
    module: Any, make: Callable[..., Any], wrong: float
) -> None:
    buffer = make(module)
    rows = buffer.sample_indices(0)[:2]
    with pytest.raises(ValueError, match="finite"):
        buffer.update_weight(rows, np.array([1.0, wrong]))
    assert len(buffer.sample(8)[1]) == 8


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    "module",
    # Not strict: it depends on the number that lies behind an empty array.
    [pytest.param(tianshou.data, marks=pytest.mark.xfail), ours],
    ids=["tianshou", "ours"],
)
def test_an_empty_update_returns(module: Any) -> None:
    """In a process of its own: Tianshou's runs for ever."""
    buffer = prioritized(module)
    update = multiprocessing.get_context("fork").Process(
        target=buffer.update_weight, args=(np.array([], int), np.array([]))
    )
    update.start()
    update.join(3.0)
    update.kill()
    update.join()
    assert update.exitcode == 0


@pytest.mark.parametrize("make", [prioritized, single])
def test_an_update_of_a_row_that_is_gone_is_dropped(module: Any, make: Callable[..., Any]) -> None:
    buffer = make(module, rows=4)
    _, drawn = buffer.sample(64)
    buffer.add(steps(1, 99), buffer_ids=[0])  # in place of row 0
    newcomer = buffer.weight[0]
    buffer.update_weight(drawn, np.full(64, 50.0))
    assert buffer.weight[0] == newcomer


def test_a_look_into_the_tree_changes_no_array_of_the_caller(module: Any) -> None:
    targets = np.array([0.5, 1.5, 5.5])
    prioritized(module).weight.get_prefix_sum_idx(targets)
    assert targets.tolist() == [0.5, 1.5, 5.5]


@pytest.mark.parametrize("make", [prioritized, single])
def test_alpha_may_be_0(module: Any, make: Callable[..., Any]) -> None:
    buffer = make(module, alpha=0.0)
    buffer.update_weight(buffer.sample_indices(0)[:2], np.array([5.0, 0.1]))
    batch, indices = buffer.sample(90)
    assert set(indices.tolist()) == set(buffer.sample_indices(0).tolist())
    assert (batch.weight == 1.0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda module: module.VectorReplayBuffer(3000, 3),
        lambda module: module.PrioritizedVectorReplayBuffer(3000, 3, alpha=0.6, beta=0.4),
    ],
)
def test_hasnull_does_not_look_at_every_row(
    module: Any, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make(module)
    for row in range(1000):
        buffer.add(steps(3, row))
    buffer.hasnull()
    looked_at = []
    isnull = pd.isnull
    monkeypatch.setattr(
        pd, "isnull", lambda values: looked_at.append(np.size(values)) or isnull(values)
    )
    buffer.add(steps(3))
    assert not buffer.hasnull()
    assert sum(looked_at) < 100


@pytest.mark.parametrize("make", [lambda module: module.VectorReplayBuffer(12, 3), prioritized])
def test_a_refused_add_changes_nothing(module: Any, make: Callable[[Any], Any]) -> None:
    buffer = make(module)
    for row in range(6):
        buffer.add(steps(3, 3 * row))
    before = buffer.sample_indices(0).tolist(), buffer[:].obs.tolist(), buffer[:].act.tolist()
    wrong = steps(3)
    wrong.obs_next = np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        buffer.add(wrong)
    after = buffer.sample_indices(0).tolist(), buffer[:].obs.tolist(), buffer[:].act.tolist()
    assert before == after


def test_the_weights_of_the_draw_are_no_td_errors(module: Any) -> None:
    """As the algorithms hand back that have no TD errors."""
    buffer = prioritized(module)
    batch, indices = buffer.sample(8)
    before = buffer.weight[indices].tolist()
    with pytest.raises(ValueError, match="got the weights of the last draw"):
        buffer.update_weight(indices, batch.weight)
    assert buffer.weight[indices].tolist() == before


def test_only_rows_with_a_whole_stack_are_drawn_by_priority(module: Any) -> None:
    buffer = single(module, rows=0, stack_num=3, sample_avail=True)
    for row in range(7):  # of which the last 4 are there
        buffer.add(steps(1, row), buffer_ids=[0])
    assert set(buffer.sample(64)[1].tolist()) == {1, 2}  # steps 5 and 6


def test_none_is_every_row_once_in_random_order(module: Any) -> None:
    buffer = module.VectorReplayBuffer(60, 3)
    for row in range(20):
        buffer.add(steps(3, row))
    indices = buffer.sample_indices(None)
    assert sorted(indices) == list(range(60))
    assert indices.tolist() != list(range(60))
