"""The LangChain handler in a real graph: which node was at work, and what its tools did."""

from __future__ import annotations

from typing import Any

import pytest

from mini_agentic_rl import DummyTracer, OtelTracer, TracerTraceToTriplet
from mini_agentic_rl.types import Span

graphs = pytest.importorskip("langgraph.graph", reason="LangGraph is not installed: its handler is left unchecked")
tools = pytest.importorskip(
    "langchain_core.tools", reason="langchain-core is not installed: the handler for LangChain is left unchecked"
)


RunnableConfig = pytest.importorskip(
    "langchain_core.runnables", reason="langchain-core is not installed: the handler for LangChain is left unchecked"
).RunnableConfig


@tools.tool
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@tools.tool
def fail(number: int) -> int:
    """Never works."""
    raise ZeroDivisionError("by nothing")


def _graph(asynchronous: bool):
    def write(state: dict) -> dict:
        return {"number": double.invoke({"number": state["number"]})}

    # Before Python 3.11 LangChain hands the callbacks on in asynchronous code only where the node does so itself.
    async def write_async(state: dict, config: RunnableConfig) -> dict:
        return {"number": await double.ainvoke({"number": state["number"]}, config)}

    graph = graphs.StateGraph(dict)
    graph.add_node("write_query", write_async if asynchronous else write)
    graph.add_edge(graphs.START, "write_query")
    graph.add_edge("write_query", graphs.END)
    return graph.compile()


@pytest.mark.parametrize(("make_tracer", "asynchronous"), [(OtelTracer, False), (DummyTracer, True)])
async def test_nodes_and_tools_become_spans_of_the_trace(make_tracer, asynchronous):
    tracer: Any = make_tracer()
    handler = tracer.get_langchain_handler()
    async with tracer.trace_context("run"):
        graph = _graph(asynchronous)
        config = {"callbacks": [handler]}
        state = {"number": 3}
        result = await graph.ainvoke(state, config) if asynchronous else graph.invoke(state, config)
    assert result == {"number": 6}
    spans = {span.name: span for span in tracer.get_last_trace()}
    node, tool = spans["chain write_query"], spans["execute_tool double"]
    assert node.attributes["gen_ai.agent.name"] == "write_query"
    assert tool.attributes["agentlightning.operation.output"] == "6"
    assert tool.parent_id == node.span_id
    assert node.start_time <= tool.start_time <= tool.end_time <= node.end_time


async def test_an_llm_call_inside_a_node_belongs_to_it():
    tracer = OtelTracer()
    async with tracer.trace_context("run") as trace:
        graph = _graph(asynchronous=True)
        await graph.ainvoke({"number": 1}, {"callbacks": [tracer.get_langchain_handler()]})
        node = next(span for span in trace.recorded if span.name == "chain write_query")
    between = (node.start_time + node.end_time) / 2
    call = Span.from_attributes(
        attributes={"prompt_token_ids": [1], "response_token_ids": [2], "gen_ai.response.id": "r"},
        rollout_id=node.rollout_id,
        attempt_id=node.attempt_id,
        sequence_id=99,
        name="openai.chat.completion",
        start_time=between,
        end_time=between,
    )
    spans = [*tracer.get_last_trace(), call]
    assert len(TracerTraceToTriplet(agent_match="write").adapt(spans)) == 1
    assert TracerTraceToTriplet(agent_match="other").adapt(spans) == []


async def test_a_failing_tool_leaves_its_error():
    tracer = OtelTracer()
    handler = tracer.get_langchain_handler()
    async with tracer.trace_context("run"):
        with pytest.raises(ZeroDivisionError):
            await fail.ainvoke({"number": 1}, {"callbacks": [handler]})
    span = next(span for span in tracer.get_last_trace() if span.name == "execute_tool fail")
    assert span.status.status_code == "ERROR"
    assert span.events[0].attributes["exception.message"] == "by nothing"
