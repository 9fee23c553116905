"""One task played to its end by the suite's orchestrator, and scored by its evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UserError
from .evaluation import evaluate
from .roles import Assistant, SimulatedUser
from .speaker import EpisodeEndedError, Speaker
from .suite import Environment, Orchestrator, Task, registry


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
