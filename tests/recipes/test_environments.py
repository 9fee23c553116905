"""One agent for all environments: over a real socket, and in jobs on a tiny model."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.commands.train_config import TrainConfig, with_agent_defaults
from mini_agentic_rl.datasets import find_family
from mini_agentic_rl.environments import Endpoint, load_recipe, load_tasks
from mini_agentic_rl.errors import UserError
from recipes.playing import ScriptedServer, roomy_model, run, scripted_server

FAMILIES = ("countdown", "guess", "retrieval", "units")
SUM = "reasoning_gym:chain_sum?min_terms=2&max_terms=2"
server = scripted_server
model = roomy_model


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_model_that_answers_as_the_expert_does_earns_the_whole_reward(name: str, server: ScriptedServer):
    family = find_family(name)
    row = find_family(name).tasks("val", 1, 0)[0]
    shown = family.demonstration(row)
    server.script = [message for message in shown if message["role"] == "assistant"]
    endpoint = Endpoint(f"{server.endpoint}", "m", sampling={"temperature": 0.5})
    outcome = await family.rollout(row, endpoint)
    assert outcome.rewards["reward"] == 1.0
    assert outcome.rewards["turns"] == len(server.script) == len(server.requests)
    assert outcome.output == shown[-1]["content"]
    assert server.requests[0]["messages"] == shown[:2]
    assert server.requests[0]["temperature"] == 0.5
    assert server.requests[0].get("tools", []) == list(family.tools)
    for earlier, later in zip(server.requests, server.requests[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]


async def test_a_conversation_ends_after_its_turns(server: ScriptedServer):
    row = find_family("units").tasks("val", 1, 0)[0]
    server.script = [message for message in find_family("units").demonstration(row) if message.get("tool_calls")][:1]
    outcome = await find_family("units").rollout(row, Endpoint(server.endpoint, "m"))
    assert len(server.requests) == find_family("units").max_turns
    assert (outcome.rewards["reward"], outcome.rewards["answered"]) == (0.0, 0.0)


def test_an_environment_is_measured_imitated_and_reinforced(model, tmp_path):
    folder = tmp_path / "run"
    told = run(
        *("train", "--agent", "countdown", "--model", model, "--max-new-tokens", "6", "--cache-mib", "64", "--json"),
        *("--total-steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--eval-size", "1"),
        *("--sft-examples", "2", "--max-samples", "4", "--difficulty", "1", "--output-dir", folder),
    )
    summary = json.loads(told)
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after SFT", "after RL"]
    assert (summary["steps"], summary["untrained"]) == (1, {})


def test_an_agent_and_its_tasks_are_found_by_either_name(model):
    assert with_agent_defaults(TrainConfig(agent="guess")).tasks.dataset == "guess"
    found = with_agent_defaults(TrainConfig(dataset=SUM))
    assert (found.tasks.agent, found.tasks.dataset) == ("reasoning_gym", SUM)
    assert found.run.output_dir.as_posix() == "outputs/reasoning_gym-agent"
    assert with_agent_defaults(TrainConfig(agent="my:Agent", dataset="guess:1")).tasks.agent == "my:Agent"
    assert TrainConfig(agent="guess").loop.max_new_tokens == find_family("guess").max_new_tokens
    for given in ({"agent": "guess", "dataset": "units"}, {"agent": "math", "dataset": "guess"}):
        with pytest.raises(UserError, match="leave one of the two out"):
            with_agent_defaults(TrainConfig(**given))
    asked = ("--size", "1", "--model", model, "--max-new-tokens", "4", "--json")
    measured = json.loads(run("eval", "--dataset", "guess:2", "--split", "transfer", *asked))
    assert (measured["dataset"], measured["accuracy"][0]["count"]) == ("guess:2", 1)
    shown = json.loads(
        run("dataset", "guess:1", "--split", "transfer", "--form", "sft", "--max-samples", "2", "--json")
    )
    assert shown["examples"] == 2


def test_levels_are_those_of_the_name_or_of_the_setting_and_unknown_names_are_refused():
    assert {row["difficulty"] for row in load_tasks("countdown", "train", 8, 0, [2, 3])} == {2, 3}
    assert {row["difficulty"] for row in load_tasks("countdown:1", "train", 8, 0, [2, 3])} == {1}
    with pytest.raises(UserError, match=r"levels 1, 2, 3, 4, not \[7\]"):
        load_tasks("countdown", "train", 4, 0, [7])
    with pytest.raises(UserError, match="'chess' is unknown: give 'countdown', 'guess', 'math'"):
        load_recipe("chess")
