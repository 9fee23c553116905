"""The SQL agent: the OpenAI Agents SDK with two tools over a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from openai import BadRequestError

from ...emitter import emit_reward
from ...environments import Demonstrations, Recipe, find_llm, outgrew_context, rollout_client
from ...errors import MissingPackageError
from ...litagent import LitAgent
from ...types import NamedResources, Rollout
from .data import (
    HIDDEN_TABLES,
    HINT,
    QUERY_TOOL,
    SCHEMA_TOOL,
    SQL_TOOLS,
    demonstration,
    medical_database,
    question_of,
    system_prompt,
)
from .reward import Queries, SqlReward
from .tool import QueryLimits, SqlDatabase

try:
    from agents import (
        Agent,
        AgentsException,
        FunctionTool,
        ModelSettings,
        OpenAIChatCompletionsModel,
        RunConfig,
        Runner,
    )
    from agents.tool_context import ToolContext
except ImportError as error:
    raise MissingPackageError("the SQL agent", "openai-agents", extra="recipes") from error

_SETTINGS: Final = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty", "max_tokens"})
"""Sampling parameters that are fields of the SDK's settings; others are passed on as they are."""


class SqlAgent(LitAgent[Any]):
    """Answers `task["question"]` by queries; the reward compares them with `task["sql"]`, the gold query.

    Each rollout emits its reward with `execution`, `answer` and the number of `queries`. `rollout.output` has the last
    successful query and the reply.

    Args:
        database: SQLite file to query; None takes the medical database, which is created in the cache.
        twin: a file of the same schema and names with other facts, on which queries have to be right as well; by
            default that of the medical database.
        hint: text about the database in the prompt; by default that of the medical database.
        reward: scores rollouts.
        max_turns: maximum number of model calls of a rollout.
        limits: bounds of one query.

    Raises:
        ValueError: `max_turns` is below 1.
        SqlToolError: the file is no database.
    """

    def __init__(
        self,
        *,
        database: str | Path | None = None,
        twin: str | Path | None = None,
        hint: str | None = None,
        reward: SqlReward | None = None,
        max_turns: int = 4,
        limits: QueryLimits | None = None,
    ) -> None:
        super().__init__()
        if max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {max_turns}")
        medical = database is None
        if medical and twin is None:
            twin = medical_database(twin=True)
        path = medical_database() if database is None else database
        self.database = SqlDatabase(path, limits, immutable=medical)
        self.twin = None if twin is None else SqlDatabase(twin, limits, immutable=medical)
        self.reward = reward or SqlReward()
        self.max_turns = max_turns
        if hint is None:
            hint = HINT if medical else ""
        self.system_prompt = system_prompt(self.database.compact_schema(*HIDDEN_TABLES), hint)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Answer one question.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm"; or the task has no question, or no
                gold query that runs.
            RewardUnavailableError: the reward model gave no score.
            openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown
                the model's context has no answer instead.
        """
        llm = find_llm(resources)
        sampling = llm.sampling_parameters
        known = {name: value for name, value in sampling.items() if name in _SETTINGS}
        others = {name: value for name, value in sampling.items() if name not in _SETTINGS}
        queries = Queries(self.database)
        agent: Agent[Any] = Agent(
            name="sql_agent",
            instructions=self.system_prompt,
            tools=[_tool(QUERY_TOOL, queries.query), _tool(SCHEMA_TOOL, queries.schema)],
            model=OpenAIChatCompletionsModel(llm.model, rollout_client(llm, rollout)),
            model_settings=ModelSettings(**known, extra_args=others or None),
        )
        reply: str | None = None
        try:
            result = await Runner.run(
                agent,
                question_of(task),
                max_turns=self.max_turns,
                run_config=RunConfig(tracing_disabled=True),  # the SDK would send traces to OpenAI
            )
            reply = str(result.final_output)
        except AgentsException:  # too many turns, or a call of an unknown tool
            pass
        except BadRequestError as error:
            if not queries.calls or not outgrew_context(error):
                raise
        scores = await asyncio.to_thread(self.reward.scores, task, queries, reply, self.twin)
        rollout.output = {"sql": queries.sql, "reply": reply}
        emit_reward({**scores, "queries": float(queries.calls)}, primary_key="reward", final=True)


def _tool(schema: dict[str, Any], use: Callable[[str], str]) -> FunctionTool:
    """Return a tool of the SDK that calls `use` in a thread."""

    def invoke(_: ToolContext[Any], arguments: str) -> Awaitable[str]:
        return asyncio.to_thread(use, arguments)

    function = schema["function"]
    return FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


def sql_recipe(database: Path | None = None, **reward: Any) -> Recipe:
    """Return the SQL agent over a database, by default the medical one; `reward` are the fields of `SqlReward`.

    Raises:
        MissingPackageError: the extra is not installed.
        UserError: a setting cannot work.
    """
    agent = SqlAgent(database=database, reward=SqlReward(**reward))
    shown = partial(demonstration, prompt=agent.system_prompt)
    return Recipe(agent, (), Demonstrations(shown, lambda task: SQL_TOOLS, lambda task: "rows" in task))
