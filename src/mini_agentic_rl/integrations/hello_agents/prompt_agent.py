"""The agent of a data set of prompts: a question to the model, its answer, scored by a reward function."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from ...environments import Endpoint, Message, converse, find_llm, rollout_url
from ...litagent import LitAgent
from ...rewards import FunctionReward, Reward, RewardFunction
from ...tools import CALCULATOR, CALCULATOR_TOOL, answer_calls
from ...types import NamedResources, Rollout

__all__ = ["PromptAgent", "RewardFunction", "messages_of", "score"]


_MAX_TURNS = 10
"""Model calls of a conversation with the calculator."""


class PromptAgent(LitAgent[Any]):
    """Sends the messages in the column `prompt` (or the text in it, as a user's message) and returns the reward.

    Where the column `tools` offers the calculator, as word problems do, the model may call it before it answers.

    The reward function gets the answer as text, and besides the columns of the row `finish_reason`, which is "length"
    for an answer that was cut off.

    Args:
        reward_fn: called as `fn(completions=[…], prompts=[…], ground_truth=[…], **columns)`, and gives a list of one
            number, or of None for no reward. Other callables are called as `FunctionReward` does it.
        sampling: arguments of the call besides those of the resource, as `top_p`.
    """

    def __init__(self, reward_fn: RewardFunction, *, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.reward_fn = reward_fn if isinstance(reward_fn, Reward) else FunctionReward(reward_fn)
        self.sampling = dict(sampling or {})

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> float | None:
        """Run one conversation. None, no reward, where the reward function gives none.

        Raises:
            ValueError: the row has no prompt, or the reward function does not give one number.
            openai.OpenAIError: the endpoint refused the call or could not be reached.
        """
        llm = find_llm(resources)
        offered = task.get("tools")
        known = (json.loads(offered) if isinstance(offered, str) else offered) == [CALCULATOR_TOOL]
        sampling = {**llm.sampling_parameters, **self.sampling}
        endpoint = Endpoint(rollout_url(llm, rollout), llm.model, llm.api_key, sampling)

        async def follow(reply: Message) -> list[Message]:
            return answer_calls(CALCULATOR, reply) if known else []

        tools = [CALCULATOR_TOOL] if known else []
        _, choice = await converse(endpoint, list(messages_of(task)), follow, tools=tools, max_turns=_MAX_TURNS)
        text = "" if choice.message.tool_calls else choice.message.content or ""
        rollout.metadata["output"] = text
        return await asyncio.to_thread(score, self.reward_fn, text, {"finish_reason": choice.finish_reason, **task})


def messages_of(row: Mapping[str, Any]) -> Any:
    """The prompt of a row as messages.

    Raises:
        ValueError: it has none.
    """
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt:
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f'a row needs a "prompt", messages or a text; its columns are {", ".join(map(str, row))}')
    return prompt


def score(reward: RewardFunction, completion: str, row: Mapping[str, Any]) -> float | None:
    """The reward of one completion; None where the function gives none.

    Raises:
        ValueError: the function does not give one number.
        Exception: whatever the function raises.
    """
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    rewards = reward(completions=[completion], prompts=[row.get("prompt")], **columns)
    if len(rewards) != 1:
        raise ValueError(f"the reward function gave {len(rewards)} rewards for one completion")
    return rewards[0]
