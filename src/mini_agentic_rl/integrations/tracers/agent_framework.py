"""`AgentFrameworkTracer`: traces with the spans that Microsoft's Agent Framework makes of its agents and tools."""

from __future__ import annotations

from importlib import import_module

from ...errors import UserError
from ...tracer.otel import init
from .agentops import AgentOpsTracer


class AgentFrameworkTracer(AgentOpsTracer):
    """An `OtelTracer` that turns on the framework's own instrumentation, and `init` for this process.

    Raises:
        UserError: the framework is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            observability = import_module("agent_framework.observability")
        except ImportError as error:
            raise UserError(
                "AgentFrameworkTracer needs Microsoft's Agent Framework: pip install agent-framework-core"
            ) from error
        init()
        enable = getattr(observability, "enable_instrumentation", None)
        if enable is not None:
            enable()
        else:  # versions of 2025
            observability.OBSERVABILITY_SETTINGS.enable_otel = True
