"""Tianshou's algorithms on our buffers: which TD errors and weights reach what."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

import gymnasium as gym
import torch
from tianshou import algorithm as stock
from tianshou.algorithm.algorithm_base import Algorithm, policy_within_training_step
from tianshou.algorithm.imitation.bcq import BCQPolicy
from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.modelfree.bdqn import BDQNPolicy
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSACPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.fqf import FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.redq import REDQPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch
from tianshou.utils.net.common import MLP, Net
from tianshou.utils.net.continuous import (
    VAE,
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
    Perturbation,
)
from tianshou.utils.net.discrete import (
    DiscreteActor,
    DiscreteCritic,
    FractionProposalNetwork,
    FullQuantileFunction,
    ImplicitQuantileNetwork,
    IntrinsicCuriosityModule,
)

from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from kary_replay.adapters.tianshou import algorithms as ours
from kary_replay.adapters.tianshou.n_step import NStepReturnsOfRows

OPTIM = AdamOptimizerFactory(lr=1e-3)
BOX = gym.spaces.Box(-1.0, 1.0, (1,))
CHOICES = gym.spaces.Discrete(2)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)


def filled(act: np.ndarray, **keywords: Any) -> PrioritizedVectorReplayBuffer:
    """2 x 8 rows of reward 0 that all end their episodes: every return is 0."""
    buffer = PrioritizedVectorReplayBuffer(16, 2, alpha=1.0, beta=1.0, eps=0.0, **keywords)
    rng = np.random.default_rng(0)
    for _ in range(8):
        obs = rng.normal(size=(2, 3)).astype(np.float32)
        buffer.add(
            Batch(
                obs=obs,
                obs_next=obs,
                act=act,
                rew=np.zeros(2),
                terminated=np.ones(2, bool),
                truncated=np.zeros(2, bool),
                info=Batch(),
                policy=Batch(),
            )
        )
    return buffer


def update(algorithm: Algorithm, buffer: Any, batch_size: int = 64) -> Any:
    with policy_within_training_step(algorithm.policy):
        return algorithm._update(batch_size, buffer, algorithm._update_with_batch)


class Constant(torch.nn.Module):
    """Says the same whatever it is asked; `shape` goes behind the batch's."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, obs: Any, act: Any = None, **_: Any) -> torch.Tensor:
        return self.values.expand(len(obs), -1)


class Ensemble(Constant):
    def forward(self, obs: Any, act: Any = None, **_: Any) -> torch.Tensor:
        return self.values[:, None, None].expand(-1, len(obs), 1)


class Branches(Constant):
    num_branches, action_per_branch = 2, 2

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return self.values[None, :, None].expand(len(obs), -1, 2), state


# Errors that cancel


def continuous(actor_critic: Any) -> dict[str, Any]:
    return {
        "policy_optim": OPTIM,
        "critic": Constant(5.0),
        "critic_optim": OPTIM,
        "critic2": Constant(-5.0),
        "critic2_optim": OPTIM,
    }


def deterministic_policy() -> ContinuousDeterministicPolicy:
    actor = ContinuousActorDeterministic(
        preprocess_net=Net(state_shape=3, hidden_sizes=[4]), action_shape=1
    )
    return ContinuousDeterministicPolicy(actor=actor, action_space=BOX)


def gaussian_actor() -> ContinuousActorProbabilistic:
    return ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=3, hidden_sizes=[4]),
        action_shape=1,
        unbounded=True,
        conditioned_sigma=True,
    )


def td3(cls: Any) -> Any:
    return cls(policy=deterministic_policy(), **continuous(cls))


def sac(cls: Any) -> Any:
    return cls(policy=SACPolicy(actor=gaussian_actor(), action_space=BOX), **continuous(cls))


def redq(cls: Any) -> Any:
    return cls(
        policy=REDQPolicy(actor=gaussian_actor(), action_space=BOX),
        policy_optim=OPTIM,
        critic=Ensemble(5.0, -5.0),
        critic_optim=OPTIM,
        ensemble_size=2,
        actor_delay=1,
    )


def discrete_sac(cls: Any) -> Any:
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=3, hidden_sizes=[4]), action_shape=2, softmax_output=False
    )
    return cls(
        policy=DiscreteSACPolicy(actor=actor, action_space=CHOICES),
        policy_optim=OPTIM,
        critic=Constant(5.0, 5.0),
        critic_optim=OPTIM,
        critic2=Constant(-5.0, -5.0),
        critic2_optim=OPTIM,
    )


def bdqn(cls: Any) -> Any:
    policy = BDQNPolicy(model=Branches(5.0, -5.0), action_space=CHOICES)
    return cls(policy=policy, optim=OPTIM)


REAL, CHOICE, TWO_CHOICES = np.zeros((2, 1)), np.zeros(2, int), np.zeros((2, 2), int)


@pytest.mark.parametrize(
    "whose", [pytest.param("stock", marks=pytest.mark.xfail(strict=True)), "ours"]
)
@pytest.mark.parametrize(
    ("make", "name", "act", "priority"),
    [
        (td3, "TD3", REAL, 5.0),
        (td3, "TD3BC", REAL, 5.0),
        (sac, "SAC", REAL, 5.0),
        (redq, "REDQ", REAL, 5.0),
        (discrete_sac, "DiscreteSAC", CHOICE, 5.0),
        (bdqn, "BDQN", TWO_CHOICES, 10.0),
    ],
)
def test_errors_of_several_critics_do_not_cancel(
    whose: str, make: Any, name: str, act: np.ndarray, priority: float
) -> None:
    """Critics that are off by 5 and by -5."""
    cls = getattr(ours, f"Prioritized{name}") if whose == "ours" else getattr(stock, name)
    buffer = filled(act)
    update(make(cls), buffer)
    assert buffer.weight[np.arange(16)].tolist() == pytest.approx([priority] * 16)


# Nothing to put right


def net(**keywords: Any) -> Net:
    return Net(state_shape=3, hidden_sizes=[4], **keywords)


def c51(cls: Any = stock.C51) -> Any:
    model = net(action_shape=2, softmax=True, num_atoms=51)
    return cls(policy=C51Policy(model=model, action_space=CHOICES), optim=OPTIM)


def rainbow() -> Any:
    return c51(stock.RainbowDQN)


def qrdqn(cls: Any = stock.QRDQN) -> Any:
    policy = QRDQNPolicy(model=net(action_shape=2, num_atoms=5), action_space=CHOICES)
    return cls(policy=policy, optim=OPTIM, num_quantiles=5)


def discrete_cql() -> Any:
    return qrdqn(stock.DiscreteCQL)


def iqn() -> Any:
    model = ImplicitQuantileNetwork(preprocess_net=net(), action_shape=2)
    return stock.IQN(policy=IQNPolicy(model=model, action_space=CHOICES), optim=OPTIM)


def fqf() -> Any:
    policy = FQFPolicy(
        model=FullQuantileFunction(preprocess_net=net(), action_shape=2),
        fraction_model=FractionProposalNetwork(num_fractions=5, embedding_dim=4),
        action_space=CHOICES,
    )
    return stock.FQF(policy=policy, optim=OPTIM, fraction_optim=OPTIM, num_fractions=5)


def ddpg() -> Any:
    return stock.DDPG(
        policy=deterministic_policy(), policy_optim=OPTIM, critic=critic(), critic_optim=OPTIM
    )


def icm() -> Any:
    model = IntrinsicCuriosityModule(
        feature_net=torch.nn.Linear(3, 4), feature_dim=4, action_dim=2, hidden_sizes=[4]
    )
    return stock.ICMOffPolicyWrapper(
        wrapped_algorithm=dqn(stock.DQN),
        model=model,
        optim=OPTIM,
        lr_scale=1.0,
        reward_scale=0.0,
        forward_loss_weight=0.2,
    )


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (lambda: dqn(stock.DQN), CHOICE),
        (c51, CHOICE),
        (rainbow, CHOICE),
        (qrdqn, CHOICE),
        (iqn, CHOICE),
        (fqf, CHOICE),
        (discrete_cql, CHOICE),
        (ddpg, REAL.astype(np.float32)),
        (icm, CHOICE),
    ],
    ids=["DQN", "C51", "Rainbow", "QRDQN", "IQN", "FQF", "DiscreteCQL", "DDPG", "ICM"],
)
def test_these_weigh_their_losses_and_report_errors_as_they_are(make: Any, act: Any) -> None:
    before = np.arange(1.0, 17.0)
    buffer, algorithm = filled(act), make()
    buffer.update_weight(np.arange(16), before)
    parameters, priorities = [], []
    for beta in (0.0, 1.0):
        alike, same = copy.deepcopy(buffer), copy.deepcopy(algorithm)
        alike.set_beta(beta)
        torch.manual_seed(1)
        update(same, alike)
        priorities.append(alike.weight[np.arange(16)])
        update(same, alike)  # Adam's first step knows little but signs
        parameters.append(torch.cat([p.detach().flatten() for p in same.parameters()]))
    assert not torch.equal(*parameters)
    np.testing.assert_array_equal(*priorities)  # of errors, not of weights
    assert (priorities[0] != before).sum() > 8


# Losses without weights


def dqn(cls: Any, **keywords: Any) -> Any:
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=3, action_shape=2, hidden_sizes=[4]), action_space=CHOICES
    )
    return cls(policy=policy, optim=OPTIM, **keywords)


@pytest.mark.parametrize(
    "cls", [pytest.param(stock.DQN, marks=pytest.mark.xfail(strict=True)), ours.PrioritizedDQN]
)
def test_a_huber_loss_is_weighted(cls: Any) -> None:
    buffer = filled(CHOICE)
    buffer.update_weight(np.arange(16), np.arange(1.0, 17.0))
    algorithm = dqn(cls, huber_loss_delta=1.0)
    losses = []
    for beta in (0.0, 1.0):
        alike, same = copy.deepcopy(buffer), copy.deepcopy(algorithm)
        alike.set_beta(beta)
        losses.append(update(same, alike).loss)
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.parametrize("delta", [None, 1.0])
def test_with_weights_of_1_it_is_tianshous_dqn(delta: float | None) -> None:
    algorithms = []
    for cls in (stock.DQN, ours.PrioritizedDQN):
        torch.manual_seed(1)
        algorithms.append(dqn(cls, huber_loss_delta=delta, target_update_freq=2))
        buffer = filled(CHOICE)
        buffer.set_beta(0.0)
        for _ in range(4):
            update(algorithms[-1], buffer)
    theirs, mine = ([*algorithm.policy.parameters()] for algorithm in algorithms)
    assert all(torch.equal(*pair) for pair in zip(theirs, mine, strict=True))


# No TD errors at all


def imitation(cls: Any = stock.OffPolicyImitationLearning) -> Any:
    actor = DiscreteActor(preprocess_net=Net(state_shape=3, hidden_sizes=[4]), action_shape=2)
    policy = ImitationPolicy(actor=actor, action_space=CHOICES)
    return cls(policy=policy, optim=OPTIM)


def discrete_bcq() -> Any:
    nets = [
        DiscreteActor(
            preprocess_net=Net(state_shape=3, hidden_sizes=[4]),
            action_shape=2,
            softmax_output=False,
        )
        for _ in range(2)
    ]
    policy = DiscreteBCQPolicy(model=nets[0], imitator=nets[1], action_space=CHOICES)
    return stock.DiscreteBCQ(policy=policy, optim=OPTIM)


def discrete_crr() -> Any:
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=3, hidden_sizes=[4]), action_shape=2, softmax_output=False
    )
    critic = DiscreteCritic(preprocess_net=Net(state_shape=3, hidden_sizes=[4]), last_size=2)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=CHOICES,
    )
    return stock.DiscreteCRR(policy=policy, critic=critic, optim=OPTIM)


def critic() -> ContinuousCritic:
    return ContinuousCritic(
        preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=[4], concat=True)
    )


def cql() -> Any:
    policy = SACPolicy(actor=gaussian_actor(), action_space=BOX)
    return stock.CQL(
        policy=policy, policy_optim=OPTIM, critic=critic(), critic_optim=OPTIM, calibrated=False
    )


def bcq() -> Any:
    encoder = MLP(input_dim=4, hidden_sizes=[4])
    decoder = MLP(input_dim=5, output_dim=1, hidden_sizes=[4])
    vae = VAE(
        encoder=encoder,
        decoder=decoder,
        hidden_dim=4,
        latent_dim=2,
        max_action=1.0,
    )
    perturbation = Perturbation(
        preprocess_net=MLP(input_dim=4, output_dim=1, hidden_sizes=[4]), max_action=1.0, phi=0.05
    )
    policy = BCQPolicy(actor_perturbation=perturbation, action_space=BOX, critic=critic(), vae=vae)
    return stock.BCQ(
        policy=policy,
        actor_perturbation_optim=OPTIM,
        critic_optim=OPTIM,
        vae_optim=OPTIM,
    )


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (imitation, CHOICE),
        (lambda: imitation(OfflineImitationLearning), CHOICE),
        (discrete_bcq, CHOICE),
        (discrete_crr, CHOICE),
        (cql, REAL.astype(np.float32)),
        (bcq, REAL.astype(np.float32)),
    ],
)
def test_algorithms_without_td_errors_are_refused(make: Any, act: np.ndarray) -> None:
    algorithm, buffer = make(), filled(act)
    with pytest.raises(ValueError, match="algorithm has no TD errors to report"):
        update(algorithm, buffer)
    assert buffer.weight[np.arange(16)].tolist() == [1.0] * 16


# Several agents


def agents_rows(buffer: Any) -> None:
    """Agent a moves in the first sub-buffer, agent b in the other one."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        obs = Batch(agent_id=np.array(["a", "b"]), obs=rng.normal(size=(2, 3)).astype(np.float32))
        buffer.add(
            Batch(
                obs=obs,
                obs_next=obs,
                act=CHOICE,
                rew=np.array([[1.0, 0.0], [0.0, 2.0]]),
                terminated=np.ones(2, bool),
                truncated=np.zeros(2, bool),
                info=Batch(),
                policy=Batch(),
            )
        )


@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(stock.MultiAgentOffPolicyAlgorithm, marks=pytest.mark.xfail(strict=True)),
        ours.PrioritizedMultiAgentOffPolicyAlgorithm,
    ],
)
def test_td_errors_of_every_agent_reach_the_buffer(cls: Any) -> None:
    env: Any = SimpleNamespace(agents=["a", "b"], agent_idx={"a": 0, "b": 1})
    algorithm = cls(algorithms=[dqn(stock.DQN), dqn(stock.DQN)], env=env)
    buffer = PrioritizedVectorReplayBuffer(16, 2, alpha=1.0, beta=1.0, eps=0.0)
    agents_rows(buffer)
    values = [
        agent.policy(Batch(obs=buffer.obs.obs[rows], info=Batch())).logits[:, 0].detach().numpy()
        for agent, rows in zip(
            (algorithm.get_algorithm("a"), algorithm.get_algorithm("b")),
            (slice(0, 8), slice(8, 16)),
            strict=True,
        )
    ]
    update(algorithm, buffer)
    want = np.abs(np.concatenate([1.0 - values[0], 2.0 - values[1]]))
    np.testing.assert_allclose(buffer.weight[np.arange(16)], want, rtol=1e-5)


# n-step returns


@pytest.mark.parametrize("n_step", [1, 3, 10])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("ignore_obs_next", [False, True])
def test_n_step_returns_of_rows_are_tianshous(
    n_step: int, columns: int, ignore_obs_next: bool
) -> None:
    rng = np.random.default_rng(n_step)
    buffer = VectorReplayBuffer(60, 3, ignore_obs_next=ignore_obs_next)
    for _ in range(33):
        buffer.add(
            Batch(
                obs=rng.normal(size=(3, columns)),
                obs_next=rng.normal(size=(3, columns)),
                act=np.zeros(3),
                rew=rng.normal(size=3),
                terminated=rng.random(3) < 0.1,
                truncated=rng.random(3) < 0.1,
                info=Batch(),
            )
        )
    indices = buffer.sample_indices(40)
    returns = []
    for compute in (Algorithm.compute_nstep_return, NStepReturnsOfRows.compute_nstep_return):
        batch = buffer[indices]
        batch.weight = np.ones(40)
        batch = compute(batch, buffer, indices, value_of_next, 0.9, n_step)
        assert batch.weight.dtype == torch.float32
        returns.append(batch.returns)
    assert returns[0].dtype == returns[1].dtype
    assert torch.equal(*returns)


def value_of_next(buffer: Any, rows: np.ndarray) -> torch.Tensor:
    return torch.tensor(buffer[rows].obs_next, dtype=torch.float32)


def test_n_step_returns_of_rows_copy_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unique(np.ndarray[Any, Any]):
        def copy(self, order: Any = "C") -> Any:
            raise AssertionError("a whole column was copied")

    class Steps(NStepReturnsOfRows, stock.DQN[Any]):
        pass

    buffer = filled(CHOICE)
    buffer._meta.done = buffer._meta.done.view(Unique)
    update(dqn(Steps, n_step_return_horizon=3), buffer)
    with pytest.raises(AssertionError, match="whole column"):
        update(dqn(stock.DQN, n_step_return_horizon=3), buffer)


class AsksForAllRows(stock.DQN[Any]):
    """As an algorithm may that is not one of Tianshou's."""

    def _target_q(self, buffer: Any, indices: np.ndarray) -> torch.Tensor:
        rows = buffer[indices]
        assert len(rows) == len(indices)
        assert len(buffer) == 16
        np.testing.assert_array_equal(rows["rew"], buffer.rew[indices])
        return self.policy(rows).logits.max(dim=1)[0]


def test_n_step_returns_of_rows_give_more_than_obs_next_when_asked() -> None:
    class Steps(NStepReturnsOfRows, AsksForAllRows):
        pass

    losses = []
    for cls in (AsksForAllRows, Steps):
        torch.manual_seed(1)
        losses.append(update(dqn(cls), filled(CHOICE)).loss)
    assert losses[0] == losses[1]
