"""`AgentOpsTracer`: agent-lightning's usual tracer, for code that makes one."""

from __future__ import annotations

from typing import ClassVar

from ...tracer.otel import OtelTracer
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
