"""`AgentOpsTracer`, agent-lightning's usual tracer, and `AgentFrameworkTracer` for Microsoft's Agent Framework."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

from ...errors import UserError
from ...tracer.otel import OtelTracer, init
from ...types import Attributes
from .openai_calls import record_openai_calls


class AgentOpsTracer(OtelTracer):
    """An `OtelTracer` that also records chat completions of other servers, as the AgentOps SDK does.

    It records calls with the `openai` package that no gateway records, except streamed ones. Calls of the trained model
    are recorded by the gateway, with their tokens. Nothing is sent to AgentOps. After `init` your instrumentation is
    recorded too.

    Args:
        agentops_managed, daemon: ignored.
        instrument_managed: record those calls.
    """

    root_by_hand: ClassVar[bool] = True
    root_attributes: ClassVar[Attributes] = {"agentops.span.kind": "session"}

    def __init__(self, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True) -> None:
        super().__init__()
        self.records_openai_calls = instrument_managed
        if instrument_managed:
            record_openai_calls()


class AgentFrameworkTracer(AgentOpsTracer):
    """A tracer that also records the spans of agents and tools of Microsoft's Agent Framework.

    It turns on the framework's instrumentation and calls `init` for this process.

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
