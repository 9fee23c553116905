"""An assistant trained on tau2-bench: the suite's own orchestrator, tools, databases and evaluator around our endpoint.

`Tau2Agent` is what a trainer runs on the rows of `load_tau2`. One task is played by `episode`, by two roles
(`roles`) that call their models through `speaker`; `evaluation` is the reward. `suite` alone imports the package.
"""

from .agent import ASSISTANT_AGENT_ID, USER_SIMULATOR_ID, Tau2Agent
from .tasks import DATA_DIR_VARIABLE, DOMAINS, load_tau2

__all__ = ["ASSISTANT_AGENT_ID", "DATA_DIR_VARIABLE", "DOMAINS", "USER_SIMULATOR_ID", "Tau2Agent", "load_tau2"]
