"""PrioritizedDQN by examples; test_sb3_learners has what all the algorithms have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3 import PrioritizedDQN, PrioritizedReplayBuffer

SMALL = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu"}
SHORT = SMALL | {"learning_starts": 20, "buffer_size": 200, "batch_size": 16, "train_freq": 2}


class Corridor(gym.Env[np.ndarray, int]):
    """Walk to the right end within 12 steps; reward 1 there, and a small cost on the way."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        return np.array([self.place / 5, self.time / 12], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return self._observation(), {}

    def step(self, action: int) -> Any:
        self.place += 1 if action == 1 else -1
        self.time += 1
        arrived = self.place == 5
        out_of_time = self.time == 12 or self.place == -5
        return self._observation(), 1.0 if arrived else -0.01, arrived, out_of_time, {}


def parameters(model: DQN) -> list[th.Tensor]:
    return [value.detach().clone() for value in model.policy.state_dict().values()]


def same(here: list[th.Tensor], there: list[th.Tensor]) -> bool:
    return all(th.equal(a, b) for a, b in zip(here, there, strict=True))


def fill(model: DQN, steps: int, seed: int = 0) -> None:
    """Random transitions, with rewards large enough for gradients to be clipped."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        n = model.n_envs
        model.replay_buffer.add(
            rng.normal(size=(n, 2)).astype(np.float32),
            rng.normal(size=(n, 2)).astype(np.float32),
            rng.integers(2, size=n),
            rng.normal(0, 20, size=n).astype(np.float32),
            rng.random(n) < 0.2,
            [{}] * n,
        )


def untrained(cls: type[DQN], **kwargs: Any) -> DQN:
    model = cls("MlpPolicy", Corridor(), **(SHORT | {"seed": 3} | kwargs))
    model.set_logger(configure(None, []))
    return model


# the step


def linear_model(**kwargs: Any) -> PrioritizedDQN:
    """Q(s, a) = w_a . s without a hidden layer, with weights that can be followed by hand."""
    model = untrained(
        PrioritizedDQN, policy_kwargs={"net_arch": [], "optimizer_class": th.optim.SGD}, **kwargs
    )
    for net in (model.q_net, model.q_net_target):
        layer = net.q_net[0]
        layer.weight.data = th.tensor([[1.0, 0.0], [0.0, 2.0]])
        layer.bias.data.zero_()
    return model


def forced(model: PrioritizedDQN, weights: list[float]) -> list[float]:
    """Puts a batch of two known transitions into the buffer, and returns their TD errors.

    Row 0: Q = 1.5, target = 1 + 0.5 * max(0.2, 0.8) = 1.4, so the TD error is -0.1.
    Row 1: Q = -2, target = 3, for the episode ends there, so the TD error is 5.
    """
    buffer = model.replay_buffer
    buffer.add(np.array([[1.5, 9]]), np.array([[0.2, 0.4]]), np.array([0]), [1.0], [False], [{}])
    buffer.add(np.array([[7.0, -1]]), np.array([[5.0, 5]]), np.array([1]), [3.0], [True], [{}])
    batch = buffer.sample(1)._replace(
        observations=th.from_numpy(buffer.observations[:2, 0].copy()),
        next_observations=th.from_numpy(buffer.next_observations[:2, 0].copy()),
        actions=th.from_numpy(buffer.actions[:2, 0].copy()),
        rewards=th.from_numpy(buffer.rewards[:2].copy()),
        dones=th.from_numpy(buffer.dones[:2].copy()),
        weights=th.tensor(weights)[:, None],
        keys=np.array([0, 1]),
    )
    buffer.sample = lambda *_, **__: batch
    return [-0.1, 5.0]


def test_loss_and_step_are_those_computed_by_hand() -> None:
    model = linear_model(gamma=0.5, learning_rate=0.1, max_grad_norm=1e9)
    forced(model, [0.25, 1.0])
    model.train(gradient_steps=1, batch_size=2)
    # Huber: 0.1 ** 2 / 2 and 5 - 1/2, weighed, over the two rows.
    want = (0.25 * 0.005 + 1.0 * 4.5) / 2
    assert model.logger.name_to_value["train/loss"] == pytest.approx(want, rel=1e-5)
    # d loss / d Q: weight * clip(Q - target, -1, 1) / 2, times s for the weights of the action.
    layer = model.q_net.q_net[0]
    first, second = 0.25 * 0.1 / 2, -1.0 * 1.0 / 2
    want_weights = [
        [1.0 - 0.1 * first * 1.5, 0.0 - 0.1 * first * 9],
        [0.0 - 0.1 * second * 7.0, 2.0 - 0.1 * second * -1],
    ]
    np.testing.assert_allclose(layer.weight.detach().numpy(), want_weights, rtol=1e-5, atol=1e-7)


def test_trains_in_training_mode() -> None:
    model = untrained(PrioritizedDQN)
    fill(model, 20)
    model.policy.set_training_mode(False)
    model.train(gradient_steps=1, batch_size=4)
    assert model.q_net.training


def test_td_errors_become_the_priorities() -> None:
    model = linear_model(
        gamma=0.5, replay_buffer_kwargs={"alpha": 1.0, "eps": 0.0, "stratified": True}
    )
    td_errors = np.abs(forced(model, [1.0, 1.0]))
    model.train(gradient_steps=1, batch_size=2)
    buffer = model.replay_buffer
    del buffer.sample  # the class's own again
    assert buffer.max_priority == pytest.approx(5.0)
    drawn = np.bincount(buffer.sample(5100).keys, minlength=2)
    np.testing.assert_allclose(drawn / 5100, td_errors / td_errors.sum(), atol=1 / 5100)


# training


@pytest.mark.parametrize(
    ("beta", "seen"),
    [
        (0.5, (0.5, 0.5)),
        (lambda remaining: 2 - remaining, (1.0, 2.0)),
        (kary_replay.LinearSchedule(0.0, 1.0, 20), (0.0, 1.0)),
    ],
    ids=["number", "function of progress", "schedule in samples"],
)
def test_beta_may_be_given(beta: Any, seen: tuple[float, float]) -> None:
    model = PrioritizedDQN(
        "MlpPolicy", Corridor(), seed=0, replay_buffer_kwargs={"beta": beta}, **SHORT
    )
    first = model.replay_buffer.beta
    model.learn(100)
    assert (first, model.replay_buffer.beta) == pytest.approx(seen)


def test_learns_twice_and_goes_on() -> None:
    model = PrioritizedDQN("MlpPolicy", Corridor(), seed=0, **SHORT)
    model.learn(100)
    model.learn(100, reset_num_timesteps=False)
    assert model.num_timesteps == 200
    assert model.replay_buffer.beta == 1.0
    model.learn(60)
    assert model.num_timesteps == 60
    assert model.replay_buffer.full


def test_normalized_environments_train() -> None:
    env = VecNormalize(make_vec_env(Corridor, 2, seed=0))
    model = PrioritizedDQN("MlpPolicy", env, seed=0, **SHORT)
    seen = []
    draw = model.replay_buffer.sample
    model.replay_buffer.sample = lambda n, env: seen.append(env) or draw(n, env)
    model.learn(100)
    assert set(seen) == {env}


def test_images_train() -> None:
    class Noise(Corridor):
        observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)

        def _observation(self) -> np.ndarray:
            return self.np_random.integers(0, 256, (1, 36, 36), dtype=np.uint8)

    options = SHORT | {
        "policy_kwargs": {"net_arch": [4], "features_extractor_kwargs": {"features_dim": 4}}
    }
    model = PrioritizedDQN("CnnPolicy", Noise(), seed=0, **options)
    before = parameters(model)
    model.learn(40)
    assert model.replay_buffer.observations.dtype == np.uint8
    assert not same(parameters(model), before)


# save and load


def test_a_saved_model_comes_back_and_goes_on(tmp_path: Path) -> None:
    model = PrioritizedDQN(
        "MlpPolicy",
        Corridor(),
        seed=0,
        replay_buffer_kwargs={"alpha": 0.3, "beta": lambda left: 1 - left},
        **SHORT,
    ).learn(100)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = PrioritizedDQN.load(tmp_path / "model", env=Corridor())
    assert same(parameters(loaded), parameters(model))
    assert loaded.replay_buffer.alpha == 0.3
    assert loaded.replay_buffer.size() == 0
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.size() == 100
    np.testing.assert_array_equal(
        loaded.replay_buffer.sample(16).keys, model.replay_buffer.sample(16).keys
    )
    assert loaded.replay_buffer.beta == model.replay_buffer.beta == 1.0
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded.replay_buffer.size() == 150


def test_stock_dqn_loads_the_model_for_inference(tmp_path: Path) -> None:
    model = PrioritizedDQN("MlpPolicy", Corridor(), seed=0, **SHORT).learn(100)
    model.save(tmp_path / "model")
    stock = DQN.load(tmp_path / "model")
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    mine, _ = model.predict(observations, deterministic=True)
    theirs, _ = stock.predict(observations, deterministic=True)
    np.testing.assert_array_equal(mine, theirs)


def test_a_model_of_stock_dqn_is_loaded_if_told_the_buffer(tmp_path: Path) -> None:
    DQN("MlpPolicy", Corridor(), seed=0, **SHORT).save(tmp_path / "model")
    with pytest.raises(
        TypeError, match=r"replay_buffer_class must be a subclass of .* got ReplayBuffer"
    ):
        PrioritizedDQN.load(tmp_path / "model")
    model = PrioritizedDQN.load(
        tmp_path / "model", env=Corridor(), replay_buffer_class=PrioritizedReplayBuffer
    )
    model.learn(60)


# refusals


def test_a_subclass_of_the_buffer_is_taken() -> None:
    class Mine(PrioritizedReplayBuffer):
        pass

    model = untrained(PrioritizedDQN, replay_buffer_class=Mine)
    assert type(model.replay_buffer) is Mine


def test_another_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"replay_buffer_class must be .* got ReplayBuffer"):
        untrained(PrioritizedDQN, replay_buffer_class=ReplayBuffer)
    stock, model = untrained(DQN), untrained(PrioritizedDQN)
    stock.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    with pytest.raises(TypeError, match="replay_buffer must be a PrioritizedReplayBuffer"):
        model.train(1, 4)


def test_what_the_buffer_refuses_the_algorithm_refuses() -> None:
    with pytest.raises(ValueError, match="alpha"):
        untrained(PrioritizedDQN, replay_buffer_kwargs={"alpha": -1.0})
