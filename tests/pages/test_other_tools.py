"""docs/migration.md and docs/commands.md: the programs that they show, and the names that they give."""

from __future__ import annotations

import json

from pages.snippets import python_block

MIGRATION = "docs/migration.md"
FROM_TRL = python_block(MIGRATION, "def reward_short(")
FROM_VERL = python_block(MIGRATION, "algorithm = VERL(")
PROGRAM = python_block(MIGRATION, "rollout_environment()")
LEARNT = python_block("docs/commands.md", "def learnt(")

FEW = "total_steps=1, tasks_per_step=1, samples_per_prompt=2"

AGENT = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": os.environ["QUESTION"]}]
body = json.dumps({"model": "embedded", "messages": messages, "max_tokens": 4}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
reply = json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
print(reply["choices"][0]["message"]["content"])
"""


def test_a_reward_function_of_trl_and_an_agent_that_owns_its_loop(here):
    sizes = "samples_per_prompt=2, tasks_per_step=1, total_steps=1, max_new_tokens=4"
    FROM_TRL.run({"samples_per_prompt=8, tasks_per_step=4, total_steps=10, max_new_tokens=32": sizes})
    assert json.loads((here / "outputs/from-trl/summary.json").read_text())["steps"] == 1


def test_a_verl_configuration_gives_the_settings_of_the_page(here):
    ran = FROM_VERL.run()
    assert len(ran.values) == 3  # compared with their comments
    settings = ran.names["algorithm"].settings
    assert (settings.tasks_per_step, settings.max_new_tokens, settings.clip_ratio_high) == (8, 48, 0.28)


def test_a_program_that_finds_its_model_in_the_environment_is_trained(here):
    (here / "agent.py").write_text(AGENT)
    ran = PROGRAM.run({"total_steps=10": FEW, "max_new_tokens=16": "max_new_tokens=4"})
    assert ran.names["algorithm"].summary["steps"] == 1


def test_a_run_has_learnt_where_intervals_are_apart(here):
    folder = here / "outputs/run-1"
    folder.mkdir(parents=True)
    for low, said in ((0.5, "True"), (0.2, "False")):
        rows = [{"name": "before", "low": 0.0, "high": 0.3}, {"name": "after RL", "low": low, "high": 0.9}]
        (folder / "summary.json").write_text(json.dumps({"accuracy": rows}))
        assert LEARNT.run().printed.strip() == said
