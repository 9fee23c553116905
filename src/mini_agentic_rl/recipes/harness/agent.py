"""The agent that runs a command once per rollout, with its reward and spans."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...config import HarnessSettings
from ...emitter import emit_annotation, emit_reward, operation
from ...environments import Endpoint, Recipe, find_llm, rollout_url
from ...errors import UserError
from ...litagent import LitAgent
from ...plugins import load_object
from ...redaction import remember_secrets, without_secrets, without_secrets_within
from ...semconv import CompletionSpanAttributes
from ...types import AttemptedRollout, NamedResources, Rollout
from .run import HarnessResult, HarnessRun, given_variables, make_sandbox, split_words
from .sandbox import Ended, HarnessError, Scratch, run_folders_in

logger = logging.getLogger(__name__)

REWARD: Final = "reward"
_SHOWN: Final = 100
"""Maximum number of changed files in a span."""


class HarnessAgent(LitAgent[Any]):
    """Runs a command on tasks."""

    def __init__(self, settings: HarnessSettings, hidden: Sequence[Path] = ()) -> None:
        """Check the settings before any rollout.

        Args:
            hidden: files and folders that no command may read, such as the data file and the run folder.

        Raises:
            UserError: a setting cannot work.
        """
        super().__init__()
        self.settings = settings
        self._hidden = [*hidden, *run_folders_in(settings.agent_paths)]
        split_words(settings.agent_command, "agent_command")
        if settings.test_command:
            split_words(settings.test_command, "test_command")
        given_variables(settings.agent_env)
        if settings.agent_reward:
            _reward_function(settings.agent_reward)
        if settings.sandbox in ("docker", "kubernetes") and settings.agent_command and not settings.sandbox_image:
            logger.info("no `sandbox_image` is given: each task has to name one")
        make_sandbox(settings)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run the command on a task, and emit its reward.

        Raises:
            HarnessError: the command was not run, reached a limit, was killed by a signal, or never called the model.
        """
        llm = find_llm(resources)
        endpoint = Endpoint(rollout_url(llm, rollout), llm.model, llm.api_key, llm.sampling_parameters)
        remember_secrets({**self.settings.flat(), "api_key": llm.api_key})  # this process may have only runners
        run = HarnessRun(self.settings, task, endpoint, self._hidden)
        name = re.sub(r"[^\w-]", "-", str(task.get("id", "task")))[-40:]
        scratch = await asyncio.to_thread(Scratch, self.settings.scratch_folder, name)
        try:
            with operation(name="agent command") as span:
                span.set_input(without_secrets(self.settings.agent_command))
                ended = await run.agent(scratch)
                span.set_output(_facts(ended))
            rollout.output = without_secrets(ended.stdout)[-4000:]
            await self._check(ended, rollout)
            result = await run.finish(scratch, ended)
            if result.tests is not None:
                with operation(name="test command") as span:
                    span.set_output(_facts(result.tests))
            emit_annotation(
                {
                    "harness.changed": result.changed[:_SHOWN],
                    "harness.tampered": result.tampered[:_SHOWN],
                    "harness.tampering": self.settings.tampering,
                }
            )
            emit_reward(await self._rewards(task, result), primary_key=REWARD, final=True)
        finally:
            await asyncio.shield(asyncio.to_thread(scratch.remove))

    async def _check(self, ended: Ended, rollout: Rollout) -> None:
        """Raise an error unless the command ended by itself and called the model."""
        if ended.left_behind:
            logger.info("the command left %d processes behind, which were killed", ended.left_behind)
        output = without_secrets(ended.stderr.strip() or ended.stdout.strip())
        last = f" Its last words: {output[-300:]}" if output else ""
        if ended.limit is not None or (ended.exit_code or 0) < 0:
            raise HarnessError(f"the command {ended.describe()} after {ended.seconds:.1f} s.{last}")
        if await self._calls(rollout) == 0:
            raise HarnessError(
                f"the command {ended.describe()} and never called the model: does it read OPENAI_BASE_URL or "
                f"ANTHROPIC_BASE_URL?{last}"
            )

    async def _calls(self, rollout: Rollout) -> int | None:
        """Return the number of recorded calls of the attempt, at most 1; None without a store."""
        if not isinstance(rollout, AttemptedRollout):
            return None
        try:
            store = self.runner.get_store()
        except (ValueError, RuntimeError):  # run by hand, without a runner
            return None
        filters: dict[str, Any] = {"name": CompletionSpanAttributes.SPAN_NAME, "limit": 1}
        return len(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id, **filters))

    async def _rewards(self, task: Mapping[str, Any], result: HarnessResult) -> dict[str, float]:
        """Return the reward and further metrics."""
        metrics = {
            "exit_0": float(result.agent.exit_code == 0),
            "tampered": float(bool(result.tampered)),
            "files_changed": float(len(result.changed)),
        }
        if result.tests is not None:
            metrics["tests_passed"] = float(result.tests.exit_code == 0)
        if result.tampered and self.settings.tampering == "zero":
            return {REWARD: 0.0, **metrics}
        if self.settings.agent_reward:
            value = _reward_function(self.settings.agent_reward)(dict(task), result)
            value = await value if inspect.isawaitable(value) else value
            if isinstance(value, Mapping):
                if REWARD not in value:
                    raise HarnessError(f"`agent_reward` gave no {REWARD!r}, only {sorted(value)}")
                return {**metrics, **value}
            return {REWARD: value, **metrics}
        if result.tests is None:
            return {REWARD: metrics["exit_0"], **metrics}
        written = result.written if result.tests.limit is None else None
        return {REWARD: metrics["tests_passed"] if written is None else written, **metrics}


def harness_recipe(settings: HarnessSettings, hidden: Sequence[Path] = ()) -> Recipe:
    """Return the agent of the settings; its commands cannot read `hidden` paths.

    Raises:
        UserError: a setting cannot work.
    """
    return Recipe(HarnessAgent(settings, hidden))


def _reward_function(name: str) -> Any:
    """Return the user's reward function.

    Raises:
        UserError: it cannot be loaded, or is no function.
    """
    if ":" not in name:
        raise UserError(f"{name!r}: write module:function", setting="agent_reward")
    try:
        function = load_object(name)
    except Exception as error:  # the user's module may raise anything
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting="agent_reward") from None
    if not callable(function):
        raise UserError(f"{name!r} is a {type(function).__name__}, not a function", setting="agent_reward")
    return function


def _facts(ended: Ended) -> dict[str, Any]:
    facts = {**{name: value for name, value in vars(ended).items() if name != "facts"}, **ended.facts}
    return {name: without_secrets_within(value) for name, value in facts.items()}
