"""`AgentOpsTracer`, agent-lightning's usual tracer, and `AgentFrameworkTracer` for Microsoft's Agent Framework."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

from ...errors import UserError
from ...tracer.otel import OtelTracer, init
from ...types import Attributes
from .openai_calls import record_openai_calls


class AgentOpsTracer(OtelTracer):
    """An `OtelTracer` that also makes spans of the chat completions that others answer, as the AgentOps SDK does.

    These are the calls that the agent makes with the `openai` package and that no gateway records, streamed ones
    excepted. Nothing is sent to AgentOps. Calls of the model that is trained are recorded by the gateway, with their
    tokens, whatever client makes them. Instrumentation of your own is recorded after `init`.

    Args:
        agentops_managed, daemon: taken, and of no effect.
        instrument_managed: make those spans.
    """

    root_by_hand: ClassVar[bool] = True
    root_attributes: ClassVar[Attributes] = {"agentops.span.kind": "session"}

    def __init__(self, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True) -> None:
        super().__init__()
        self.records_openai_calls = instrument_managed
        if instrument_managed:
            record_openai_calls()


class AgentFrameworkTracer(AgentOpsTracer):
    """A tracer with the spans that Microsoft's Agent Framework makes of its agents and tools.

    It turns on the framework's own instrumentation, and `init` for this process.

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
