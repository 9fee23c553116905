"""An assistant trained on tau2-bench: the suite's own orchestrator, tools, databases and evaluator around our endpoint.

`agent` is what a trainer runs; `episode` plays one task; `assistant` and `user` are the two sides of the conversation,
`speaker` how a side calls its model; `evaluation` is the reward. `suite` alone imports the package.
"""

from .agent import ASSISTANT_AGENT_ID, USER_SIMULATOR_ID, Tau2Agent

__all__ = ["ASSISTANT_AGENT_ID", "USER_SIMULATOR_ID", "Tau2Agent"]
