"""kary_replay.adapters.tianshou beside what it replaces, the prioritized vector class above all."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

import h5py
import tianshou.data
import torch
from tianshou.data import Batch

from kary_replay import LinearSchedule
from kary_replay.adapters import tianshou as adapter
from kary_replay.adapters.tianshou import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    VectorReplayBuffer,
)

Buffer = PrioritizedVectorReplayBuffer


def make(total_size: int = 12, buffer_num: int = 3, **kwargs: Any) -> Buffer:
    return Buffer(total_size, buffer_num, **{"alpha": 1.0, "beta": 0.5, "eps": 0.0} | kwargs)


def steps(rows: int, rng: np.random.Generator | None = None) -> Batch:
    """One transition for each of `rows` environments; no episode ends without an `rng`."""
    rng = rng or np.random.default_rng(0)
    obs = rng.normal(size=(rows, 2)).astype(np.float32)
    ends = rng.random((2, rows)) < 0.1
    return Batch(
        obs=obs,
        obs_next=obs + 1,
        act=rng.integers(4, size=rows),
        rew=rng.normal(size=rows),
        terminated=ends[0],
        truncated=ends[1],
        info=Batch(),
        policy=Batch(),
    )


def filled(steps_each: int = 4, **kwargs: Any) -> Buffer:
    buffer = make(**kwargs)
    for _ in range(steps_each):
        buffer.add(steps(buffer.buffer_num))
    return buffer


def masses(buffer: Buffer) -> np.ndarray:
    return buffer._sampler.tree.masses()


# What it replaces


def test_is_what_it_replaces() -> None:
    assert isinstance(make(), tianshou.data.PrioritizedVectorReplayBuffer)
    assert isinstance(make(), tianshou.data.ReplayBufferManager)


def test_no_segment_tree_is_kept() -> None:
    buffer = make()
    kept = [*vars(buffer).values(), *(v for child in buffer.buffers for v in vars(child).values())]
    assert not any(isinstance(value, tianshou.data.SegmentTree) for value in kept)


def test_total_size_is_rounded_up_to_whole_sub_buffers() -> None:
    assert make(10, 3).maxsize == 12
    assert make(10, 3).subbuffer_edges.tolist() == [0, 4, 8, 12]


def assert_same_batch(ours: Batch, theirs: Batch) -> None:
    assert set(ours.get_keys()) == set(theirs.get_keys())
    for key in set(ours.get_keys()) - {"weight", "info", "policy"}:
        np.testing.assert_array_equal(ours[key], theirs[key])
        assert ours[key].dtype == theirs[key].dtype


def assert_same_content(ours: Buffer, theirs: tianshou.data.ReplayBuffer) -> None:
    rows = theirs.sample_indices(0)
    assert len(ours) == len(theirs)
    for mine, its in (
        (ours.sample_indices(0), rows),
        (ours.unfinished_index(), theirs.unfinished_index()),
        (ours.last_index, theirs.last_index),
        (ours.prev(rows), theirs.prev(rows)),
        (ours.next(rows), theirs.next(rows)),
    ):
        np.testing.assert_array_equal(mine, its)
    for index in (rows, slice(None), slice(0, 2), int(rows[0]), rows[::-1]):
        assert_same_batch(ours[index], theirs[index])


@pytest.mark.filterwarnings("ignore::RuntimeWarning:tianshou")  # its weights of blank rows
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"ignore_obs_next": True},
        {"stack_num": 3},
        {"ignore_obs_next": True, "stack_num": 2, "sample_avail": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_tianshous_class(keywords: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, children = int(rng.integers(4, 40)), int(rng.integers(1, 5))
    ours = Buffer(size, children, alpha=0.6, beta=0.4, **keywords)
    theirs = tianshou.data.PrioritizedVectorReplayBuffer(
        size, children, alpha=0.6, beta=0.4, **keywords
    )
    for call in range(60):
        ids = rng.permutation(children)[: rng.integers(1, children + 1)]
        if call == 0 or rng.random() < 0.2:
            ids = np.arange(children)
        if call % 25 == 24:
            keep = bool(rng.random() < 0.5)
            ours.reset(keep_statistics=keep)
            theirs.reset(keep_statistics=keep)
        batch = steps(len(ids), rng)
        for mine, its in zip(
            ours.add(copy.deepcopy(batch), ids), theirs.add(batch, ids), strict=True
        ):
            np.testing.assert_array_equal(mine, its)
            assert mine.dtype == its.dtype
        if call % 3 == 0:
            assert_same_content(ours, theirs)


def test_a_batch_is_the_rows_of_its_indices() -> None:
    buffer = filled(ignore_obs_next=True, stack_num=2)
    batch, indices = buffer.sample(6)
    assert_same_batch(batch, buffer[indices])
    assert batch.obs.shape == (6, 2, 2)


# Draws


def test_draws_follow_priorities_over_all_sub_buffers() -> None:
    buffer = make(20, 4, stratified=False, alpha=0.7, random_seed=5)
    for ids in (range(4), range(4), [0, 3], [3]):
        buffer.add(steps(len(ids)), ids)
    live = buffer.sample_indices(0)
    assert len(live) == 11
    priorities = np.linspace(0.1, 3.0, 11)
    buffer.update_weight(live, -priorities)
    seen = np.bincount(buffer.sample_indices(50_000), minlength=20)
    want = np.zeros(20)
    want[live] = 50_000 * priorities**0.7 / (priorities**0.7).sum()
    assert not seen[want == 0].any()
    chi_square = ((seen - want)[live] ** 2 / want[live]).sum()
    assert abs(chi_square - 10) < 5 * 20**0.5


def test_strata_leave_little_to_chance() -> None:
    buffer = filled()
    buffer.update_weight(np.arange(12), np.arange(1, 13))
    seen = np.bincount(buffer.sample_indices(500), minlength=12)
    assert (np.abs(seen - 500 * np.arange(1, 13) / 78) < 2).all()


def test_alpha_0_draws_every_live_row_alike() -> None:
    buffer = make(alpha=0.0)
    buffer.add(steps(3))
    buffer.add(steps(1), [1])
    batch, indices = buffer.sample(400)
    assert np.bincount(indices, minlength=12)[[0, 4, 5, 8]].tolist() == [100] * 4
    assert (batch.weight == 1.0).all()
    buffer.update_weight(indices, np.zeros(400))
    assert buffer.sample(400)[1].tolist() == indices.tolist()


def test_a_batch_may_be_larger_than_the_buffer() -> None:
    buffer = filled(1)
    assert sorted(set(buffer.sample(30)[1].tolist())) == [0, 4, 8]


def test_0_gives_all_rows_in_order() -> None:
    buffer = filled(2)
    batch, indices = buffer.sample(0)
    assert indices.tolist() == [0, 1, 4, 5, 8, 9]
    assert batch.weight.tolist() == [1.0] * 6


def test_none_gives_all_rows_once_in_random_order() -> None:
    buffer = filled(4)
    first, second = buffer.sample(None)[1], buffer.sample(None)[1]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first.tolist() != second.tolist()


def test_a_negative_size_gives_no_rows() -> None:
    batch, indices = filled().sample(-1)
    assert indices.tolist() == []
    assert batch.obs.shape == (0, 2)
    assert batch.weight.shape == (0,)


@pytest.mark.parametrize("size", [4, 0, None])
def test_an_empty_buffer_cannot_be_sampled(size: int | None) -> None:
    with pytest.raises(ValueError, match="empty buffer"):
        make().sample(size)


def test_indices_of_an_empty_buffer_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="empty buffer"):
        make().sample_indices(4)


def test_same_seed_same_draws() -> None:
    first, second = filled(random_seed=3), filled(random_seed=3)
    assert first.sample(9)[1].tolist() == second.sample(9)[1].tolist()
    assert first.sample(None)[1].tolist() == second.sample(None)[1].tolist()
    assert (
        filled(random_seed=4).sample(9)[1].tolist() != filled(random_seed=3).sample(9)[1].tolist()
    )
    assert filled().sample(9)[1].tolist() == filled(random_seed=42).sample(9)[1].tolist()


def test_numpys_global_generator_is_not_used() -> None:
    buffer = filled()
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    buffer.sample(8)
    buffer.sample(None)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


# Weights


def test_weights_by_hand() -> None:
    buffer = make(alpha=2.0, beta=0.5)
    buffer.add(steps(3))
    buffer.update_weight([0, 4, 8], [1.0, 2.0, 4.0])
    batch, indices = buffer.sample(300)
    weight = dict(zip(indices.tolist(), batch.weight.tolist(), strict=True))
    assert weight == {0: 1.0, 4: 0.5, 8: 0.25}  # (1 / 4) ** 0.5, (1 / 16) ** 0.5
    assert batch.weight.dtype == np.float32
    assert batch.weight.shape == (300,)


def test_weight_norm_false_leaves_the_formula() -> None:
    buffer = make(weight_norm=False, beta=1.0)
    buffer.add(steps(3))
    buffer.update_weight([0, 4, 8], [1.0, 1.0, 2.0])
    batch, indices = buffer.sample(100)
    weight = dict(zip(indices.tolist(), batch.weight.tolist(), strict=True))
    # N = 3, P = 1/4, 1/4, 1/2
    assert weight == pytest.approx({0: 4 / 3, 4: 4 / 3, 8: 2 / 3})


def test_rows_without_a_whole_stack_are_no_part_of_the_formula() -> None:
    """Where all that can be drawn have equal priorities, each weighs 1."""
    buffer = filled(stack_num=3, sample_avail=True, weight_norm=False, beta=1.0)
    assert np.count_nonzero(masses(buffer)) < len(buffer)
    assert buffer.sample(50)[0].weight.tolist() == [1.0] * 50


def test_set_beta_takes_effect() -> None:
    buffer = make()
    buffer.add(steps(3))
    buffer.update_weight([0, 4, 8], [1.0, 4.0, 4.0])
    for beta, smallest in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.25)):
        buffer.set_beta(beta)
        assert buffer.beta == beta
        assert buffer.sample(100)[0].weight.min() == smallest


def test_beta_can_be_a_schedule() -> None:
    buffer = filled(beta=LinearSchedule(0.4, 1.0, 2))
    betas = [buffer.beta]
    for _ in range(3):
        buffer.sample(4)
        betas.append(buffer.beta)
    assert betas == pytest.approx([0.4, 0.7, 1.0, 1.0])


def test_weights_of_a_draw_are_those_of_beta_at_the_draw() -> None:
    buffer = make(beta=LinearSchedule(0.0, 1.0, 1))
    buffer.add(steps(3))
    buffer.update_weight([0, 4, 8], [1.0, 4.0, 4.0])
    assert buffer.sample(100)[0].weight.min() == 1.0
    assert buffer.sample(100)[0].weight.min() == 0.25


def test_rows_looked_at_carry_weights_too() -> None:
    buffer = make(beta=1.0)
    buffer.add(steps(3))
    buffer.update_weight([0, 4, 8], [1.0, 2.0, 4.0])
    assert buffer[np.array([4, 8])].weight.tolist() == [1.0, 0.5]
    assert buffer[[8, 0]].weight.tolist() == [0.25, 1.0]
    assert buffer[:].weight.tolist() == [1.0, 0.5, 0.25]
    assert buffer[8].weight == 1.0
    assert buffer[np.array([[0], [8]])].weight.tolist() == [[1.0], [0.25]]
    assert buffer[np.array([0, 1])].weight.tolist() == [1.0, 0.0]  # 1 is not written


# Priorities


def test_new_rows_get_the_largest_priority_now_in_the_buffer() -> None:
    buffer = make()
    buffer.add(steps(3))
    assert masses(buffer)[[0, 4, 8]].tolist() == [1.0] * 3
    buffer.update_weight([0, 4, 8], [0.25, 3.0, 0.5])
    buffer.add(steps(2), [0, 2])
    assert masses(buffer)[[1, 9]].tolist() == [3.0, 3.0]
    buffer.update_weight([1, 4, 9], [0.1, 0.2, 0.3])
    buffer.add(steps(1), [1])
    assert masses(buffer)[5] == 0.5  # 3.0 is gone


@pytest.mark.parametrize(
    "td_errors",
    [
        [-2.0, 3.0],
        np.float32([2.0, -3.0]),
        np.array([[2], [-3]]),
        torch.tensor([-2.0, 3.0], requires_grad=True),
        torch.tensor([[2.0], [3.0]], dtype=torch.bfloat16),
    ],
    ids=["list", "float32", "column of int", "with grad", "bfloat16 column"],
)
def test_priority_is_the_absolute_td_error_and_eps(td_errors: Any) -> None:
    buffer = make(alpha=0.5, eps=0.25)
    buffer.add(steps(3))
    before = copy.deepcopy(td_errors) if isinstance(td_errors, list) else td_errors.tolist()
    index = np.array([8, 0])
    buffer.update_weight(index, td_errors)
    assert masses(buffer)[[8, 0]].tolist() == [2.25**0.5, 3.25**0.5]
    assert masses(buffer)[4] == 1.0
    assert index.tolist() == [8, 0]
    assert (td_errors if isinstance(td_errors, list) else td_errors.tolist()) == before


def test_td_errors_may_lie_where_the_weights_were() -> None:
    buffer = filled()
    batch, index = buffer.sample(8)
    batch.weight[:] = np.arange(1, 9)
    buffer.update_weight(index, batch.weight)
    expected = dict(zip(index.tolist(), range(1, 9), strict=True))
    assert {row: masses(buffer)[row] for row in expected} == expected


def test_the_last_of_duplicates_wins() -> None:
    buffer = filled(1)
    buffer.update_weight([4, 0, 4], [1.0, 2.0, 7.0])
    assert masses(buffer)[[0, 4]].tolist() == [2.0, 7.0]


@pytest.mark.parametrize("empty", [[], np.array([], int), np.array([])])
def test_an_empty_update_does_nothing(empty: Any) -> None:
    buffer = filled()
    before = masses(buffer)
    buffer.update_weight(empty, [])
    assert masses(buffer).tolist() == before.tolist()


@pytest.mark.parametrize(
    ("index", "td_errors", "error", "message"),
    [
        ([0, 4], [1.0, np.nan], ValueError, "finite, got nan at position 1"),
        ([0, 4], torch.tensor([np.inf, 1.0]), ValueError, "finite, got inf at position 0"),
        ([0, 4], [1.0], ValueError, "shape"),
        ([0, 4], [[1.0, 2.0]], ValueError, "shape"),
        ([[0, 4]], [1.0, 2.0], ValueError, "index must have one axis"),
        ([0.0], [1.0], TypeError, "index must be integers"),
        ([True], [1.0], TypeError, "index must be integers"),
        ([0, 12], [1.0, 1.0], IndexError, r"index must be in 0 \.\. 11, got 12"),
        ([0, -1], [1.0, 1.0], IndexError, r"index must be in 0 \.\. 11, got -1"),
        ([0, 6], [1.0, 1.0], IndexError, "got 6, not written yet"),
    ],
)
def test_a_refused_update_changes_nothing(
    index: Any, td_errors: Any, error: type[Exception], message: str
) -> None:
    buffer = filled(2)
    buffer.sample(0)
    before = masses(buffer)
    with pytest.raises(error, match=message):
        buffer.update_weight(index, td_errors)
    assert masses(buffer).tolist() == before.tolist()
    assert buffer.stale_updates == 0
    buffer.update_weight(buffer.sample(5)[1], np.ones(5))


def test_reset_forgets_rows_and_priorities() -> None:
    buffer = filled()
    buffer.update_weight(np.arange(12), np.full(12, 9.0))
    buffer.reset()
    assert len(buffer) == 0
    buffer.add(steps(1), [1])
    assert set(buffer.sample(64)[1].tolist()) == {4}
    assert masses(buffer).sum() == 1.0


# Late updates


def test_an_update_for_an_overwritten_row_is_dropped_and_counted() -> None:
    buffer = filled()  # full: the next rows overwrite 0, 4, 8
    buffer.sample(0)
    buffer.add(steps(2), [0, 2])
    buffer.update_weight([0, 4, 5, 8, 0], [5.0, 6.0, 7.0, 5.0, 5.0])
    assert masses(buffer)[[0, 4, 5, 8]].tolist() == [1.0, 6.0, 7.0, 1.0]
    assert buffer.stale_updates == 3


def test_a_drawn_newcomer_takes_updates_again() -> None:
    buffer = filled()
    buffer.sample(0)
    buffer.add(steps(3))
    buffer.sample(0)
    buffer.update_weight([0, 4, 8], [5.0, 6.0, 7.0])
    assert masses(buffer)[[0, 4, 8]].tolist() == [5.0, 6.0, 7.0]
    assert buffer.stale_updates == 0


def test_rows_never_drawn_take_updates() -> None:
    buffer = filled()
    _, indices = buffer.sample(0)
    buffer.update_weight(indices, np.ones(12))  # answers that draw
    rows, *_ = buffer.add(steps(3))
    buffer.update_weight(rows, [5.0, 6.0, 7.0])
    assert masses(buffer)[[0, 4, 8]].tolist() == [5.0, 6.0, 7.0]
    assert buffer.stale_updates == 0


def test_reset_makes_updates_late() -> None:
    buffer = filled()
    _, indices = buffer.sample(10)
    buffer.reset()
    buffer.update_weight(indices, np.ones(10))
    assert buffer.stale_updates == 10
    assert masses(buffer).sum() == 0.0


def test_looking_at_rows_is_no_draw() -> None:
    buffer = filled()
    buffer[:]
    buffer.hasnull()
    rows, *_ = buffer.add(steps(3))
    buffer.update_weight(rows, [5.0, 6.0, 7.0])
    assert buffer.stale_updates == 0


# Copies


def by_hdf5(buffer: Buffer, folder: Path) -> Buffer:
    buffer.save_hdf5(str(folder / "buffer.hdf5"))
    return Buffer.load_hdf5(str(folder / "buffer.hdf5"))


@pytest.mark.parametrize(
    "copied",
    [
        lambda buffer, _: pickle.loads(pickle.dumps(buffer)),
        lambda buffer, _: copy.deepcopy(buffer),
        by_hdf5,
    ],
    ids=["pickle", "deepcopy", "hdf5"],
)
def test_a_copy_goes_on_like_the_original(copied: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    buffer = make(20, 4, alpha=0.6, beta=LinearSchedule(0.1, 0.9, 7))
    for _ in range(8):
        buffer.add(steps(4, rng))
    _, indices = buffer.sample(6)
    buffer.update_weight(indices, rng.normal(size=6))
    _, indices = buffer.sample(6)
    twin = copied(buffer, tmp_path)
    assert_same_content(twin, buffer)
    for _ in range(3):
        for each in (buffer, twin):
            each.add(steps(4, np.random.default_rng(3)))
            each.update_weight(indices, np.linspace(-1, 2, 6))
        assert twin.stale_updates == buffer.stale_updates
        assert twin.beta == buffer.beta
        assert_same_content(twin, buffer)
        (ours, indices), (theirs, their_indices) = buffer.sample(6), twin.sample(6)
        assert indices.tolist() == their_indices.tolist()
        assert ours.weight.tolist() == theirs.weight.tolist()


@pytest.mark.parametrize("copied", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy])
def test_a_copy_stores_its_rows_once(copied: Any) -> None:
    buffer = filled()
    twin = copied(buffer)
    for each in (buffer, twin):
        assert all(np.shares_memory(child.obs, each.obs) for child in each.buffers)
    assert not np.shares_memory(twin.obs, buffer.obs)


def test_a_file_holds_its_rows_once(tmp_path: Path) -> None:
    buffer = adapter.VectorReplayBuffer(12, 3)
    buffer.add(steps(3))
    assert not buffer.hasnull()  # which it remembers
    buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
    with h5py.File(tmp_path / "buffer.hdf5") as file:
        names: list[str] = []
        file.visit(names.append)
    assert [name for name in names if name.endswith("rew")] == ["_meta/rew"]


def test_a_pickle_holds_its_rows_once() -> None:
    buffer = make(300)
    batch = steps(3)
    batch.obs = batch.obs_next = np.zeros((3, 1000), np.float32)
    buffer.add(batch)
    assert len(pickle.dumps(buffer)) < 1.1 * (buffer.obs.nbytes + buffer.obs_next.nbytes)


def test_an_empty_buffer_can_be_copied() -> None:
    twin = pickle.loads(pickle.dumps(make()))
    twin.add(steps(3))
    assert set(twin.sample(9)[1].tolist()) == {0, 4, 8}


# Arguments


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"total_size": 0}, ValueError, "total_size must be >= 1, got 0"),
        ({"buffer_num": 0}, ValueError, "buffer_num must be >= 1, got 0"),
        ({"total_size": 10.0}, TypeError, "total_size must be an integer, got 10.0"),
        ({"alpha": -1.0}, ValueError, "alpha"),
        ({"beta": np.nan}, ValueError, "beta"),
        ({"eps": -1e-3}, ValueError, "eps"),
        ({"fanout": 3}, ValueError, "fanout"),
        ({"ignore_obs": True}, TypeError, "ignore_obs"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**keywords)
    with pytest.raises(ValueError, match="beta"):
        make().set_beta(-0.1)


def test_tianshous_own_order_of_arguments() -> None:
    buffer = Buffer(100, 10, alpha=0.6, beta=0.4)
    assert (buffer.maxsize, buffer.buffer_num, buffer.beta) == (100, 10, 0.4)


# All four


CLASSES = {
    "ReplayBuffer": (12,),
    "VectorReplayBuffer": (12, 3),
    "PrioritizedReplayBuffer": (12, 0.6, 0.4),
    "PrioritizedVectorReplayBuffer": (12, 3, 0.6, 0.4),
}


def make_both(name: str) -> tuple[Any, Any]:
    """One of ours, and one of Tianshou's."""
    arguments = CLASSES[name]
    if "Prioritized" in name:
        keywords = dict(zip(("alpha", "beta"), arguments[-2:], strict=True))
        arguments = arguments[:-2]
    else:
        keywords = {}
    return tuple(  # type: ignore[return-value]
        getattr(module, name)(*arguments, **keywords) for module in (adapter, tianshou.data)
    )


def fill_both(buffers: tuple[Any, Any], calls: int = 6) -> None:
    rng = np.random.default_rng(0)
    for _ in range(calls):
        batch = steps(getattr(buffers[0], "buffer_num", 1), rng)
        for buffer in buffers:
            buffer.add(batch, None if hasattr(buffer, "buffer_num") else [0])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("other", CLASSES)
def test_what_was_an_instance_is_one_after_the_swap(name: str, other: str) -> None:
    ours, theirs = make_both(name)
    their_class, our_class = getattr(tianshou.data, other), getattr(adapter, other)
    relation = isinstance(theirs, their_class)
    assert isinstance(ours, their_class) == relation
    assert isinstance(ours, our_class) == relation
    assert isinstance(theirs, our_class) == relation


def test_no_others_are_instances_of_a_users_subclass() -> None:
    class Mine(adapter.ReplayBuffer):
        pass

    assert isinstance(Mine(3), Mine)
    assert isinstance(Mine(3), adapter.ReplayBuffer)
    for other in (adapter.ReplayBuffer(3), tianshou.data.ReplayBuffer(3)):
        assert not isinstance(other, Mine)


@pytest.mark.parametrize("name", CLASSES)
def test_a_file_of_tianshous_class_can_be_loaded(name: str, tmp_path: Path) -> None:
    ours, theirs = both = make_both(name)
    fill_both(both)
    rows = theirs.sample_indices(0)
    if "Prioritized" in name:
        theirs.update_weight(rows, np.linspace(1.0, 2.0, len(rows)))
    theirs.save_hdf5(str(tmp_path / "theirs.hdf5"), compression="gzip")
    loaded = type(ours).load_hdf5(str(tmp_path / "theirs.hdf5"))
    assert_same_content(loaded, theirs)
    if "Prioritized" in name:
        np.testing.assert_allclose(loaded.weight[rows], theirs.weight[rows])
        assert set(loaded.sample(64)[1]) <= set(rows)
    fill_both((loaded, theirs))
    assert_same_content(loaded, theirs)


def test_a_buffer_can_be_made_from_datasets() -> None:
    columns = [np.arange(5.0)] * 3 + [np.zeros(5, bool)] * 3 + [np.arange(5.0)]
    ours, theirs = (module.ReplayBuffer.from_data(*columns) for module in (adapter, tianshou.data))
    assert_same_content(ours, theirs)


def test_tianshous_cached_buffer_takes_ours() -> None:
    ours, theirs = (
        tianshou.data.CachedReplayBuffer(module.ReplayBuffer(12), 3, 5)
        for module in (adapter, tianshou.data)
    )
    rng = np.random.default_rng(0)
    for _ in range(20):
        batch = steps(3, rng)
        ours.add(batch)
        theirs.add(batch)
        assert_same_content(ours, theirs)
    assert len(ours.main_buffer) > 0


def test_a_row_for_each_of_several_steps_of_one_environment() -> None:
    buffer = tianshou.data.VectorReplayBuffer(12, 3), adapter.VectorReplayBuffer(12, 3)
    for each in buffer:
        added = each.add(steps(4, np.random.default_rng(1)), [1, 1, 0, 1])
        assert added[0].tolist() == [4, 5, 0, 6]
    assert_same_content(*reversed(buffer))


@pytest.mark.parametrize(
    ("batch", "buffer_ids", "error", "message"),
    [
        (steps(2), [0, 1, 2], ValueError, "one row for each of buffer_ids, got 2"),
        (steps(3), [0, 1, 3], IndexError, "3"),
        (Batch(obs=np.zeros((3, 2)), act=np.zeros(3)), None, ValueError, "'rew'.* are missing"),
    ],
)
def test_a_wrong_batch_is_refused(
    batch: Batch, buffer_ids: Any, error: type[Exception], message: str
) -> None:
    buffer = adapter.VectorReplayBuffer(12, 3)
    with pytest.raises(error, match=message):
        buffer.add(batch, buffer_ids)
    assert len(buffer) == 0


@pytest.mark.parametrize("buffer_ids", [[1], [0, 0], []])
def test_a_buffer_without_sub_buffers_has_one_id(buffer_ids: list[int]) -> None:
    buffer = adapter.ReplayBuffer(12)
    with pytest.raises(ValueError, match=r"buffer_ids must be \[0\]"):
        buffer.add(steps(1), buffer_ids)


def test_nulls_are_seen_whichever_method_wrote_them() -> None:
    buffer = adapter.VectorReplayBuffer(12, 3)
    fill_both((buffer, adapter.VectorReplayBuffer(12, 3)))
    assert not buffer.hasnull()
    buffer.set_array_at_key(np.array([np.nan]), "rew", index=np.array([0]))
    assert buffer.hasnull()
    assert buffer.isnull().rew.any()
    for _ in range(4):  # over all rows
        buffer.add(steps(3))
    assert not buffer.hasnull()
    wrong = steps(3)
    wrong.obs[1, 1] = np.nan
    buffer.add(wrong)
    assert buffer.hasnull()
    buffer.reset()
    buffer.add(steps(3))
    assert not buffer.hasnull()
    late = steps(3)
    late.info = Batch(late=np.array(["a", "b", "c"], object))
    buffer.add(late)
    assert buffer.hasnull()  # of the rows before there is None


def test_sub_buffers_are_views() -> None:
    buffer = filled(5)
    first, second = buffer.buffers[:2]
    assert [len(first), first._insertion_idx, len(second)] == [4, 1, 4]
    assert first.last_index.tolist() == [0]
    for write in (
        first.reset,
        lambda: first.add(steps(1)[0]),
        lambda: first.update(second),
        lambda: first.set_array_at_key(np.zeros(4), "rew"),
    ):
        with pytest.raises(NotImplementedError, match="the buffer of all sub-buffers"):
            write()
    assert len(buffer) == 12


def test_sub_buffers_that_know_all_can_be_written_to() -> None:
    buffer = VectorReplayBuffer(12, 3)
    for _ in range(5):
        buffer.add(steps(3))
    first = buffer.buffers[0]
    first.reset()
    assert len(buffer) == 8
    first.add(steps(1), [0])
    assert len(buffer) == 9
    assert buffer.sample_indices(0).tolist() == [0, *range(5, 8), 4, *range(9, 12), 8]


def test_an_update_is_late_where_rows_have_been_dropped() -> None:
    buffer = PrioritizedReplayBuffer(7, alpha=0.6, beta=0.4)
    rows = steps(7)
    rows.rew = np.array([0.0, 1.0, np.nan, 3.0, 4.0, 5.0, 6.0])
    for row in range(7):
        buffer.add(rows[row])
    _, drawn = buffer.sample(50)
    buffer.dropnull()
    buffer.update_weight(drawn, np.full(50, 9.0))
    assert buffer.weight[np.arange(6)].tolist() == [1.0] * 6
    assert buffer.stale_updates == 50
    buffer.sample(50)


@pytest.mark.parametrize("cls", [adapter.ReplayBuffer, PrioritizedReplayBuffer])
def test_rows_with_nulls_are_dropped_and_leave_room(cls: Any) -> None:
    buffer = cls(7) if cls is adapter.ReplayBuffer else cls(7, alpha=0.6, beta=0.4)
    each = Batch(obs=0.0, obs_next=0.0, rew=0.0, terminated=False, truncated=False, info=Batch())
    for act in range(9):  # of which 2 .. 8 are there; an episode ends with 3
        row = Batch(each, act=act, rew=np.nan if act in (5, 8) else 0.0, terminated=act == 3)
        buffer.add(row)
    buffer.dropnull()
    assert not buffer.hasnull()
    assert buffer.act[buffer.sample_indices(0)].tolist() == [2, 3, 4, 6, 7]
    assert buffer.done[:5].tolist() == [False, True, True, False, True]
    assert buffer.terminated[:5].tolist() == [False, True, False, False, False]
    assert buffer.next(np.arange(5)).tolist() == [1, 1, 2, 4, 4]
    assert buffer.unfinished_index().tolist() == []
    assert [int(buffer.add(Batch(each, act=act))[3][0]) for act in (9, 10, 11)] == [5, 5, 5]
    assert buffer.act[buffer.sample_indices(0)].tolist() == [3, 4, 6, 7, 9, 10, 11]
    if cls is PrioritizedReplayBuffer:
        assert buffer.weight[np.arange(7)].tolist() == [1.0] * 7


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(
    ("nulls", "episode"),
    [([3], (15.0, 3, 3)), ([5], (6.0, 1, 5)), ([1], (18.0, 4, 2)), ([], (18.0, 4, 3))],
)
def test_sums_of_the_episode_that_goes_on_are_of_rows_that_stay(
    vector: bool, nulls: list[int], episode: tuple[float, int, int]
) -> None:
    """Rewards are 0 .. 6, and episodes end with 2 and 6."""
    buffer: Any = adapter.VectorReplayBuffer(20, 2) if vector else adapter.ReplayBuffer(10)
    each = Batch(obs=0.0, obs_next=0.0, act=0, terminated=False, truncated=False, info=Batch())

    def added(row: int) -> list[Any]:
        step = Batch(each, rew=np.nan if row in nulls else float(row), terminated=row in (2, 6))
        if not vector:
            return [of_it[0] for of_it in buffer.add(step)[1:]]
        return [of_it[0] for of_it in buffer.add(Batch.stack([step]), [0])[1:]]

    for row in range(6):
        added(row)
    (buffer.buffers[0] if vector else buffer).dropnull()
    assert tuple(added(6)) == episode


def test_a_buffer_may_lose_all_rows() -> None:
    buffer = adapter.ReplayBuffer(3)
    buffer.dropnull()  # has none to lose
    row = Batch(obs=np.nan, obs_next=0.0, act=0, rew=0.0, terminated=False, truncated=False)
    buffer.add(row)
    buffer.dropnull()
    assert len(buffer) == 0
    assert buffer.add(Batch(row, obs=1.0))[0].tolist() == [0]
    assert buffer[0].obs == 1.0


def test_a_vector_buffer_does_not_drop_rows() -> None:
    buffer = filled()
    for refusing in (buffer, buffer.buffers[0]):
        with pytest.raises(NotImplementedError, match="buffer"):
            refusing.dropnull()


def test_rows_taken_over_from_another_buffer_are_drawn() -> None:
    (ours, theirs), other = make_both("PrioritizedReplayBuffer"), adapter.ReplayBuffer(7)
    rng = np.random.default_rng(0)
    for _ in range(9):
        other.add(steps(1, rng), [0])
    for buffer in (ours, theirs):
        assert buffer.update(other).tolist() == list(range(7))
    assert_same_content(ours, theirs)
    assert set(ours.sample(64)[1].tolist()) == set(range(7))
    assert ours.update(adapter.ReplayBuffer(3)).tolist() == []


def test_uniform_draws_are_over_the_rows_of_all_sub_buffers() -> None:
    buffer = adapter.VectorReplayBuffer(20, 4, random_seed=5)
    for ids in (range(4), range(4), [0, 3], [3], [0], [0], [0]):
        buffer.add(steps(len(ids)), list(ids))
    live = buffer.sample_indices(0)
    assert len(live) == 13
    seen = np.bincount(buffer.sample_indices(26_000), minlength=20)
    assert seen[live].sum() == 26_000
    chi_square = ((seen[live] - 2_000) ** 2 / 2_000).sum()
    assert abs(chi_square - 12) < 5 * 24**0.5


def test_uniform_draws_from_sub_buffers_of_one_row() -> None:
    buffer = adapter.VectorReplayBuffer(3, 3)
    buffer.add(steps(1), [2])
    assert buffer.sample_indices(8).tolist() == [2] * 8
    with pytest.raises(ValueError, match="empty buffer"):
        adapter.VectorReplayBuffer(3, 3).sample_indices(1)


def test_uniform_draws_with_sample_avail_have_whole_stacks() -> None:
    buffer = adapter.VectorReplayBuffer(12, 3, stack_num=2, sample_avail=True)
    batch = steps(3)
    batch.terminated[:] = batch.truncated[:] = False
    for _ in range(3):
        buffer.add(batch)
    assert set(buffer.sample_indices(64).tolist()) == {1, 2, 5, 6, 9, 10}
    assert sorted(buffer.sample_indices(None)) == [1, 2, 5, 6, 9, 10]
