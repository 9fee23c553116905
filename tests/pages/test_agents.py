"""README.md and docs/your-agent.md: the agents that they show are trained, and leave the run folders that they name.

With a tiny model nothing is learnt within a second; that these agents learn is shown by tests/embedded.
"""

from __future__ import annotations

import asyncio

from mini_agentic_rl import InMemoryLightningStore
from mini_agentic_rl.policy import load_model
from mini_agentic_rl.semconv import CompletionSpanAttributes
from pages.shell import free_port
from pages.snippets import python_block

FIRST = python_block("README.md", "@llm_rollout")
LISTER = python_block("docs/your-agent.md", 'output_dir="outputs/lister"')
KEPT_CLIENT = python_block("docs/your-agent.md", "gateway_port=8000")
SEVERAL = python_block("docs/your-agent.md", 'with agent("planner"):')
MATH = python_block("docs/your-agent.md", "hooks=[MathRewardHook()]")

RUN_FOLDER = (
    *("adapter/adapter_model.safetensors", "rollouts.db"),
    *("config.json", "metrics.jsonl", "summary.json", "report.html"),
)
FEW = "total_steps=1, tasks_per_step=2, samples_per_prompt=2"


def measured(ran, folder):
    """Return how many tasks were measured each time, by what a run says of itself and has left in its folder.

    Raises:
        AssertionError: a file is missing, or there was not one step between the first measurement and the last.
    """
    for name in RUN_FOLDER:
        assert (folder / name).is_file(), name
    load_model(str(folder / "adapter"))
    summary = ran.names["algorithm"].summary
    assert summary["steps"] == 1
    assert (summary["accuracy"][0]["name"], summary["accuracy"][-1]["name"]) == ("before", "after RL")
    return [row["count"] for row in summary["accuracy"]]


def test_the_first_agent_of_the_readme_is_measured_trained_and_measured_again(here):
    ran = FIRST.run({"total_steps=15": FEW})
    assert measured(ran, here / "outputs/reviews") == [16, 16]
    train, held_out = ran.names["reviews"]("film", "hotel", "meal", "book"), ran.names["reviews"]("trip", "game")
    assert (len(train), len(held_out)) == (32, 16)
    assert not {task["review"] for task in train} & {task["review"] for task in held_out}


def test_a_class_is_trained_as_a_function_is(here):
    ran = LISTER.run({"total_steps=10": FEW, "max_new_tokens=24": "max_new_tokens=8"})
    assert measured(ran, here / "outputs/lister") == [4, 4]


def calls(store):
    """Return the agents of the model calls of each rollout of a run, in the order in which they asked."""

    async def query():
        rollouts = await store.query_rollouts()
        return [list(await store.query_spans(rollout.rollout_id)) for rollout in rollouts]

    every = [
        [span for span in spans if CompletionSpanAttributes.REQUEST_MODEL in span.attributes]
        for spans in asyncio.run(query())
    ]
    return [[span.attributes.get(CompletionSpanAttributes.AGENT_NAME) for span in spans] for spans in every]


def test_an_agent_that_keeps_its_client_is_recorded_at_the_plain_address(here):
    port, store = str(free_port()), InMemoryLightningStore()
    sizes = {"total_steps=10": FEW, "max_tokens=24": "max_tokens=8", "8000": port}
    ran = KEPT_CLIENT.run(sizes | {"n_runners=16": "n_runners=16, store=store"}, given={"store": store})
    assert ran.names["algorithm"].summary["steps"] == 1
    asked = calls(store)
    assert asked
    assert all(len(agents) == 1 for agents in asked)


def test_the_calls_of_several_agents_bear_their_names(here):
    store = InMemoryLightningStore()
    sizes = {"total_steps=10": FEW, "max_new_tokens=24": "max_new_tokens=8"}
    ran = SEVERAL.run(sizes | {"n_runners=16": "n_runners=16, store=store"}, given={"store": store})
    assert ran.names["algorithm"].summary["steps"] == 1
    assert calls(store) == [["planner", "lister"]] * 4


def test_a_hook_rewards_an_agent_that_imitates_first(here):
    sizes = {
        "total_steps=3": f"{FEW}, max_new_tokens=4",
        "eval_size=40": "eval_size=2",
        "n_runners=64": "n_runners=4",
        "WarmStart(demonstration, TOOLS)": "WarmStart(demonstration, TOOLS, WarmStartSettings(examples=4))",
    }
    ran = MATH.run(sizes, before="from mini_agentic_rl.algorithm import WarmStartSettings")
    assert measured(ran, here / "outputs/math") == [2, 2, 2]
