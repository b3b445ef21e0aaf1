"""The prioritized algorithms: the stock ones' steps, each loss weighed, each TD error reported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

import gymnasium as gym
import sb3_contrib
import stable_baselines3 as sb3
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3_buffers
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from kary_replay.adapters import sb3 as ours
from kary_replay.adapters.sb3 import losses

PAIRS: dict[str, tuple[Any, Any]] = {
    "DQN": (ours.PrioritizedDQN, sb3.DQN),
    "DDPG": (ours.PrioritizedDDPG, sb3.DDPG),
    "TD3": (ours.PrioritizedTD3, sb3.TD3),
    "SAC": (ours.PrioritizedSAC, sb3.SAC),
    "QRDQN": (ours.PrioritizedQRDQN, sb3_contrib.QRDQN),
    "TQC": (ours.PrioritizedTQC, sb3_contrib.TQC),
    "CrossQ": (ours.PrioritizedCrossQ, sb3_contrib.CrossQ),
}
DISCRETE = ("DQN", "QRDQN")


def small(**options: Any) -> dict[str, Any]:
    """Arguments of a model for tests.  SB3 adds to the dictionaries in them."""
    return {
        "policy_kwargs": {"net_arch": [8]},
        "device": "cpu",
        "buffer_size": 300,
        "learning_starts": 20,
        "batch_size": 16,
        "train_freq": 2,
        "seed": 3,
    } | copy.deepcopy(options)


class Point(gym.Env[np.ndarray, Any]):
    """A point on a line is pushed towards the middle, in episodes of 12 steps at most."""

    observation_space = spaces.Box(-2, 2, (2,), np.float32)

    def __init__(self, discrete: bool = False) -> None:
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (1,), np.float32)

    def _observation(self) -> np.ndarray:
        return np.array([self.place, self.time / 12], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.time = float(self.np_random.uniform(-1, 1)), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        push = action - 1 if isinstance(self.action_space, spaces.Discrete) else action[0]
        self.place = float(np.clip(self.place + 0.3 * push, -2, 2))
        self.time += 1
        return self._observation(), -abs(self.place), abs(self.place) > 1.5, self.time == 12, {}


def environment(name: str) -> Point:
    return Point(discrete=name in DISCRETE)


def made(name: str, cls: Any, **kwargs: Any) -> Any:
    model = cls("MlpPolicy", environment(name), **small(**kwargs))
    model.set_logger(configure(None, []))
    return model


def parameters(model: Any) -> dict[str, th.Tensor]:
    state = {name: value.clone() for name, value in model.policy.state_dict().items()}
    if getattr(model, "log_ent_coef", None) is not None:
        state["log_ent_coef"] = model.log_ent_coef.detach().clone()
    return state


def same(here: dict[str, th.Tensor], there: dict[str, th.Tensor]) -> bool:
    assert here.keys() == there.keys()
    return all(th.equal(here[name], there[name]) for name in here)


def fill(model: Any, steps: int) -> None:
    """Random transitions with large rewards, for gradients to be clipped."""
    rng, n = np.random.default_rng(0), model.n_envs
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (n, 1)).astype(np.float32)
        if isinstance(model.action_space, spaces.Discrete):
            actions = rng.integers(3, size=n)
        model.replay_buffer.add(
            rng.normal(size=(n, 2)).astype(np.float32),
            rng.normal(size=(n, 2)).astype(np.float32),
            actions,
            rng.normal(0, 5, size=n).astype(np.float32),
            rng.random(n) < 0.2,
            [{}] * n,
        )


# the stock class's steps


class Normalized(FlattenExtractor):
    """With statistics of batches, which targets follow too."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.norm(super().forward(observations))


STEPS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in PAIRS),
    ("DQN", {"n_steps": 3, "batch_size": 27, "max_grad_norm": 0.5}),
    ("QRDQN", {"n_steps": 3, "batch_size": 27, "max_grad_norm": 0.5}),
    ("QRDQN", {"max_grad_norm": None}),
    ("DDPG", {"n_steps": 2}),
    ("TD3", {"policy_kwargs": {"net_arch": [8], "n_critics": 3}, "policy_delay": 3}),
    ("SAC", {"ent_coef": 0.1, "target_update_interval": 3, "batch_size": 27, "n_steps": 4}),
    ("SAC", {"learning_rate": LinearSchedule(1e-3, 1e-4, 1.0)}),
    ("SAC", {"policy_kwargs": {"net_arch": [8], "features_extractor_class": Normalized}}),
    ("TD3", {"policy_kwargs": {"net_arch": [8], "features_extractor_class": Normalized}}),
    ("SAC", {"use_sde": True, "policy_kwargs": {"net_arch": [8], "n_critics": 3}}),
    ("TQC", {"use_sde": True, "top_quantiles_to_drop_per_net": 0}),
    ("TQC", {"ent_coef": 0.1, "batch_size": 27, "n_steps": 2}),
    ("CrossQ", {"use_sde": True, "batch_size": 27, "policy_delay": 2}),
    ("CrossQ", {"ent_coef": 0.1, "n_steps": 3}),
]


@pytest.mark.parametrize(("name", "options"), STEPS, ids=str)
def test_with_alpha_0_parameters_are_those_of_the_stock_class(
    name: str, options: dict[str, Any]
) -> None:
    """Bit for bit, for the same batches: 50 gradient steps, two a call."""
    mine_cls, stock_cls = PAIRS[name]
    mine = made(name, mine_cls, replay_buffer_kwargs={"alpha": 0.0}, **options)
    stock = made(name, stock_cls, **options)
    assert same(parameters(mine), parameters(stock))
    fill(mine, 100)
    start, batches, draw = parameters(mine), [], mine.replay_buffer.sample

    def recorded(*args: Any, **kwargs: Any) -> Any:
        batches.append(draw(*args, **kwargs))
        return batches[-1]

    mine.replay_buffer.sample = recorded
    stock.replay_buffer.sample = lambda *_, **__: ReplayBufferSamples(*batches.pop(0)[:6])
    for model in (mine, stock):
        th.manual_seed(1)
        for call in range(25):
            model._update_current_progress_remaining(call, 25)
            model.train(gradient_steps=2, batch_size=model.batch_size)
            model._on_step()
        assert model._n_updates == 50
    assert not batches
    assert same(parameters(mine), parameters(stock))
    assert not same(parameters(mine), start)
    here, there = mine.logger.name_to_value, stock.logger.name_to_value
    assert {k: v for k, v in here.items() if not k.startswith("replay/")} == there


# losses by hand


def column(*numbers: float) -> th.Tensor:
    return th.tensor(numbers, dtype=th.float32)[:, None]


def test_huber_by_hand() -> None:
    loss, errors = losses.huber(column(0.0, 3.0), column(0.5, 0.0), column(1.0, 0.5))
    assert loss.item() == pytest.approx((0.125 + 0.5 * 2.5) / 2)
    assert errors.flatten().tolist() == [0.5, -3.0]


def test_squared_by_hand() -> None:
    """Errors of critics that disagree do not cancel."""
    critics = [column(1.0, 2.0), column(-1.0, 5.0)]
    loss, errors = losses.squared(critics, column(0.0, 4.0), column(1.0, 0.25))
    assert loss.item() == pytest.approx((1 + 0.25 * 4) / 2 + (1 + 0.25 * 1) / 2)
    assert errors.flatten().tolist() == [1.0, 1.5]


@pytest.mark.parametrize("summed", [True, False])
def test_quantile_huber_by_hand(summed: bool) -> None:
    """Two quantiles, at 1/4 and 3/4, beside one target: errors 0.5 and -3."""
    current, target = th.tensor([[0.0, 3.5]]), th.tensor([[0.5]])
    loss, errors = losses.quantile_huber(current, target, column(0.5), summed=summed)
    pairs = [0.25 * 0.125, (1 - 0.75) * 2.5]
    assert loss.item() == pytest.approx(0.5 * sum(pairs) / (1 if summed else 2))
    assert errors.tolist() == [[1.75]]


def test_quantile_huber_averages_critics() -> None:
    current = th.tensor([[[0.0], [1.0]], [[2.0], [4.0]]])  # 2 rows, 2 critics, 1 quantile
    target = th.tensor([[[1.0, 1.0]], [[4.0, 4.0]]])
    loss, errors = losses.quantile_huber(current, target, column(1.0, 3.0), summed=False)
    assert errors.flatten().tolist() == [0.5, 1.0]
    assert loss.item() == pytest.approx((0.5 * 0.5 + 0 + 3 * 0.5 * 1.5 + 0) / 4)


@pytest.mark.parametrize("weights", [th.ones(4), th.ones(1, 4), th.ones(4, 4), th.ones(1, 1)])
def test_weights_of_another_shape_are_refused(weights: th.Tensor) -> None:
    value = column(1.0, 2.0, 3.0, 4.0)
    quantiles = value.expand(4, 3)
    for call in (
        lambda: losses.huber(value, value, weights),
        lambda: losses.squared([value], value, weights),
        lambda: losses.quantile_huber(quantiles, quantiles, weights, summed=True),
        lambda: losses.weighed(value.flatten(), weights),
    ):
        with pytest.raises(ValueError, match=r"weights must have shape \(4, 1\)"):
            call()


def test_the_effective_sample_size_of_equal_weights_is_their_number() -> None:
    assert losses.effective_sample_size(th.full((8, 1), 0.3)) == pytest.approx(8)
    assert losses.effective_sample_size(column(1.0, 0.0, 0.0)) == pytest.approx(1)


# weights reach the critics and nothing else


class Fixed(nn.Module):
    """Stands in for a network whose outputs are its parameters, whatever it is asked."""

    def __init__(self, *outputs: th.Tensor) -> None:
        super().__init__()
        self.outputs = nn.ParameterList(outputs)
        self.optimizer = th.optim.SGD(self.parameters(), lr=1.0)

    def forward(self, *_: Any) -> Any:
        return tuple(self.outputs)

    def set_bn_training_mode(self, _: bool) -> None:
        pass


class FixedActor(Fixed):
    """Its second output is the logarithm of the actions' probabilities."""

    def forward(self, *_: Any) -> Any:
        return self.outputs[0]

    def action_log_prob(self, *_: Any) -> Any:
        return self.outputs[0], self.outputs[1].flatten()


WEIGHTS = (0.5, 1.0)
BATCH = {
    "observations": th.zeros(2, 2),
    "actions": th.zeros(2, 1),
    "next_observations": th.zeros(2, 2),
    "dones": column(0.0, 1.0),
    "rewards": column(1.0, 3.0),
    "discounts": column(0.5, 0.5),
    "weights": column(*WEIGHTS),
    "keys": np.array([0, 1]),
}
# What comes after row 0 is worth the least of 2 and 4, less 0.1 of a log-probability of -1, in
# SAC and the like; after row 1, which terminated, comes nothing.
LOG_PROB, SOFT_TARGET, TARGET = -1.0, (1 + 0.5 * 2.1, 3.0), (1 + 0.5 * 2.0, 3.0)


def forced(name: str, **networks: nn.Module) -> Any:
    """A model with these networks that draws `BATCH`, and keeps what is reported to its buffer."""
    options = {} if name in ("DDPG", "TD3") else {"ent_coef": 0.1}
    model = made(name, PAIRS[name][0], **options)
    for attribute, network in networks.items():
        setattr(model, attribute, network)
    model.reported = []
    buffer = model.replay_buffer
    buffer.sample = lambda *_, **__: ours.PrioritizedReplayBufferSamples(**BATCH)
    buffer.update_priorities = lambda keys, errors: model.reported.append(errors.flatten().tolist())
    return model


def least_squares(targets: tuple[float, float], *critics: tuple[float, float]) -> float:
    """The weighed loss of all critics, over the two rows."""
    rows = zip(WEIGHTS, targets, *critics, strict=True)
    return sum(w * sum((q - y) ** 2 for q in qs) for w, y, *qs in rows) / 2


@pytest.mark.parametrize("name", ["DDPG", "TD3", "SAC"])
def test_squared_losses_and_steps_are_those_computed_by_hand(name: str) -> None:
    soft = name == "SAC"
    critic = Fixed(column(1.0, 2.0), column(4.0, 3.5))
    critic.q1_forward = lambda *_: critic.outputs[0]
    actor = FixedActor(column(0.0, 0.0), column(LOG_PROB, LOG_PROB))
    target_critic = Fixed(column(2.0, 9.0), column(4.0, 9.0))
    networks = {"actor": actor, "critic": critic, "critic_target": target_critic}
    if not soft:
        networks["actor_target"] = actor
    model = forced(name, **networks)
    model.policy_delay, model._update_learning_rate = 1, lambda _: None
    model.train(gradient_steps=1, batch_size=2)
    logged = model.logger.name_to_value
    target = SOFT_TARGET if soft else TARGET
    factor = 0.5 if soft else 1.0
    want = factor * least_squares(target, (1.0, 2.0), (4.0, 3.5))
    assert logged["train/critic_loss"] == pytest.approx(want)
    # One step of SGD with rate 1 down that loss: 2 w (q - y) / B, and then the actor's.
    moved = [
        [q - factor * w * (q - y) for q, w, y in zip(qs, WEIGHTS, target, strict=True)]
        for qs in ((1.0, 2.0), (4.0, 3.5))
    ]
    np.testing.assert_allclose([q.flatten().tolist() for q in critic.outputs], moved, rtol=1e-6)
    climbed = [min(pair) for pair in zip(*moved, strict=True)] if soft else moved[0]
    want = (0.1 * LOG_PROB if soft else 0.0) - np.mean(climbed)  # unweighed
    assert logged["train/actor_loss"] == pytest.approx(want, rel=1e-5)
    errors = [(abs(1.0 - target[0]) + abs(4.0 - target[0])) / 2, (1.0 + 0.5) / 2]
    np.testing.assert_allclose(model.reported, [errors], rtol=1e-6)


def test_crossq_loss_is_that_computed_by_hand() -> None:
    """Its critic sees both ends of the steps at once: rows 2 and 3 are the next ones."""
    critic = Fixed(column(1.0, 2.0, 2.0, 9.0), column(4.0, 3.5, 4.0, 9.0))
    actor = FixedActor(column(0.0, 0.0), column(LOG_PROB, LOG_PROB))
    model = forced("CrossQ", actor=actor, critic=critic)
    model.policy_delay, model._update_learning_rate = 2, lambda _: None
    model.train(gradient_steps=1, batch_size=2)
    want = 0.5 * least_squares(SOFT_TARGET, (1.0, 2.0), (4.0, 3.5))
    assert model.logger.name_to_value["train/critic_loss"] == pytest.approx(want)
    moved = critic.outputs[0].flatten().tolist()
    np.testing.assert_allclose(moved[:2], [1 - 0.25 * (1 - 2.05), 2 - 0.5 * (2 - 3)], rtol=1e-6)
    assert moved[2:] == [2.0, 9.0]  # no gradient to the target
    np.testing.assert_allclose(model.reported, [[(1.05 + 1.95) / 2, 0.75]], rtol=1e-6)


def test_tqc_loss_is_that_computed_by_hand() -> None:
    """One quantile of each of two critics; nothing is dropped from the targets."""

    class Quantiles(Fixed):
        n_critics = 2

        def forward(self, *_: Any) -> Any:
            return th.stack(tuple(self.outputs), dim=1)  # (B, critics, 1)

    critic, target = (
        Quantiles(column(1.0, 2.0), column(4.0, 3.5)),
        Quantiles(column(2.0, 9.0), column(2.0, 9.0)),
    )
    actor = FixedActor(column(0.0, 0.0), column(LOG_PROB, LOG_PROB))
    model = forced("TQC", actor=actor, critic=critic, critic_target=target)
    model.top_quantiles_to_drop_per_net, model._update_learning_rate = 0, lambda _: None
    model.train(gradient_steps=1, batch_size=2)
    errors = [[1.05, 1.95], [1.0, 0.5]]
    huber = [[e - 0.5 if e > 1 else e * e / 2 for e in row] for row in errors]
    want = sum(w * 0.5 * sum(row) for w, row in zip(WEIGHTS, huber, strict=True)) / 4
    assert model.logger.name_to_value["train/critic_loss"] == pytest.approx(want)
    np.testing.assert_allclose(model.reported, [[1.5, 0.75]], rtol=1e-6)


def test_qrdqn_loss_is_that_computed_by_hand() -> None:
    class Quantiles(nn.Module):
        def __init__(self, *rows: list[list[float]]) -> None:
            super().__init__()
            self.rows = nn.Parameter(th.tensor(rows))  # (B, quantiles, actions)

        def forward(self, _: Any) -> th.Tensor:
            return self.rows

    model = made("QRDQN", ours.PrioritizedQRDQN)
    batch = BATCH | {"actions": th.tensor([[0], [1]])}
    model.replay_buffer.sample = lambda *_, **__: ours.PrioritizedReplayBufferSamples(**batch)
    reported: list[Any] = []
    model.replay_buffer.update_priorities = lambda _, errors: reported.append(errors.tolist())
    # Action 1 is greedy at the next step of row 0: quantiles 1 and 3, so targets 1.5 and 2.5.
    model.quantile_net = Quantiles([[2.0, 9.0], [2.5, 9.0]], [[9.0, 3.0], [9.0, 5.0]])
    model.quantile_net_target = Quantiles([[0.0, 1.0], [1.0, 3.0]], [[7.0, 8.0], [7.0, 8.0]])
    model.train(gradient_steps=1, batch_size=2)
    # Errors, target - quantile: row 0 -0.5, 0.5 at 1/4 and -1, 0 at 3/4; row 1 0 at 1/4, -2 at 3/4.
    first = [0.75 * 0.125 + 0.25 * 0.5, 0.25 * 0.125 + 0.0]  # of each target
    second = [0.25 * 1.5] * 2
    want = (0.5 * sum(first) + 1.0 * sum(second)) / 4
    assert model.logger.name_to_value["train/loss"] == pytest.approx(want)
    assert reported == [[[0.5], [1.0]]]


# training


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_training_moves_priorities_and_beta(name: str, n_envs: int) -> None:
    env = make_vec_env(lambda: environment(name), n_envs, seed=0)
    model = PAIRS[name][0]("MlpPolicy", env, **small())
    buffer = model.replay_buffer
    assert isinstance(buffer, ours.PrioritizedReplayBuffer)
    assert buffer.beta == 0.4
    model.learn(100)
    assert buffer.beta == 1.0
    assert len(np.unique(buffer.sample(80).weights.numpy())) > 20


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_logs_what_the_stock_class_does_and_the_replay(name: str) -> None:
    logged = []
    for cls in PAIRS[name]:
        model = made(name, cls)
        model.learn(60, log_interval=None)
        logged.append(model.logger.name_to_value)
    mine, stock = logged
    metrics = ["beta", "effective_sample_size", "max_priority", "mean_weight", "stale_updates"]
    assert sorted(set(mine) - set(stock)) == [f"replay/{name}" for name in metrics]
    assert set(stock) <= set(mine)
    assert 1 < mine["replay/effective_sample_size"] <= 16
    assert 0 < mine["replay/mean_weight"] <= 1
    assert mine["replay/max_priority"] not in (0.0, 1.0)  # new rows' before anything moved
    assert mine["replay/stale_updates"] == 0


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_the_same_seed_trains_the_same_networks(name: str) -> None:
    runs = [
        parameters(PAIRS[name][0]("MlpPolicy", environment(name), **small(seed=s)).learn(60))
        for s in (1, 1, 2)
    ]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_saved_model_comes_back_and_goes_on(name: str, tmp_path: Path) -> None:
    mine, stock = PAIRS[name]
    kwargs = {"alpha": 0.3, "beta": lambda left: 1 - left}
    model = mine("MlpPolicy", environment(name), replay_buffer_kwargs=kwargs, n_steps=3, **small())
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = mine.load(tmp_path / "model", env=environment(name))
    assert same(parameters(loaded), parameters(model))
    assert (loaded.replay_buffer.alpha, loaded.replay_buffer.n_steps) == (0.3, 3)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.beta == model.replay_buffer.beta == 1.0
    here, there = loaded.replay_buffer.sample(16), model.replay_buffer.sample(16)
    np.testing.assert_array_equal(here.keys, there.keys)
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.num_timesteps == 100
    assert loaded.replay_buffer.size() == 100
    assert loaded.replay_buffer.beta == 1.0

    observations = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    with pytest.warns(UserWarning, match="n_steps=3"):  # SB3: the buffer knows of them
        inference = stock.load(tmp_path / "model")
    np.testing.assert_array_equal(
        inference.predict(observations, deterministic=True)[0],
        model.predict(observations, deterministic=True)[0],
    )
    fresh = made(name, mine)
    fresh.set_parameters(model.get_parameters())
    assert same(fresh.policy.state_dict(), model.policy.state_dict())


def test_beta_goes_on_where_a_resumed_training_is(tmp_path: Path) -> None:
    model = made("DQN", ours.PrioritizedDQN)
    model.learn(100)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = ours.PrioritizedDQN.load(tmp_path / "model", env=environment("DQN"))
    loaded.load_replay_buffer(tmp_path / "buffer")
    betas, sample = [], loaded.replay_buffer.sample
    loaded.replay_buffer.sample = lambda *args, **kwargs: (
        betas.append(loaded.replay_buffer.beta) or sample(*args, **kwargs)
    )
    loaded.learn(100, reset_num_timesteps=False)
    assert betas[0] == pytest.approx(0.4 + 0.6 * 102 / 200)
    assert betas[-1] == 1.0
    assert betas == sorted(betas)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_n_steps_of_the_algorithm_reach_the_buffer(name: str) -> None:
    model = PAIRS[name][0]("MlpPolicy", environment(name), n_steps=4, gamma=0.9, **small())
    buffer = model.replay_buffer
    assert (buffer.n_steps, buffer.gamma, model.n_steps) == (4, 0.9, 4)
    model.learn(40)
    assert buffer.sample(9).discounts.shape == (9, 1)


def test_a_model_loaded_with_another_horizon_has_it_in_its_buffer(tmp_path: Path) -> None:
    made("DQN", ours.PrioritizedDQN, n_steps=4).save(tmp_path / "model")
    model = ours.PrioritizedDQN.load(tmp_path / "model", n_steps=2, gamma=0.7)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (2, 0.7)


def test_n_steps_of_the_buffer_take_gamma_of_the_algorithm() -> None:
    kwargs = {"n_steps": 3}
    model = made("DQN", ours.PrioritizedDQN, gamma=0.8, replay_buffer_kwargs=kwargs)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.8)
    assert kwargs == {"n_steps": 3}


@pytest.mark.parametrize(
    ("n_steps", "kwargs", "message"),
    [
        (0, {}, "n_steps must be >= 1, got 0"),
        (2, {"n_steps": 3}, "n_steps must be that of replay_buffer_kwargs, 3, got 2"),
    ],
)
def test_wrong_n_steps_are_refused(n_steps: int, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made("DQN", ours.PrioritizedDQN, n_steps=n_steps, replay_buffer_kwargs=kwargs)


def test_n_steps_work_with_dict_observations() -> None:
    class Both(Point):
        observation_space = spaces.Dict({"point": Point.observation_space})

        def _observation(self) -> Any:
            return {"point": super()._observation()}

    model = ours.PrioritizedSAC("MultiInputPolicy", Both(), n_steps=3, **small())
    model.learn(60)
    assert model.replay_buffer.sample(4).observations["point"].shape == (4, 2)


@pytest.mark.parametrize("name", ["SAC", "TQC", "CrossQ"])
def test_trains_with_state_dependent_exploration(name: str) -> None:
    PAIRS[name][0]("MlpPolicy", environment(name), use_sde=True, **small()).learn(50)


def test_callbacks_and_custom_policies_work(tmp_path: Path) -> None:
    class Policy(sb3.sac.policies.SACPolicy):
        pass

    checkpoints = CheckpointCallback(30, str(tmp_path), save_replay_buffer=True)
    evaluation = EvalCallback(environment("SAC"), eval_freq=30, verbose=0, warn=False)
    model = ours.PrioritizedSAC(Policy, environment("SAC"), **small())
    model.learn(60, callback=[checkpoints, evaluation])
    again = ours.PrioritizedSAC.load(tmp_path / "rl_model_60_steps", env=environment("SAC"))
    again.load_replay_buffer(tmp_path / "rl_model_replay_buffer_60_steps")
    assert again.replay_buffer.size() > 50
    again.learn(30)


def test_writes_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    model = ours.PrioritizedTD3(
        "MlpPolicy", environment("TD3"), tensorboard_log=str(tmp_path), **small()
    )
    model.learn(60)
    assert list(tmp_path.glob("TD3_1/events*"))


def test_observations_stored_once_train() -> None:
    model = ours.PrioritizedDQN(
        "MlpPolicy", environment("DQN"), optimize_memory_usage=True, **small()
    )
    model.learn(60)
    with pytest.warns(UserWarning, match="The last trajectory in the replay buffer"):
        model.learn(60)


def test_a_stock_algorithm_is_told_that_priorities_do_not_move() -> None:
    model = made("DQN", sb3.DQN, replay_buffer_class=ours.PrioritizedReplayBuffer, train_freq=1)
    with pytest.warns(UserWarning, match=r"Take PrioritizedDQN in place of DQN") as told:
        model.learn(250)
    assert len(told) == 1


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_another_buffer_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"replay_buffer_class must be .* got ReplayBuffer"):
        made(name, PAIRS[name][0], replay_buffer_class=sb3_buffers.ReplayBuffer)
