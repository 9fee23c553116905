"""GRPO from scratch: the whole of reinforcement learning on an agent that uses a tool, in one file.

There is no trainer here, no server and no framework. A policy samples and learns on one set of weights, a token tree
holds what was sampled, and the rest is below. Read it from top to bottom:

    1. the agent       a question, a calculator, and what an answer is worth
    2. the rollouts    sample, run the tool, sample on: token ids in, token ids out
    3. the loss        how much better than the others of its question, and the clipped surrogate of PPO
    4. the loop        sample, compare, step

    python examples/grpo_from_scratch.py                               # the embedded model of 135 million parameters
    python examples/grpo_from_scratch.py --model Qwen/Qwen3-0.6B --steps 100
"""

from __future__ import annotations

import argparse
import re
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mini_agentic_rl.datasets import ArithmeticDataset
from mini_agentic_rl.policy import Learner, LearnerSettings, LoraSettings, LossInputs, LossOutputs, Policy
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams, TokenDelta, TokenRequest, TokenTree, pack
from mini_agentic_rl.tools import calculate

# 1. The agent. It may answer at once, or write an expression between tags, and is then told what comes of it.

INSTRUCTIONS = "Solve it. To calculate, write <calc>12 * 7</calc> and wait for the result. End with the number."
CALCULATION = re.compile(r"<calc>(.*?)</calc>", re.DOTALL)
MAX_CALLS = 3


def reward(said: list[str], answer: float) -> float:
    """Return 1 for the right number at the end, and a little more for having asked the calculator at all."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", said[-1].replace(",", ""))
    right = bool(numbers) and abs(float(numbers[-1]) - answer) < 1e-6
    return float(right) + 0.2 * any(CALCULATION.search(text) for text in said)


# 2. The rollouts. What the model sampled stays token ids: text is for the tool to read, and is never encoded again.


@dataclass
class Rollout:
    """One try at a question: the calls to the model, each with its prompt, its tokens and their log-probabilities."""

    context: list[int]
    calls: list[CompletionRecord] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    ended: bool = False


def sample(policy: Policy, prompts: list[list[int]], params: SamplingParams) -> list[CompletionRecord]:
    """Sample a continuation of each prompt: all at once, and what the prompts have in common is computed once."""
    answers: list[Future[TokenDelta]] = [Future() for _ in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        policy.engine.submit(TokenRequest(tuple(prompt), params, delivery="whole"), answer.set_result)
    drawn = [(np.array(answer.result().token_ids), np.float32(answer.result().logprobs)) for answer in answers]
    return [CompletionRecord(np.array(prompt), *new) for prompt, new in zip(prompts, drawn, strict=True)]


def encoded(tokenizer: PreTrainedTokenizerBase, first: tuple[str, str], second: tuple[str, str]) -> list[int]:
    """Return two messages, and the beginning of the answer to them, as the chat template of the model writes them."""
    messages = [{"role": role, "content": content} for role, content in (first, second)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # After a turn of the model's own, only what follows it is new: the turn was sampled, down to its end token.
    return list(tokenizer.encode(text.rpartition(f"SAMPLED{tokenizer.eos_token}")[2], add_special_tokens=False))


def roll_out(policy: Policy, tokenizer: PreTrainedTokenizerBase, question: str, count: int, room: int) -> list[Rollout]:
    """Try a question `count` times, with at most `room` tokens a call: one group in the sense of GRPO."""
    prompt = encoded(tokenizer, ("system", INSTRUCTIONS), ("user", question))
    params = SamplingParams(max_tokens=room, stop_token_ids=(tokenizer.eos_token_id,))
    rollouts = [Rollout(prompt) for _ in range(count)]
    for _ in range(MAX_CALLS):
        going = [rollout for rollout in rollouts if not rollout.ended]
        for rollout, record in zip(going, sample(policy, [r.context for r in going], params), strict=True):
            rollout.calls.append(record)
            rollout.said.append(tokenizer.decode(record.output_ids, skip_special_tokens=True))
            asked = CALCULATION.search(rollout.said[-1])
            rollout.ended = asked is None or record.output_ids[-1] != tokenizer.eos_token_id
            if asked is not None:  # what the tool says is context of the next call: not sampled, so never trained on
                result = encoded(tokenizer, ("assistant", "SAMPLED"), ("user", calculate(asked[1])))
                rollout.context = [*record.prompt_ids, *record.output_ids, *result]
                rollout.ended |= len(rollout.context) + room > policy.model.context_length
    return rollouts


# 3. The loss. No critic: the other rollouts of its question say what a rollout could be expected to earn.


def advantages(rewards: np.ndarray) -> np.ndarray:
    """Return (r - mean) / std over the group (Shao et al. 2024, section 4.1.2): zeros where all rewards are equal."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6) if np.ptp(rewards) > 0 else np.zeros_like(rewards)


def grpo_loss(inputs: LossInputs) -> LossOutputs:
    """Return the sum of -min(w A, clip(w, 0.8, 1.2) A) over sampled tokens, weighted (Shao et al. 2024, equation 3)."""
    ratio_S = torch.exp(inputs.logprobs_S - inputs.behaviour_logprobs_S)  # w: the policy over the one that sampled
    advantages_S = inputs.advantages_S
    objective_S = torch.minimum(ratio_S * advantages_S, ratio_S.clamp(0.8, 1.2) * advantages_S)
    return LossOutputs(-(inputs.weights_S * objective_S).sum())


def step(learner: Learner, rollouts: list[Rollout], advantages_N: np.ndarray) -> None:
    """Take one optimizer step on N rollouts, each of which counts the same, and in it each sampled token the same."""
    tree = TokenTree()  # instructions, questions and every shared beginning are in it, and are computed, once
    for number, rollout in enumerate(rollouts):
        for record in rollout.calls:
            tree.insert(record, number)
    packed = pack([tree])  # arrays over S terms, the sampled tokens of all rollouts
    lengths_N = np.bincount(packed.trajectory_S)
    weights_S, advantages_S = np.float32([1 / (len(rollouts) * lengths_N), advantages_N])[:, packed.trajectory_S]
    learner.forward_backward(packed, grpo_loss, LossInputs(torch.tensor(weights_S), torch.tensor(advantages_S)))
    learner.optim_step()


# 4. The loop.


def main() -> None:
    """Train a LoRA adapter, and print what each step earned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a name on the Hugging Face hub")
    for name, default in (("steps", 20), ("questions", 4), ("samples", 8), ("max-new-tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    policy = Policy.load(options.model, lora=LoraSettings(), seed=0)
    tokenizer = AutoTokenizer.from_pretrained(policy.model.base.name_or_path)
    learner = policy.run(lambda: policy.learner(LearnerSettings(learning_rate=1e-3)))
    tasks = ArithmeticDataset("train", size=options.steps * options.questions, difficulty=1)
    for number in range(options.steps):
        rollouts, earned, compared = [], [], []
        for task in tasks[number * options.questions : (number + 1) * options.questions]:
            group = roll_out(policy, tokenizer, task["question"], options.samples, options.max_new_tokens)
            rewards = np.array([reward(rollout.said, float(task["answer"])) for rollout in group])
            rollouts, earned, compared = [*rollouts, *group], [*earned, *rewards], [*compared, *advantages(rewards)]
        if any(compared):  # on the thread that owns the weights, between two steps of the sampler
            policy.learn(lambda r=rollouts, a=compared: step(learner, r, np.array(a)))
        print(f"step {number + 1}: mean reward {np.mean(earned):.3f} of {len(rollouts)} rollouts", flush=True)
    policy.close()


if __name__ == "__main__":
    main()
