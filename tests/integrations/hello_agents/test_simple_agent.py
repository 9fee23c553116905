"""The agent that talks to a person: tool calls, and what goes wrong with them."""

from __future__ import annotations

import json

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.integrations.hello_agents import LLMConfig, SimpleAgent


class Weather:
    """A tool that remembers what it was asked."""

    def __init__(self):
        self.asked = []

    @property
    def openai_tool(self):
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        return {
            "type": "function",
            "function": {"name": "weather", "description": "How it is", "parameters": parameters},
        }

    def run(self, parameters):
        self.asked.append(parameters)
        return "sunny"


@pytest.fixture
def agent():
    """Make an agent whose model says the given texts."""
    servers = []

    def make(answers, tools=(), **options):
        tokenizer = small_tokenizer(CHATML_TOOLS)
        server = MiniLLMServer(ScriptedSampler(tokenizer, answers), tokenizer, model_name="tiny").start()
        servers.append(server)
        return SimpleAgent("helper", LLMConfig(model="tiny", base_url=server.endpoint), tools, **options)

    yield make
    for server in servers:
        server.stop(timeout=1)


def _call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_tool_is_called_until_there_is_an_answer(agent):
    weather = Weather()
    helper = agent([_call("weather", {"city": "Bern"}), "It is sunny."], [weather])
    assert helper.run("How is the weather in Bern?") == "It is sunny."
    assert weather.asked == [{"city": "Bern"}]
    assert [message["role"] for message in helper.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_the_conversation_goes_on_and_a_failed_message_leaves_no_trace(agent):
    helper = agent([_call("weather", {}), _call("weather", {}), "At last."], [Weather()], max_turns=2)
    with pytest.raises(UserError, match="max_turns"):
        helper.run("And?")
    assert len(helper.messages) == 1
    assert helper.run("And now?") == "At last."
    assert len(helper.messages) == 3


def test_a_tool_that_does_not_exist_is_told_to_the_model(agent):
    helper = agent([_call("whether", {}), "Sorry."], [Weather()])
    assert helper.run("Hm?") == "Sorry."
    assert "no tool 'whether'; there are weather" in helper.messages[3]["content"]


def test_two_tools_of_one_name_and_a_key_that_is_missing(monkeypatch):
    with pytest.raises(UserError, match="same name"):
        SimpleAgent("helper", tools=[Weather(), Weather()])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        SimpleAgent("helper").run("Hello")
