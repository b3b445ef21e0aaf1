"""Trainings in Tianshou that differ in their buffer alone, a training step at a time.

A step is the trainer's own: 10 environments step once, `hasnull` is asked, and the networks are
updated once.  Buffers are full when it begins: of random rows, as the environment's are.  Whose
networks choose among actions asks them and then acts at random: the end of an episode costs more
than what is compared here, and a rival whose policy has luck would have fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import tianshou.data
import torch
from tianshou import algorithm as ts
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector
from tianshou.env import DummyVectorEnv
from tianshou.env.atari.atari_network import DQNet
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import NoisyLinear

ENVS = 10
FRAMES = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
OPTIM = AdamOptimizerFactory(lr=1e-3)


# Environments


def pong() -> gym.Env:
    """Stacks of 4 frames of (84, 84), of which the buffer keeps the newest."""
    import ale_py

    gym.register_envs(ale_py)
    rows_and_columns = np.ix_(
        np.linspace(0, 209, 84).astype(int), np.linspace(0, 159, 84).astype(int)
    )
    env = gym.wrappers.TransformObservation(
        gym.make("ALE/Pong-v5", obs_type="grayscale", frameskip=4),
        lambda frame: frame[rows_and_columns],
        gym.spaces.Box(0, 255, (84, 84), np.uint8),
    )
    return gym.wrappers.FrameStackObservation(env, 4)


ENVIRONMENTS: dict[str, Callable[[], gym.Env]] = {
    "CartPole": lambda: gym.make("CartPole-v1"),
    "Pendulum": lambda: gym.make("Pendulum-v1"),
    "Pong": pong,
}


# Algorithms


def dqn(env: gym.Env) -> Any:
    net = Net(state_shape=env.observation_space.shape, action_shape=2, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.1)
    return ts.DQN, {"policy": policy, "optim": OPTIM, "target_update_freq": 100} | STEPS


def frames_dqn(env: gym.Env) -> Any:
    net = DQNet(c=4, h=84, w=84, action_shape=env.action_space.n)
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.1)
    return ts.DQN, {"policy": policy, "optim": OPTIM, "target_update_freq": 100} | STEPS


def categorical(env: gym.Env, linear_layer: Any = torch.nn.Linear) -> C51Policy:
    net = Net(
        state_shape=env.observation_space.shape,
        action_shape=2,
        hidden_sizes=[64, 64],
        softmax=True,
        num_atoms=51,
        linear_layer=linear_layer,
    )
    return C51Policy(model=net, action_space=env.action_space, eps_training=0.1)


def c51(env: gym.Env) -> Any:
    return ts.C51, {"policy": categorical(env), "optim": OPTIM, "target_update_freq": 100} | STEPS


def rainbow(env: gym.Env) -> Any:
    policy = categorical(env, lambda *sizes: NoisyLinear(*sizes, 0.1))
    return ts.RainbowDQN, {"policy": policy, "optim": OPTIM, "target_update_freq": 100} | STEPS


def critic(env: gym.Env) -> ContinuousCritic:
    return ContinuousCritic(
        preprocess_net=Net(
            state_shape=env.observation_space.shape,
            action_shape=env.action_space.shape,
            hidden_sizes=[64, 64],
            concat=True,
        )
    )


def body(env: gym.Env) -> dict[str, Any]:
    net = Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64])
    return {"preprocess_net": net, "action_shape": env.action_space.shape, "max_action": 2.0}


def ddpg(env: gym.Env, cls: Any = ts.DDPG) -> Any:
    actor = ContinuousActorDeterministic(**body(env))
    policy = ContinuousDeterministicPolicy(actor=actor, action_space=env.action_space)
    return cls, {
        "policy": policy,
        "policy_optim": OPTIM,
        "critic": critic(env),
        "critic_optim": OPTIM,
    }


def td3(env: gym.Env) -> Any:
    return ddpg(env, ts.TD3)


def sac(env: gym.Env) -> Any:
    actor = ContinuousActorProbabilistic(**body(env), unbounded=True, conditioned_sigma=True)
    policy = SACPolicy(actor=actor, action_space=env.action_space)
    return ts.SAC, {
        "policy": policy,
        "policy_optim": OPTIM,
        "critic": critic(env),
        "critic_optim": OPTIM,
    }


STEPS = {"n_step_return_horizon": 3}
ALGORITHMS = {
    "DQN": (dqn, "CartPole"),
    "C51": (c51, "CartPole"),
    "Rainbow": (rainbow, "CartPole"),
    "SAC": (sac, "Pendulum"),
    "TD3": (td3, "Pendulum"),
    "DDPG": (ddpg, "Pendulum"),
    "DQN of frames": (frames_dqn, "Pong"),
}


# Trainings


class Patched:
    """In front of Tianshou's buffers: without the one fault that hides everything else."""

    def hasnull(self) -> bool:
        return False


def training_step(name: str, buffer: Any, mixin: type = object, seed: int = 0) -> Callable[[], Any]:
    """The next step of a training, whenever it is called."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (Tianshou explores with it)
    make, environment = ALGORITHMS[name]
    make_env = ENVIRONMENTS[environment]
    cls, arguments = make(make_env())
    if mixin is not object:
        cls = type(cls.__name__, (mixin, cls), {})
    algorithm = cls(**arguments)
    if isinstance(algorithm.policy, DiscreteQLearningPolicy):
        algorithm.policy.set_eps_training(1.0)
    envs = DummyVectorEnv([make_env] * ENVS)
    envs.seed(seed)
    collector = Collector(algorithm.policy, envs, buffer, exploration_noise=True)
    collector.reset(reset_buffer=False)
    trainer = algorithm.create_trainer(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_in_training=False,
            collection_step_num_env_steps=ENVS,
            update_step_num_gradient_steps_per_sample=1 / ENVS,
            batch_size=64,
            show_progress=False,
            verbose=False,
        )
    )
    trainer.reset()
    return trainer._training_step


def fill(buffer: tianshou.data.ReplayBuffer, env: gym.Env, seed: int = 0) -> None:
    """Random rows, until all are written; an episode ends at every 50th step of them."""
    rng = np.random.default_rng(seed)
    space, action = env.observation_space, env.action_space
    env.reset(seed=seed)
    for step in range(buffer.maxsize // ENVS):
        if step % 1000 < 1 or space.shape == (4, 84, 84):
            if np.issubdtype(space.dtype, np.integer):
                obs = rng.integers(256, size=(ENVS, *space.shape), dtype=np.uint8)
            else:
                obs = rng.normal(size=(ENVS, *space.shape)).astype(space.dtype)
            act = np.array([action.sample() for _ in range(ENVS)])
        buffer.add(
            Batch(
                obs=obs,
                obs_next=obs,
                act=act,
                rew=rng.normal(size=ENVS),
                terminated=np.full(ENVS, step % 50 == 49),
                truncated=np.zeros(ENVS, bool),
                info=Batch(env_id=np.arange(ENVS)),
                policy=Batch(),
            )
        )
