"""The formulas of prioritized replay by hand, and draws that must follow them."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import Column, Columns, LinearSchedule, PrioritizedReplayBuffer, ReplayBuffer, t
from kary_replay.sampler import Draw, PrioritizedSampler

COLUMNS = {"x": ((), np.int64)}
HUGE = np.finfo(np.float64).max


def a_sampler(td_errors: npt.ArrayLike, capacity: int | None = None, **options: Any) -> Any:
    """A sampler whose first rows have these TD errors."""
    size = np.size(td_errors)
    options = {"alpha": 0.6, "beta": 0.4, "eps": 1e-6, "fanout": 8} | options
    options = {
        "weight_norm": "batch",
        "stratified": True,
        "rng": np.random.default_rng(0),
    } | options
    sampler = PrioritizedSampler(capacity or size, **options)
    sampler.tree.update(np.arange(size), sampler.masses(td_errors, size))
    return sampler


def a_buffer(rows: int, capacity: int | None = None, **options: Any) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity or rows, COLUMNS, **({"seed": 0} | options))
    buffer.add(x=np.arange(rows))
    return buffer


def sigmas_of_chi_square(seen: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> float:
    """How many standard deviations chi-square lies from its mean; infinite if a zero was drawn."""
    possible = probabilities > 0.0
    if seen[~possible].any():
        return math.inf
    want = seen.sum() * probabilities[possible]
    degrees = np.count_nonzero(possible) - 1
    assert want.min() > 10.0, "too few draws for chi-square"
    return float((((seen[possible] - want) ** 2 / want).sum() - degrees) / math.sqrt(2 * degrees))


# --- priorities and masses ------------------------------------------------------------------


def test_masses_by_hand() -> None:
    sampler = a_sampler([0.0], alpha=2.0, eps=1.0)
    assert sampler.masses([0, 1, -3, 0.5], 4).tolist() == [1.0, 4.0, 16.0, 2.25]
    sampler = a_sampler([0.0], alpha=0.5, eps=0.0)
    assert sampler.masses([0, 4, -9], 3).tolist() == [0.0, 2.0, 3.0]


def test_alpha_is_applied_once_to_old_rows_and_new() -> None:
    buffer = a_buffer(2, 4, alpha=0.5, eps=0.0)
    buffer.update_priorities([0, 1], [16.0, -81.0])
    assert buffer.max_priority == pytest.approx(81.0)
    buffer.add(x=2)  # gets the largest priority, 81: mass 9 and neither 81 nor 3
    buffer.add(x=3, td_errors=[-4.0])
    batch = buffer.sample(2000)
    probabilities = dict(zip(batch.slots.tolist(), batch.probabilities.tolist(), strict=True))
    assert probabilities == pytest.approx({0: 4 / 24, 1: 9 / 24, 2: 9 / 24, 3: 2 / 24})


def test_alpha_0_is_uniform_over_written_rows_whatever_the_errors() -> None:
    buffer = a_buffer(5, 20, alpha=0.0, eps=0.0)
    buffer.update_priorities(np.arange(5), [0.0, 1e300, -1e-300, 0.0, 7.0])
    batch = buffer.sample(1000)
    assert np.bincount(batch.slots, minlength=20).tolist() == [200] * 5 + [0] * 15
    assert (batch.probabilities == 0.2).all()
    assert (batch.weights == 1.0).all()
    assert buffer.max_priority == 1.0


def test_with_eps_0_a_row_without_error_is_never_drawn() -> None:
    buffer = a_buffer(3, eps=0.0)
    buffer.update_priorities([0, 1, 2], [0.0, 1.0, 0.0])
    assert set(buffer.sample(1000).slots.tolist()) == {1}


def test_new_rows_get_a_priority_above_0_even_after_zeros() -> None:
    buffer = a_buffer(3, 6, eps=0.0)
    buffer.update_priorities([0, 1, 2], [0.0, 0.0, 0.0])
    assert buffer.max_priority == 1.0
    with pytest.raises(ValueError, match=r"total .*is 0|mass"):
        buffer.sample(1)
    buffer.add(x=3)
    assert set(buffer.sample(100).slots.tolist()) == {3}


def test_new_rows_get_the_largest_priority_now_and_not_an_old_one() -> None:
    buffer = a_buffer(3, 8, alpha=1.0, eps=0.0)
    assert buffer.max_priority == 1.0
    buffer.update_priorities([0, 1, 2], [0.25, 1000.0, 0.5])
    assert buffer.max_priority == 1000.0
    buffer.update_priorities([1], [0.125])
    assert buffer.max_priority == 0.5
    keys = buffer.add(x=[3, 4])
    batch = buffer.sample(1000)
    drawn = dict(zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True))
    assert drawn == pytest.approx(
        {
            0: 0.25 / 1.875,
            1: 0.125 / 1.875,
            2: 0.5 / 1.875,
            **dict.fromkeys(keys.tolist(), 0.5 / 1.875),
        }
    )


def test_an_outlier_that_is_overwritten_is_forgotten() -> None:
    buffer = a_buffer(2, alpha=1.0, eps=0.0)
    buffer.update_priorities([0, 1], [1e6, 2.0])
    buffer.add(x=2, td_errors=[3.0])  # over the outlier
    assert buffer.max_priority == 3.0


@pytest.mark.parametrize("alpha", [0.1, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("priority", [1e-30, 0.1, 1.0, 1e30])
def test_max_priority_undoes_alpha(alpha: float, priority: float) -> None:
    sampler = a_sampler([priority, priority / 2], alpha=alpha, eps=0.0)
    assert sampler.max_priority == pytest.approx(priority, rel=1e-12)


# --- TD errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u2", "i8", "longdouble"])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_td_errors_of_every_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    sampler = a_sampler([0.0], alpha=1.0, eps=0.5)
    errors = np.array([3, 0, 2]).astype(dtype).reshape(shape)
    before = errors.tobytes()
    masses = sampler.masses(errors, 3)
    assert (masses.dtype, masses.tolist()) == (np.float64, [3.5, 0.5, 2.5])
    assert errors.tobytes() == before


def test_td_errors_may_be_lists_scalars_strided_or_read_only() -> None:
    sampler = a_sampler([0.0], alpha=1.0, eps=0.0)
    assert sampler.masses([1, -2.0], 2).tolist() == [1.0, 2.0]
    assert sampler.masses([[1], [-2]], 2).tolist() == [1.0, 2.0]
    assert sampler.masses(-3, 1).tolist() == [3.0]
    assert sampler.masses(np.arange(6.0)[::-2], 3).tolist() == [5.0, 3.0, 1.0]
    frozen = np.array([-1.0, 2.0])
    frozen.flags.writeable = False
    assert sampler.masses(frozen, 2).tolist() == [1.0, 2.0]
    assert frozen.tolist() == [-1.0, 2.0]
    assert sampler.masses([], 0).shape == (0,)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("grad", [False, True])
def test_td_errors_may_be_tensors(dtype: str, grad: bool) -> None:
    torch = pytest.importorskip("torch")
    sampler = a_sampler([0.0], alpha=1.0, eps=0.0)
    errors = torch.tensor([[-1.5], [2.0]]).to(getattr(torch, dtype))
    if grad and not errors.is_floating_point():
        return
    errors.requires_grad_(grad)
    want = [1.0, 2.0] if dtype == "int64" else [1.5, 2.0]
    assert sampler.masses(errors, 2).tolist() == want
    assert sampler.masses(errors.squeeze(), 2).tolist() == want
    assert errors.flatten().tolist() == [-want[0], want[1]]
    assert errors.requires_grad == grad


BAD_TD_ERRORS = [
    ([1.0, math.nan], ValueError, "finite.* nan at position 1"),
    ([math.inf, 1.0], ValueError, "finite.* inf at position 0"),
    ([1.0, -math.inf], ValueError, "finite.* -inf at position 1"),
    (np.array([1, np.inf], np.float16), ValueError, "finite.* inf at position 1"),
    ([1.0, HUGE], ValueError, "smaller than .* at position 1"),
    ([1.0], ValueError, r"\(2,\) or \(2, 1\), got \(1,\)"),
    ([1.0, 2.0, 3.0], ValueError, r"got \(3,\)"),
    ([[1.0, 2.0]], ValueError, r"got \(1, 2\)"),
    (1.0, ValueError, r"got \(\)"),
    (["1", "2"], TypeError, "real numbers"),
    ([None, 1.0], TypeError, "real numbers"),
    ([True, False], TypeError, "real numbers"),
    ([1j, 1.0], TypeError, "real numbers"),
]


@pytest.mark.parametrize(("errors", "error", "rule"), BAD_TD_ERRORS, ids=repr)
@pytest.mark.parametrize("alpha", [0.6, 2.0])
def test_bad_td_errors_change_nothing(
    errors: Any, error: type[Exception], rule: str, alpha: float
) -> None:
    if alpha == 0.6 and "smaller" in rule:
        return  # its mass is below 1e185: there is room
    buffer = a_buffer(2, 4, alpha=alpha)
    before = pickle.dumps(buffer)
    with pytest.raises(error, match="td_errors .*" + rule):
        buffer.update_priorities([0, 1], errors)
    with pytest.raises(error, match="td_errors .*" + rule):
        buffer.add(x=[5, 6], td_errors=errors)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_alpha_0_does_not_hide_a_bad_error(bad: float) -> None:
    with pytest.raises(ValueError, match="td_errors must be finite"):
        a_sampler([0.0], alpha=0.0).masses([bad], 1)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 1.7, 20.0])
@pytest.mark.parametrize("capacity", [1, 7, 1000])
def test_any_error_that_is_taken_can_fill_the_buffer(alpha: float, capacity: int) -> None:
    """Or a total would overflow later, when the row is already written."""
    sampler = a_sampler(np.zeros(capacity), alpha=alpha)
    taken = 0
    for error in 10.0 ** np.linspace(0, 308.25, 400):
        try:
            masses = sampler.masses(np.full(capacity, error), capacity)
        except ValueError:
            continue
        taken += 1
        sampler.tree.update(np.arange(capacity), masses)
        assert math.isfinite(sampler.tree.total)
    assert taken >= 350 / max(1.0, alpha)


# --- draws ----------------------------------------------------------------------------------

TD_ERRORS = np.where(np.arange(60) % 7 == 3, 0.0, np.linspace(0.1, 4.0, 60))  # zeros within


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_rows_are_drawn_with_their_probability(
    batch_size: int, alpha: float, stratified: bool
) -> None:
    sampler = a_sampler(TD_ERRORS, 77, alpha=alpha, eps=0.0, stratified=stratified)
    masses = np.append(TD_ERRORS**alpha, np.zeros(17))
    draws = [sampler.draw(batch_size, 60) for _ in range(max(20, 40_000 // batch_size))]
    seen = np.bincount(np.concatenate([draw.slots for draw in draws]), minlength=77)
    assert seen[masses == 0.0].sum() == 0
    sigmas = sigmas_of_chi_square(seen, masses / masses.sum())
    assert sigmas < 5.0
    if not stratified:  # strata keep closer to the mean than chance does
        assert sigmas > -5.0


def test_chi_square_sees_a_wrong_exponent() -> None:
    """The power of the test above: draws by mass ** 1.1 are not taken for draws by mass."""
    sampler = a_sampler(TD_ERRORS, alpha=1.1, eps=0.0, stratified=False)
    seen = np.bincount(sampler.draw(40_000, 60).slots, minlength=60)
    assert sigmas_of_chi_square(seen, TD_ERRORS / TD_ERRORS.sum()) > 5.0


def test_strata_get_one_draw_each() -> None:
    sampler = a_sampler(np.ones(1200), alpha=1.0, eps=0.0)
    for size in (1, 2, 3, 100, 1200):
        for _ in range(5):
            strata = sampler.draw(size, 1200).slots // (1200 // size)
            assert strata.tolist() == list(range(size))


def test_strata_of_uneven_masses_get_one_draw_each() -> None:
    errors = np.arange(1.0, 101.0)
    sampler, edges = a_sampler(errors, alpha=1.0, eps=0.0), np.cumsum(errors)
    for _ in range(20):
        slots = sampler.draw(64, 100).slots
        lower, upper = np.arange(64) / 64 * edges[-1], np.arange(1, 65) / 64 * edges[-1]
        assert (edges[slots] > lower).all()
        assert (edges[slots] - errors[slots] < upper).all()


def test_independent_draws_share_strata() -> None:
    sampler = a_sampler(np.ones(1200), alpha=1.0, eps=0.0, stratified=False)
    strata = np.bincount(sampler.draw(1200, 1200).slots, minlength=1200)
    assert 350 < np.count_nonzero(strata == 0) < 530  # 1200 / e = 441, sigma about 15


class Edges(np.random.Generator):
    """A generator whose fractions are all the largest it can give, or all 0."""

    def __init__(self, fraction: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.fraction = fraction

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, self.fraction)


@pytest.mark.parametrize("fraction", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("stratified", [True, False])
def test_the_edges_of_strata_hit_no_empty_row(fraction: float, stratified: bool) -> None:
    errors = np.zeros(100)
    errors[20:80:3] = 0.1
    sampler = a_sampler(errors, alpha=1.0, eps=0.0, stratified=stratified, rng=Edges(fraction))
    for size in (1, 3, 7, 49, 64, 1000, 99_991):
        assert (errors[sampler.draw(size, 20).slots] > 0.0).all()


def test_probabilities_are_mass_over_total() -> None:
    draw = a_sampler([1.0, 0.0, 3.0], alpha=2.0, eps=1.0).draw(100, 3)  # masses 4, 1, 16
    assert draw.probabilities.dtype == np.float64
    assert draw.probabilities.tolist() == (np.array([4.0, 1.0, 16.0]) / 21.0)[draw.slots].tolist()


# --- weights --------------------------------------------------------------------------------


def weights_of(draw: Draw, size: int, beta: float, largest: float | None) -> npt.NDArray[Any]:
    """(N * P) ** -beta over the largest, from the probabilities alone."""
    assert draw.probabilities is not None
    raw = (size * draw.probabilities) ** -beta
    return raw / (raw.max() if largest is None else largest)


def test_weights_by_hand() -> None:
    sampler = a_sampler([0.0, 1.0, 3.0], alpha=2.0, eps=1.0, beta=0.5)  # masses 1, 4, 16
    draw = sampler.draw(21, 3)  # strata as wide as the smallest mass
    assert draw.slots.tolist() == [0] + [1] * 4 + [2] * 16
    assert draw.weights.dtype == np.float32
    assert draw.weights.tolist() == [1.0] + [0.5] * 4 + [0.25] * 16


@pytest.mark.parametrize("rows", [1, 2, 30, 99, 100])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_of_both_norms_at_every_fill_level(rows: int, beta: float) -> None:
    errors = np.random.default_rng(rows).exponential(size=rows)
    smallest = ((errors.min() + 1e-6) / (errors + 1e-6).sum()) * rows
    for norm, largest in (("batch", None), ("buffer", smallest**-beta)):
        sampler = a_sampler(errors, 100, alpha=1.0, beta=beta, weight_norm=norm)
        draw = sampler.draw(16, rows)
        want = weights_of(draw, rows, beta, largest)
        assert draw.weights.dtype == np.float32
        np.testing.assert_allclose(draw.weights, want, rtol=1e-6)
        assert draw.weights.max() <= 1.0
        assert norm == "buffer" or draw.weights.max() == 1.0


def test_the_buffer_norm_looks_beyond_the_batch() -> None:
    sampler = a_sampler([1.0, 1e-9], alpha=1.0, eps=0.0, beta=1.0, weight_norm="buffer")
    draw = sampler.draw(1, 2)
    assert draw.slots.tolist() == [0]
    assert draw.weights[0] == pytest.approx(1e-9)


@pytest.mark.parametrize("norm", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.4, 1.0, 5.0])
def test_weights_of_extreme_ratios_are_finite(norm: str, beta: float) -> None:
    errors = np.repeat([1e-300, 1e-100, 1.0, 1e100, 1e290], 4)
    sampler = a_sampler(errors, alpha=1.0, eps=0.0, beta=beta, weight_norm=norm)
    draw = sampler.draw(1000, 20)
    assert np.isfinite(draw.weights).all()
    assert ((draw.weights >= 0.0) & (draw.weights <= 1.0)).all()
    assert norm == "buffer" or draw.weights.max() == 1.0


def test_weights_without_a_norm_are_those_of_the_formula() -> None:
    sampler = a_sampler([1.0, 3.0, 4.0], alpha=1.0, beta=0.5, eps=0.0, weight_norm="none")
    draw = sampler.draw(8, 3)  # N * P is 3/8, 9/8 and 12/8
    want = np.array([(8 / 3) ** 0.5, (8 / 9) ** 0.5, (8 / 12) ** 0.5])
    np.testing.assert_allclose(draw.weights, want[draw.slots], rtol=1e-6)
    assert draw.weights.dtype == np.float32


def test_a_buffer_without_a_norm_counts_its_own_rows() -> None:
    buffer = PrioritizedReplayBuffer(10, COLUMNS, beta=0.7, weight_norm="none", seed=1)
    buffer.add(x=np.arange(4), td_errors=[0.1, 1.0, 2.0, 5.0])
    batch = buffer.sample(6)
    np.testing.assert_allclose(batch.weights, (4 * batch.probabilities) ** -0.7, rtol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "buffer", "none"])
def test_rows_weigh_what_they_weighed_when_drawn(norm: str) -> None:
    sampler = a_sampler([1.0, 3.0, 4.0, 0.5], weight_norm=norm)
    draw = sampler.draw(3, 4)
    np.testing.assert_array_equal(draw.weights, sampler.weights(draw.slots, live=4))


def test_a_row_without_mass_weighs_nothing() -> None:
    sampler = a_sampler([2.0, 0.0, 8.0], capacity=8, alpha=1.0, beta=0.5, eps=0.0)
    weights = sampler.weights(np.array([0, 1, 2, 7]), live=3)
    np.testing.assert_array_equal(weights, np.float32([1.0, 0.0, 0.5, 0.0]))


def test_weight_norm_is_one_of_its_names() -> None:
    with pytest.raises(ValueError, match=r"weight_norm .*'sum'"):
        PrioritizedReplayBuffer(4, COLUMNS, weight_norm="sum")


# --- beta -----------------------------------------------------------------------------------


def test_a_schedule_moves_in_equal_steps_and_stays() -> None:
    schedule = LinearSchedule(0.4, 1.0, 3)
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.4, 0.6, 0.8, 1, 1, 1])
    assert (schedule.at(0), schedule.at(3)) == (0.4, 1.0)
    assert LinearSchedule(1.0, 0.0, 4).at(1) == 0.75


def test_beta_moves_one_step_a_sample() -> None:
    buffer = a_buffer(4, beta=LinearSchedule(0.0, 1.0, 2), alpha=1.0, eps=0.0)
    buffer.update_priorities(np.arange(4), [1.0, 1.0, 1.0, 4.0])
    seen = [(buffer.beta, buffer.sample(7).weights.min()) for _ in range(4)]
    assert seen == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.25), (1.0, 0.25)]


def test_beta_can_be_set_at_any_time() -> None:
    buffer = a_buffer(4, beta=LinearSchedule(0.0, 1.0, 2))
    buffer.sample(1)
    buffer.beta = 0.7
    buffer.sample(1)
    assert buffer.beta == 0.7
    buffer.beta = LinearSchedule(0.5, 1.0, 2)
    assert buffer.beta == 0.5
    buffer.sample(1)
    assert buffer.beta == 0.75


@pytest.mark.parametrize("name", ["alpha", "beta", "eps"])
@pytest.mark.parametrize("wrong", [-0.1, math.nan, math.inf, -math.inf])
def test_numbers_are_finite_and_not_negative(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*{wrong}"):
        PrioritizedReplayBuffer(4, COLUMNS, **{name: wrong})


@pytest.mark.parametrize("name", ["alpha", "beta", "eps"])
@pytest.mark.parametrize("wrong", ["0.4", None, True, [0.4], 1j])
def test_numbers_are_numbers(name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be"):
        PrioritizedReplayBuffer(4, COLUMNS, **{name: wrong})


def test_a_wrong_beta_changes_nothing() -> None:
    buffer = a_buffer(4, beta=LinearSchedule(0.0, 1.0, 2))
    buffer.sample(1)
    with pytest.raises(ValueError, match="beta"):
        buffer.beta = -1.0
    assert buffer.beta == 0.5


@pytest.mark.parametrize("arguments", [(-1, 1, 3), (0, math.nan, 3), (0, 1, 0), (0, 1, -2)])
def test_a_wrong_schedule_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"start|end|steps"):
        LinearSchedule(*arguments)


# --- generators -----------------------------------------------------------------------------


@pytest.mark.parametrize("stratified", [True, False])
def test_the_same_seed_gives_the_same_draws(stratified: bool) -> None:
    def draws(seed: Any) -> list[int]:
        buffer = a_buffer(1000, seed=seed, stratified=stratified)
        return [slot for _ in range(3) for slot in buffer.sample(20).slots.tolist()]

    assert draws(5) == draws(5) == draws(np.random.default_rng(5))
    assert draws(5) != draws(6)
    assert draws(None) != draws(None)


def test_draws_leave_numpy_s_global_generator_alone() -> None:
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    a_buffer(10).sample(5)
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002


def test_a_generator_that_is_handed_in_is_used() -> None:
    rng, twin = np.random.default_rng(5), np.random.default_rng(5)
    buffer = a_buffer(10, seed=rng, stratified=False)
    buffer.sample(7)
    twin.random(7)
    assert rng.random() == twin.random()


def test_a_draw_changes_nothing_but_generator_and_beta() -> None:
    buffer = a_buffer(10, 20)
    before = buffer.__getstate__()["state"]
    buffer.sample(100)
    after = buffer.__getstate__()["state"]
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"generator", "beta_step"}


def test_a_draw_that_fails_changes_nothing() -> None:
    buffer = a_buffer(3, eps=0.0)
    buffer.update_priorities([0, 1, 2], [0.0, 0.0, 0.0])
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match=r"total .*is 0|mass"):
        buffer.sample(4)
    assert pickle.dumps(buffer) == before


def test_a_uniform_draw_finds_the_few_that_may_be_drawn() -> None:
    number = Column("number")
    columns: Columns = {
        "number": ((), np.int64),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
        "oldest": number[t - 1_997],
    }
    buffer = ReplayBuffer(2_000, columns, seed=0)
    never = np.zeros(3_000, np.bool_)
    buffer.add(number=np.arange(3_000), terminated=never, truncated=never)
    assert len(buffer) == 3
    drawn = np.bincount(buffer.sample(3000)["number"] - 2_997)
    assert sigmas_of_chi_square(drawn, np.full(3, 1 / 3)) < 5.0


def test_finding_where_all_were_just_retired_is_no_error() -> None:
    """Between a look at the total and the draw another process may retire all of few rows."""
    sampler = a_sampler([1.0, 2.0])
    sampler.tree.update([0, 1], 0.0)
    assert sampler.find(3).masses.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="no row has a mass"):
        sampler.draw(3, 2)
