"""The agent for a data set of prompts: one question to the model, whose answer a reward function scores."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...algorithm import Measure
from ...commands import check_model
from ...environments import Message, converse, endpoint_of, find_llm
from ...errors import UserError
from ...litagent import LitAgent
from ...metrics import ConsoleLogger, MetricsLogger
from ...rewards import FunctionReward, Reward, RewardFunction
from ...tools import CALCULATOR, CALCULATOR_TOOL, answer_calls
from ...trainer import Trainer, accuracy_row
from ...types import NamedResources, Rollout
from .config import outside_of_loops
from .datasets import create_rl_dataset
from .rewards import create_accuracy_reward

_MAX_TURNS = 10
"""Model calls of a conversation with the calculator."""


class PromptAgent(LitAgent[Any]):
    """Sends the messages in the column `prompt` (or its text, as a user message) and returns the reward of the answer.

    If the column `tools` offers the calculator, as word problems do, the model may call it first.

    The reward function gets the answer as text, the columns of the row, and `finish_reason`, which is "length" for a
    truncated answer.

    Args:
        reward_fn: called as `fn(completions=[…], prompts=[…], ground_truth=[…], **columns)`; returns a list with one
            number, or None for no reward. See `FunctionReward` for other callables.
        sampling: further sampling arguments of the call, as `top_p`.
    """

    def __init__(self, reward_fn: RewardFunction, *, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.reward_fn = reward_fn if isinstance(reward_fn, Reward) else FunctionReward(reward_fn)
        self.sampling = dict(sampling or {})

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> float | None:
        """Run one conversation and return its reward; None if the reward function returns none.

        Raises:
            ValueError: the row has no prompt, or the reward function does not return one number.
            openai.OpenAIError: the endpoint refused the call or could not be reached.
        """
        prompt, offered = task.get("prompt"), task.get("tools")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) and prompt else prompt
        if not isinstance(messages, list) or not messages:
            raise ValueError(f'a row needs a "prompt", messages or a text; its columns are {", ".join(map(str, task))}')
        known = (json.loads(offered) if isinstance(offered, str) else offered) == [CALCULATOR_TOOL]
        endpoint = endpoint_of(find_llm(resources), rollout)
        endpoint = replace(endpoint, sampling={**endpoint.sampling, **self.sampling})

        async def follow(reply: Message) -> list[Message]:
            return answer_calls(CALCULATOR, reply) if known else []

        tools = [CALCULATOR_TOOL] if known else []
        _, choice = await converse(endpoint, list(messages), follow, tools=tools, max_turns=_MAX_TURNS)
        text = "" if choice.message.tool_calls else choice.message.content or ""
        rollout.metadata["output"] = text
        row = {"finish_reason": choice.finish_reason, **task}
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        rewards = await asyncio.to_thread(self.reward_fn, completions=[text], prompts=[prompt], **columns)
        if len(rewards) != 1:
            raise ValueError(f"the reward function gave {len(rewards)} rewards for one completion")
        return rewards[0]


# Measuring a model by a reward function.


_N_RUNNERS = 128


def evaluate_model(
    model_name: str = "embedded",
    dataset: Sequence[Mapping[str, Any]] | None = None,
    reward_fn: RewardFunction | None = None,
    *,
    split: str = "test",
    max_samples: int | None = 100,
    max_new_tokens: int = 512,
    seed: int = 42,
    logger: MetricsLogger | None = None,
) -> dict[str, Any]:
    """Sample one greedy answer to each prompt, and score it.

    Args:
        model_name: "embedded", a Hub id, or the folder of a model or of a training.
        dataset: rows with a `prompt`; None takes math problems.
        reward_fn: None takes `create_accuracy_reward()`.
        split, max_samples: which math problems, where no `dataset` is given; of a dataset the first `max_samples`.
        max_new_tokens: most tokens of an answer.
        seed: sampling seed.
        logger: logger of the progress; None prints it to standard error.

    Returns:
        `average_reward`, `accuracy` (the share of rewards of 1 or more, with its 95 % interval), `count`, `failed`
        (rollouts without a score, by reason), `seconds`.

    Raises:
        UserError: the model or the data set cannot be had, or there is nothing to measure on.
    """
    check_model(model_name, "auto")
    rows = list(create_rl_dataset(max_samples, split) if dataset is None else dataset)[:max_samples]
    if not rows:
        raise UserError("dataset: there are no rows to measure on")
    algorithm = Measure(model_name, max_new_tokens=max_new_tokens, seed=seed)
    agent = PromptAgent(create_accuracy_reward() if reward_fn is None else reward_fn)
    with logger or ConsoleLogger() as out:
        trainer = Trainer(algorithm=algorithm, n_runners=_N_RUNNERS, logger=out)
        outside_of_loops(lambda: trainer.fit(agent, None, val_dataset=rows))
    evaluation = algorithm.evaluation
    if evaluation is None:
        raise UserError("the evaluation was stopped before it ended")
    row = accuracy_row("accuracy", sum(evaluation.correct), len(evaluation.rollouts))
    return {
        "model": model_name,
        "count": len(rows),
        "average_reward": sum(evaluation.rewards) / len(evaluation.rewards),
        "accuracy": row["accuracy"],
        "interval": [row["low"], row["high"]],
        "failed": Counter(rollout.unscored for rollout in evaluation.rollouts if rollout.unscored is not None),
        "seconds": algorithm.seconds,
    }
