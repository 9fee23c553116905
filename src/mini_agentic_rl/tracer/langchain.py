"""Spans of runs of LangChain and LangGraph: agents, nodes and tools.

The gateway records LLM calls. A span of this handler that encloses a call in time names the agent of the call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from ..semconv import CompletionSpanAttributes, LightningSpanAttributes
from ..types import Attributes
from .spans import OpenSpan

CHAIN_TYPE: Final = "langchain.chain.type"
_TOOL_NAME: Final = "gen_ai.tool.name"
_AGENT_KEYS: Final = ("lc_agent_name", "langgraph_node")
"""Keys of the agent's name in the metadata of a run, the most reliable first."""


class LangChainHandler(BaseCallbackHandler):  # type: ignore[misc,unused-ignore]  # the package may be absent
    """Callback handler that records runs as spans.

    Give it to a run as `config={"callbacks": [handler]}`. One object serves any number of runs at once.
    """

    run_inline = True  # in the task of the rollout, which has the open trace

    def __init__(self, begin: Callable[[str, Attributes, float], OpenSpan]) -> None:
        """`begin` begins a span from a name, attributes and a time in seconds since the epoch."""
        super().__init__()
        self._begin_span = begin
        self._lock = threading.Lock()
        self._open: dict[UUID, OpenSpan] = {}

    def on_chain_start(
        self,
        serialized: Mapping[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Begin the span of a runnable, a node or a graph."""
        name = _name_of(serialized, others)
        attributes: Attributes = {CHAIN_TYPE: name}
        agent = next((str(metadata[key]) for key in _AGENT_KEYS if metadata and metadata.get(key)), None)
        if agent is not None:
            attributes[CompletionSpanAttributes.AGENT_NAME] = agent
        self._begin(run_id, parent_run_id, f"chain {name}", attributes)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **others: Any) -> None:
        """End the span."""
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **others: Any) -> None:
        """End the span with the error."""
        self._end(run_id, error=error)

    def on_tool_start(
        self,
        serialized: Mapping[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **others: Any,
    ) -> None:
        """Begin the span of a tool call."""
        name = _name_of(serialized, others)
        attributes = {_TOOL_NAME: name, LightningSpanAttributes.OPERATION_INPUT.value: input_str}
        self._begin(run_id, parent_run_id, f"execute_tool {name}", attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **others: Any) -> None:
        """End the span with the tool's output."""
        self._end(run_id, {LightningSpanAttributes.OPERATION_OUTPUT.value: str(output)})

    on_tool_error = on_chain_error

    def _begin(self, run_id: UUID, parent_run_id: UUID | None, name: str, attributes: Attributes) -> None:
        with self._lock:
            parent = None if parent_run_id is None else self._open.get(parent_run_id)
        with nullcontext() if parent is None else parent.inside():
            span = self._begin_span(name, attributes, time.time())
        with self._lock:
            self._open[run_id] = span

    def _end(self, run_id: UUID, attributes: Attributes | None = None, error: BaseException | None = None) -> None:
        with self._lock:
            span = self._open.pop(run_id, None)
        if span is None:
            return
        span.record_attributes(attributes or {})
        if error is not None:
            span.record_exception(error)
        span.end(time.time())


def _name_of(serialized: Mapping[str, Any] | None, others: Mapping[str, Any]) -> str:
    return str(others.get("name") or (serialized or {}).get("name") or "unnamed")
