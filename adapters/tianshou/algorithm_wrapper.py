"""Our algorithms for Tianshou's experiment builders, which make Tianshou's.

The builders let a factory exchange the algorithm that they have made:
`builder.with_algorithm_wrapper_factory(PrioritizedAlgorithmFactory())`.
"""

from __future__ import annotations

from typing import Any

from tianshou.algorithm.algorithm_base import Algorithm, OffPolicyAlgorithm
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSAC
from tianshou.algorithm.modelfree.dqn import DQN
from tianshou.algorithm.modelfree.redq import REDQ
from tianshou.algorithm.modelfree.sac import SAC
from tianshou.algorithm.modelfree.td3 import TD3
from tianshou.highlevel.params.algorithm_wrapper import AlgorithmWrapperFactory

from . import algorithms

INSTEAD_OF: dict[type, type[Any]] = {
    DQN: algorithms.PrioritizedDQN,
    TD3: algorithms.PrioritizedTD3,
    SAC: algorithms.PrioritizedSAC,
    DiscreteSAC: algorithms.PrioritizedDiscreteSAC,
    REDQ: algorithms.PrioritizedREDQ,
}
STOCK = tuple(INSTEAD_OF)
OURS = (*INSTEAD_OF.values(), algorithms.AbsoluteTDErrors, algorithms.ReportsErrors)


class PrioritizedAlgorithmFactory(AlgorithmWrapperFactory[Any]):
    """Algorithms whose weights and priorities are right, in place of those of the builders.

    DDPG and IQN need none, and stay what they are.  Raises TypeError for an algorithm that does
    not learn from a replay buffer, and for a subclass of one that has a class of ours.
    """

    def create_wrapped_algorithm(
        self,
        policy: Algorithm[Any, Any],  # Tianshou's name for the algorithm
        envs: Any,  # noqa: ARG002
        optim_factory: Any,  # noqa: ARG002
        device: Any,  # noqa: ARG002
    ) -> Algorithm[Any, Any]:
        """The same algorithm, networks and optimizers included, as one of ours."""
        if not isinstance(policy, OffPolicyAlgorithm):
            raise TypeError(f"a prioritized algorithm must be off-policy, got {policy}")
        ours = INSTEAD_OF.get(type(policy))
        if ours is not None:
            policy.__class__ = ours  # which differs in methods alone
        elif isinstance(policy, STOCK) and not isinstance(policy, OURS):
            raise TypeError(
                "a prioritized algorithm must be one of ours, or of its subclasses, got "
                f"{type(policy).__name__}, whose weights or TD errors may go wrong: "
                "derive it from our class"
            )
        return policy
