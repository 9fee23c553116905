"""The reward of an episode: the suite's own evaluator, with its judge made a choice.

Most checks are exact: the final database, assertions on the environment, expected actions, facts the user has to be
told. Only assertions in natural language need a model to judge them. In the tasks that the package carries none counts
towards the reward; a task of one's own may put NL_ASSERTION into its `reward_basis`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...emitter import operation
from ...errors import UserError
from ...semconv import AGL_REWARD
from .speaker import Speaker
from .suite import EvaluationType, RewardType, SimulationRun, Task, evaluate_simulation

_INSTRUCTIONS = (
    "You are given a conversation between a customer service assistant and a customer, and statements about it. Decide "
    'of each statement whether it is true. Answer with JSON only: {"judgements": [true, false, ...]}, one for '
    "each statement, in order."
)


class JudgeError(Exception):
    """The judge's answer holds no judgements: the rollout has failed, rather than earned nothing."""


def evaluate(
    simulation: SimulationRun, task: Task, domain: str, judge: Speaker | None
) -> tuple[float, dict[str, float]]:
    """Return the reward, 0 or 1 as a rule, and the outcome of each kind of check that counts towards it, by its name.

    Raises:
        UserError: the task counts assertions in natural language and there is no judge.
        JudgeError: the judge gave no judgements.
    """
    criteria = task.evaluation_criteria
    counts_nl = criteria is not None and RewardType.NL_ASSERTION in criteria.reward_basis
    if counts_nl:
        if judge is None:
            raise UserError(
                f"task {task.id} counts assertions in natural language, which a model has to judge: name one with "
                '`judge_model`, or give the trainer a resource "judge_llm"'
            )
        exact = [kind for kind in criteria.reward_basis if kind != RewardType.NL_ASSERTION]
        task = task.model_copy(update={"evaluation_criteria": criteria.model_copy(update={"reward_basis": exact})})
    info = evaluate_simulation(simulation, task, EvaluationType.ALL, solo_mode=False, domain=domain)
    reward = float(info.reward)
    parts = {kind.value.lower(): float(value) for kind, value in (info.reward_breakdown or {}).items()}
    if counts_nl and judge is not None:
        kept = _judge(judge, simulation.messages, criteria.nl_assertions or [])
        reward *= kept
        parts[RewardType.NL_ASSERTION.value.lower()] = kept
    return reward, parts


def _judge(judge: Speaker, messages: Sequence[Any], assertions: Sequence[str]) -> float:
    """1 when every assertion holds of the conversation, else 0."""
    if not assertions:
        return 1.0
    conversation = "\n".join(f"{message.role}: {message.content}" for message in messages if message.content)
    statements = "\n".join(f"{number}. {text}" for number, text in enumerate(assertions, 1))
    with operation(name=AGL_REWARD):
        said = judge.say(
            [
                {"role": "system", "content": _INSTRUCTIONS},
                {"role": "user", "content": f"Conversation:\n{conversation}\n\nStatements:\n{statements}"},
            ]
        )
    text = said.content or ""
    try:
        judgements = json.loads(text[text.index("{") : text.rindex("}") + 1])["judgements"]
    except (ValueError, KeyError, RecursionError) as error:
        raise JudgeError(f"the judge ({judge.model}) gave no judgements: {text[:200]!r}") from error
    if not isinstance(judgements, list) or len(judgements) != len(assertions):
        raise JudgeError(f"the judge ({judge.model}) gave no judgement of each of {len(assertions)} statements")
    return float(all(judgement is True for judgement in judgements))
