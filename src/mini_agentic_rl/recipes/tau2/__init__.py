"""An assistant trained on tau2-bench: the suite's own orchestrator, tools, databases and evaluator around our endpoint.

`Tau2Agent` is what a trainer runs on the rows of `load_tau2`. `episode` plays one task and scores it; it
alone imports the package. Both roles call their models through `speaker`.
"""

from .agent import ASSISTANT_AGENT_ID, USER_SIMULATOR_ID, Tau2Agent
from .tasks import DATA_DIR_VARIABLE, DOMAINS, load_tau2

__all__ = ["ASSISTANT_AGENT_ID", "DATA_DIR_VARIABLE", "DOMAINS", "USER_SIMULATOR_ID", "Tau2Agent", "load_tau2"]
