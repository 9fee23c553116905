"""An assistant for tau2-bench, with the suite's orchestrator, tools, databases and evaluator.

`Tau2Agent` runs on the rows of `load_tau2`. `episode` plays and scores a task; only this module imports the package.
"""

from .agent import ASSISTANT_AGENT_ID, USER_SIMULATOR_ID, Tau2Agent
from .tasks import DATA_DIR_VARIABLE, DOMAINS, load_tau2

__all__ = ["ASSISTANT_AGENT_ID", "DATA_DIR_VARIABLE", "DOMAINS", "USER_SIMULATOR_ID", "Tau2Agent", "load_tau2"]
