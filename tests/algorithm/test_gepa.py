"""GEPA: the Pareto front against a loop-written one, and the search against a model that reflects on a real socket."""

from __future__ import annotations

import asyncio
import json
import random
import re

import pytest
from critic_server import SEED_PROMPT, TASKS, WORDS, completion, critic, polite_agent

from mini_agentic_rl import GEPA, InMemoryLightningStore, Trainer, prompt_rollout
from mini_agentic_rl.algorithm.gepa.pareto import pareto_weights, select
from mini_agentic_rl.errors import UserError


def _written_out(scores):
    """Algorithm 2 of the paper, line by line."""
    count, instances = len(scores), range(len(scores[0]))
    winners = []
    for i in instances:
        best = max(scores[k][i] for k in range(count))
        winners.append({k for k in range(count) if scores[k][i] == best})
    front = set().union(*winners)
    removed = set()
    changed = True
    while changed:
        changed = False
        for one in sorted(front - removed):
            for other in sorted(front - removed - {one}):
                nowhere_worse = all(scores[other][i] >= scores[one][i] for i in instances)
                better = any(scores[other][i] > scores[one][i] for i in instances)
                if nowhere_worse and (better or other < one):
                    removed.add(one)
                    changed = True
                    break
    return [sum(k in winners[i] for i in instances) if k in front - removed else 0 for k in range(count)]


def test_the_front_is_that_of_the_paper():
    draws = random.Random(0)
    for _ in range(300):
        count, size = draws.randint(1, 6), draws.randint(1, 5)
        scores = [[draws.choice([0.0, 0.5, 1.0]) for _ in range(size)] for _ in range(count)]
        weights = pareto_weights(scores)
        assert weights == _written_out(scores), scores
        drawn = [select(scores, (number + 0.5) / sum(weights)) for number in range(sum(weights))]
        assert [drawn.count(k) for k in range(count)] == weights


def test_a_prompt_that_is_best_at_one_thing_stays_a_parent():
    assert pareto_weights([[1, 1, 0], [0, 0, 1], [1, 0, 0]]) == [2, 1, 0]
    with pytest.raises(ValueError, match="candidate"):
        pareto_weights([])


def _reflects(body):
    """Adds the first word that the template lacks."""
    question = body["messages"][-1]["content"]
    template = re.search(r"<template>\n(.*?)\n</template>", question, re.DOTALL)[1]
    missing = [word for word in WORDS if word not in template]
    assert "Reward:" in question
    return completion(f"Here.\n<prompt>\n{template} Do it {missing[0] if missing else 'again'}.\n</prompt>")


def _optimise(client, *, agent=polite_agent, trainer=(), **settings):
    algorithm = GEPA(client, max_rollouts=60, pareto_size=4, **settings)
    Trainer(algorithm=algorithm, n_runners=4, initial_resources={"prompt": SEED_PROMPT}, **dict(trainer)).fit(
        agent, TASKS, val_dataset=TASKS
    )
    return algorithm


@prompt_rollout
async def fragile_agent(task, prompt_template):
    if task == TASKS[0]:
        raise RuntimeError("it broke")
    return 0.5


def test_reflection_finds_every_word_and_stops_where_nothing_is_left_to_mend():
    store = InMemoryLightningStore()
    with critic(_reflects) as (client, asked):
        algorithm = _optimise(client, trainer={"store": store})
    summary = algorithm.summary
    assert all(word in algorithm.get_best_prompt().template for word in WORDS)
    assert summary["score"] == 1.0
    assert [row["version"] for row in summary["history"]] == ["v0", "v1", "v2", "v3", "v4"]
    assert [row["wins"] for row in summary["history"]] == [0, 0, 0, 0, 4]
    assert len(asked) == summary["tried"] == 4
    assert "the whole minibatch earned the perfect reward" in summary["rejected"]
    assert summary["rollouts"] >= 60
    assert asyncio.run(store.get_latest_resources()).resources == {"prompt": algorithm.get_best_prompt()}


def test_what_does_not_earn_more_or_cannot_be_used_is_not_kept():
    answers = iter(["<prompt>No placeholder.</prompt>"] * 2 + ["<prompt>Say {question}, worse.</prompt>"] * 99)
    with critic(lambda body: completion(next(answers))) as (client, _):
        algorithm = _optimise(client)
    assert algorithm.get_best_prompt().template == SEED_PROMPT.template
    reasons = algorithm.summary["rejected"]
    assert any("lost the placeholder" in reason for reason in reasons)
    assert reasons["the successor earned no more on its minibatch"] > 1


def test_a_search_that_was_stopped_goes_on_and_ends_as_an_unbroken_one(tmp_path):
    with critic(_reflects) as (client, _):
        whole = _optimise(client, trainer={"output_dir": tmp_path / "whole"})

    class Stopped(BaseException):
        pass

    count = 0

    def stops(body):
        nonlocal count
        count += 1
        return _reflects(body) if count != 3 else (401, {"error": {"message": "no"}})

    with critic(stops) as (client, _):
        with pytest.raises(UserError, match="reflection_model"):
            _optimise(client, trainer={"output_dir": tmp_path / "broken"})
        again = _optimise(client, trainer={"output_dir": tmp_path / "broken", "resume": True})
    assert again.history == whole.history
    kept = json.loads((tmp_path / "broken" / "prompt" / "gepa.json").read_text())
    assert kept["template"] == whole.get_best_prompt().template


def test_the_results_of_a_search_that_has_ended_are_restored_though_some_rollouts_earned_nothing(tmp_path):
    with critic(_reflects) as (client, _):
        ended = _optimise(client, agent=fragile_agent, trainer={"output_dir": tmp_path})
        restored = _optimise(client, agent=fragile_agent, trainer={"output_dir": tmp_path, "resume": True})
    assert ended.summary["unrewarded"]
    assert restored.summary == ended.summary


def test_what_is_missing_is_named():
    with critic(_reflects) as (client, _):
        with pytest.raises(UserError, match="train_dataset"):
            Trainer(algorithm=GEPA(client), initial_resources={"prompt": SEED_PROMPT}).fit(polite_agent, [])
        with pytest.raises(UserError, match="no prompt template"):
            Trainer(algorithm=GEPA(client)).fit(polite_agent, TASKS, val_dataset=TASKS)
