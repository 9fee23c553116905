"""The tasks that the package carries, and whole episodes through the suite's orchestrator, tools and evaluator."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from mini_agentic_rl.adapter.records import TrainedCalls
from mini_agentic_rl.emitter import find_final_reward, find_reward_spans, get_rewards_from_span
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.tau2 import ASSISTANT_AGENT_ID
from mini_agentic_rl.recipes.tau2.episode import read_row
from mini_agentic_rl.recipes.tau2.tasks import DOMAINS, load_tau2
from mini_agentic_rl.types import LLM

from .conftest import call

ASKS = "Please create a task called 'Important Meeting' for user_1."
CREATES = call("create_task", user_id="user_1", title="Important Meeting")
THANKS = "Thank you. ###STOP###"


def row(domain: str, task_id: str) -> dict:
    (found,) = [row for row in load_tau2(domain, "base") if row["id"] == task_id]
    return found


def rewards(spans) -> dict[str, float]:
    (span,) = find_reward_spans(spans)
    return {reward.name: reward.value for reward in get_rewards_from_span(span)}


def facts(spans) -> dict[str, object]:
    (span,) = [span for span in spans if "tau2.reason" in span.attributes]
    return {key.removeprefix("tau2."): value for key, value in span.attributes.items() if key.startswith("tau2.")}


@pytest.mark.parametrize(
    ("assistant", "reward"),
    [
        ([CREATES, "I have created it."], 1.0),
        ([call("create_task", user_id="user_1", title="Another Meeting"), "I have created it."], 0.0),
        (["I have created it."], 0.0),
        ([call("create_task", user_id="user_2", title="Important Meeting"), CREATES, "It took two tries."], 1.0),
    ],
)
def test_the_right_actions_earn_the_reward_and_others_do_not(stage, assistant, reward):
    rollout, spans = stage.play(row("mock", "create_task_1"), assistant=assistant, user=[ASKS, THANKS])
    assert rollout.status == "succeeded"
    assert find_final_reward(spans) == reward
    assert rewards(spans) | {"steps": 0} == {
        "reward": reward,
        "completed": 1.0,
        "steps": 0,
        "db": reward,
        "communicate": 1.0,
    }
    assert facts(spans)["reason"] == "user_stop"


def gold(task: dict, requestor: str) -> list[str]:
    actions = task["evaluation_criteria"]["actions"] or []
    return [
        call(action["name"], **action["arguments"])
        for action in actions
        if action.get("requestor", "assistant") == requestor
    ]


@pytest.mark.parametrize(
    ("domain", "task_id"),
    [
        ("airline", "7"),
        ("retail", "1"),
        ("telecom", "[mobile_data_issue]data_mode_off|data_usage_exceeded[PERSONA:None]"),
    ],
)
@pytest.mark.parametrize("right", [True, False])
def test_every_domain_rewards_its_own_expected_actions(stage, domain, task_id, right):
    found = row(domain, task_id)
    task = json.loads(found["data"])
    told = " ".join(task["evaluation_criteria"].get("communicate_info") or []) or "that is done"
    assistant = [*(gold(task, "assistant") if right else []), f"I can tell you: {told}"]
    user = ["Help me, please.", *(gold(task, "user") if right else []), THANKS]
    _, spans = stage.play(found, assistant=assistant, user=user)
    assert facts(spans)["reason"] == "user_stop"
    assert find_final_reward(spans) == float(right)


def test_each_prompt_of_the_assistant_begins_with_all_that_went_before(stage):
    assistant = [CREATES, "Done.  Anything else?", call("get_users"), "That is all."]
    stage.play(row("mock", "create_task_1"), assistant=assistant, user=[ASKS, "Who is there?", THANKS])
    prompts = [list(request.prompt_ids) for request in stage.prompts()]
    assert len(prompts) == 4
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    assert stage.server.service.memory.counters()["forked"] == 0


def test_only_the_assistants_calls_are_trained(stage):
    _, spans = stage.play(row("mock", "create_task_1"), assistant=[CREATES, "Done."], user=[ASKS, THANKS])
    selection = TrainedCalls().select(spans)
    assert [record.metadata["agent_name"] for record in selection.records] == [ASSISTANT_AGENT_ID] * 2
    assert [record.model for record in selection.records] == ["tiny"] * 2
    assert sum(selection.left_out.values()) == 2


def test_the_customer_may_be_another_model_elsewhere(stage, make_stage):
    elsewhere = make_stage(records=False)
    elsewhere.lines = {"default": [ASKS, THANKS]}
    user = LLM(endpoint=elsewhere.server.endpoint, model="tiny", sampling_parameters={"max_tokens": 40})
    rollout, spans = stage.play(
        row("mock", "create_task_1"), assistant=[CREATES, "Done."], user=[], resources={"user_llm": user}
    )
    assert rollout.status == "succeeded"
    assert find_final_reward(spans) == 1.0
    assert stage.prompts(None) == []
    assert [request.sampling.max_tokens for request in elsewhere.prompts()] == [40, 40]


@pytest.mark.parametrize(
    ("assistant", "bounds", "reason", "says"),
    [
        (["What?"], {"max_steps": 5}, "max_steps", None),
        ([call("no_such_tool")], {"max_errors": 2}, "too_many_errors", None),
        (["What?"], {"max_tokens": 50}, "max_tokens", "more than max_tokens=50"),
        ([" "], {}, "agent_error", "said nothing"),
        ([call("calculate", expression="9**9**9**9")], {}, "agent_error", "no powers"),
    ],
)
def test_an_episode_that_does_not_end_by_itself_earns_nothing_and_says_why(stage, assistant, bounds, reason, says):
    rollout, spans = stage.play(row("mock", "create_task_1"), assistant=assistant, user=[ASKS], **bounds)
    assert rollout.status == "succeeded"
    found = facts(spans)
    assert found["reason"] == reason
    assert says is None or says in found["note"]
    assert (rewards(spans)["reward"], rewards(spans)["completed"]) == (0.0, 0.0)


def test_a_conversation_that_outgrows_the_context_ends_with_that_reason(stage, make_stage):
    stage.play(row("mock", "create_task_1"), assistant=["What?"], user=[ASKS, THANKS])
    (first,) = stage.prompts()
    small = make_stage(context_length=len(first.prompt_ids) + 60)
    rollout, spans = small.play(row("mock", "create_task_1"), assistant=["What? " * 8], user=[ASKS])
    assert rollout.status == "succeeded"
    assert facts(spans)["reason"] == "context_length"
    assert find_final_reward(spans) == 0.0


def test_a_context_too_short_for_the_policy_is_a_failure_that_names_the_lengths(make_stage):
    small = make_stage(context_length=800)
    rollout, spans = small.play(row("mock", "create_task_1"), assistant=["What?"], user=[ASKS])
    assert rollout.status == "failed"
    assert find_final_reward(spans) is None
    reasons = [str(value) for span in spans for value in span.attributes.values()]
    assert any("maximum context length is 800 tokens" in reason for reason in reasons)


def test_a_customer_who_says_nothing_is_no_fault_of_the_assistant(stage):
    rollout, spans = stage.play(row("mock", "create_task_1"), assistant=["What?"], user=[" "])
    assert rollout.status == "failed"
    assert find_final_reward(spans) is None


def test_assertions_in_natural_language_are_refused():
    judged = row("mock", "create_task_1")
    task = json.loads(judged["data"])
    task["evaluation_criteria"]["reward_basis"] = ["DB", "NL_ASSERTION"]
    with pytest.raises(UserError, match="natural language"):
        read_row({**judged, "data": json.dumps(task)})


def test_a_task_that_begins_in_the_middle_of_a_conversation_goes_on_from_there(stage):
    found = row("mock", "update_task_with_message_history")
    completes = call("update_task_status", task_id="task_2", status="completed")
    _, spans = stage.play(found, assistant=[completes, "It is completed."], user=["Mark it as completed.", THANKS])
    assert find_final_reward(spans) == 1.0


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("text", "data"),
        ({"domain": "mock"}, "data"),
        ({"data": "{}"}, "domain"),
        ({"data": "{}", "domain": "bank"}, "domain"),
        ({"data": "{}", "domain": "mock"}, "data"),
        ({"data": "no JSON", "domain": "mock"}, "data"),
    ],
)
def test_a_row_that_is_no_task_is_refused(row, names):
    with pytest.raises(UserError, match=f'"{names}"'):
        read_row(row)


@pytest.mark.parametrize(
    ("domain", "train", "test"), [("airline", 30, 20), ("retail", 74, 40), ("telecom", 74, 40), ("mock", 4, 5)]
)
def test_train_and_test_share_no_task(domain, train, test):
    splits = [[row["id"] for row in load_tau2(domain, split)] for split in ("train", "test")]
    assert [len(split) for split in splits] == [train, test]
    assert set(splits[0]).isdisjoint(splits[1])
    assert set(splits[0] + splits[1]) == {row["id"] for row in load_tau2(domain, "base")}


@pytest.mark.parametrize("domain", DOMAINS)
def test_rows_are_plain_and_their_text_is_a_task_of_the_suite(domain):
    rows = list(load_tau2(domain, "train", 5, 1))
    assert json.loads(json.dumps(rows)) == rows
    assert [read_row(row)[0].id for row in rows] == [row["id"] for row in rows]
    assert {row["domain"] for row in rows} == {domain}
