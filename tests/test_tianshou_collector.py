"""Our buffers and algorithms in what Tianshou's experiment builders make."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tianshou")

import gymnasium as gym
import tianshou.data
from tianshou.algorithm import DDPG, DQN, TD3
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

from kary_replay.adapters import tianshou as ours
from kary_replay.adapters.tianshou import algorithms
from kary_replay.adapters.tianshou.algorithm_wrapper import PrioritizedAlgorithmFactory
from kary_replay.adapters.tianshou.collector import CollectorFactory, PrioritizedCollectorFactory

PRIORITIZED = PrioritizedCollectorFactory(alpha=0.5, beta=0.3, weight_norm=False, random_seed=5)


def collector_of(factory: CollectorFactory, buffer: Any, envs: int) -> Any:
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[4]),
        action_space=gym.spaces.Discrete(2),
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    vector_env = DummyVectorEnv([lambda: gym.make("CartPole-v1")] * envs)
    return factory.create_collector(algorithm, vector_env, buffer, exploration_noise=True)


@pytest.mark.parametrize(
    ("factory", "envs", "cls"),
    [
        (CollectorFactory(), 1, ours.ReplayBuffer),
        (CollectorFactory(), 3, ours.VectorReplayBuffer),
        (PRIORITIZED, 1, ours.PrioritizedReplayBuffer),
        (PRIORITIZED, 3, ours.PrioritizedVectorReplayBuffer),
    ],
)
def test_training_collectors_fill_our_buffers(
    factory: CollectorFactory, envs: int, cls: type
) -> None:
    options = {"stack_num": 2, "ignore_obs_next": True, "save_only_last_obs": False}
    if envs == 1:
        theirs = tianshou.data.ReplayBuffer(30, **options)
    else:
        theirs = tianshou.data.VectorReplayBuffer(30, envs, **options)
    collector = collector_of(pickle.loads(pickle.dumps(factory)), theirs, envs)
    assert type(collector.buffer) is cls
    assert collector.buffer.maxsize == theirs.maxsize
    assert theirs.options.items() <= collector.buffer.options.items()
    collector.reset()
    collector.collect(n_step=12)
    assert len(collector.buffer) == 12
    assert collector.buffer.sample(4)[0].obs.shape == (4, 2, 4)


def test_the_arguments_reach_the_buffer() -> None:
    buffer = collector_of(PRIORITIZED, tianshou.data.VectorReplayBuffer(30, 3), 3).buffer
    assert (buffer._alpha, buffer.beta, buffer._sampler.weight_norm) == (0.5, 0.3, "none")


def test_an_evaluation_has_no_buffer_of_ours() -> None:
    assert type(collector_of(PRIORITIZED, None, 2).buffer) is tianshou.data.VectorReplayBuffer


@pytest.mark.filterwarnings("ignore")
def test_the_experiment_builder_trains_on_our_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rliable", reason="the builders need tianshou[eval]")
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "examples")
    from tianshou_experiment import make_experiment

    result = make_experiment(epochs=1, epoch_steps=200).run()
    buffer = result.world.training_collector.buffer
    assert type(buffer) is ours.PrioritizedVectorReplayBuffer
    assert len(buffer) == 200
    assert buffer.beta == 1.0  # all draws of the schedule were made


def builders() -> dict[str, Any]:
    from tianshou.highlevel import experiment
    from tianshou.highlevel.env import EnvFactoryRegistered, VectorEnvType

    def made(name: str, task: str) -> Any:
        builder = getattr(experiment, f"{name}ExperimentBuilder")(
            EnvFactoryRegistered(task=task, venv_type=VectorEnvType.DUMMY),
            experiment.ExperimentConfig(persistence_enabled=False, watch=False),
            OffPolicyTrainingConfig(
                max_epochs=1,
                epoch_num_steps=40,
                batch_size=8,
                num_training_envs=2,
                num_test_envs=1,
                test_step_num_episodes=1,
                buffer_size=100,
                collection_step_num_env_steps=20,
                update_step_num_gradient_steps_per_sample=0.1,
            ),
        )
        return builder.with_collector_factory(PRIORITIZED)

    from tianshou.highlevel.config import OffPolicyTrainingConfig

    return {
        "DQN": made("DQN", "CartPole-v1").with_model_factory_default(hidden_sizes=(4,)),
        "DiscreteSAC": made("DiscreteSAC", "CartPole-v1"),
        **{name: made(name, "Pendulum-v1") for name in ("TD3", "SAC", "REDQ", "DDPG")},
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["DQN", "DiscreteSAC", "TD3", "SAC", "REDQ", "DDPG"])
def test_builders_train_our_algorithms(name: str) -> None:
    pytest.importorskip("rliable", reason="the builders need tianshou[eval]")
    builder = builders()[name].with_algorithm_wrapper_factory(PrioritizedAlgorithmFactory())
    world = builder.build().run().world
    assert type(world.algorithm) is getattr(algorithms, f"Prioritized{name}", DDPG)
    buffer = world.training_collector.buffer
    assert len(set(buffer.weight[buffer.sample_indices(0)].tolist())) > 10


def test_what_does_not_replay_is_refused() -> None:
    reinforce = SimpleNamespace()
    with pytest.raises(TypeError, match="must be off-policy"):
        PrioritizedAlgorithmFactory().create_wrapped_algorithm(reinforce, None, None, None)


@pytest.mark.parametrize("base", [algorithms.AbsoluteTDErrors, object])
def test_a_subclass_stays_what_it_is_or_is_refused(base: type) -> None:
    cls = type("OwnTD3", (TD3,) if base is object else (base, TD3), {})
    own = cls.__new__(cls)
    wrap = PrioritizedAlgorithmFactory().create_wrapped_algorithm
    if base is object:
        with pytest.raises(TypeError, match="got OwnTD3, whose weights or TD errors"):
            wrap(own, None, None, None)
    else:
        assert wrap(own, None, None, None) is own
    assert type(own) is cls
