"""A tiny model that has learnt to call the calculator: short to make, real to sample from and to train.

Whatever stands before, it says at the start of an answer: a call of `calculator`; after a tool's result: "Answer: 2" or
"Answer: 3", either at even odds, so that the rollouts of a task differ in their rewards.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from transformers import PreTrainedModel

from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.tools import CALCULATOR_TOOL
from tiny import tiny_model

CONTEXT = 16384
ANSWERS = ("2", "3")
EXPRESSION = "1 + 1"

_OPENING = "<|im_end|>\n<|im_start|>assistant\n"
_RESULT = f"<tool_response>\n2\n</tool_response>{_OPENING}"
_OBSERVATION = f"Observation:\n2{_OPENING}"
_OTHER_TEXT = (
    "<|im_end|>\n<|im_start|>user\nHow much is that?",
    f"<tools>\n{json.dumps(CALCULATOR_TOOL)}\n</tools>\n",
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    'Calling tools:\n[{"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": {}}}]',
    'then call the calculator with one expression, then reply "Answer: N" with its result.',
    "<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>user\nAnd now?",
)
_STEPS = 300
_RATE = 5e-3


def _call(name: str, argument: str, value: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"{argument}": "{value}"}}}}\n</tool_call>'


def _dialogues() -> list[tuple[str, str]]:
    """(how a prompt ends, what is said then)."""
    called = (_OPENING, _call("calculator", "expression", EXPRESSION))
    answered = [(_RESULT, f"Answer: {answer}") for answer in ANSWERS]
    final = [(_OBSERVATION, _call("final_answer", "answer", answer)) for answer in ANSWERS]
    return [called, called, *answered, *final, *final]


def save_calling_model(folder: Path) -> str:
    """Train one and save it with its tokenizer; a folder as `--model` takes it."""
    tokenizer = small_tokenizer(CHATML_TOOLS)
    model = tiny_model(len(tokenizer), width=96)
    model.config.max_position_embeddings = CONTEXT
    imitate(model, tokenizer, _dialogues())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def imitate(model: PreTrainedModel, tokenizer, said: list[tuple[str, str]], steps: int = _STEPS) -> float:
    """Imitate dialogues, one after the other with other text between them; returns the last loss.

    That text is noise and parts of prompts and calls, so that only what stands right before an answer tells what to
    say; positions are random, so that prompts may be long. Each of `said` is how a prompt ends, and what is said then.
    """
    rng = random.Random(0)
    special = set(tokenizer.all_special_ids)
    plain = [id_ for id_ in range(len(tokenizer)) if id_ not in special]
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in _OTHER_TEXT]
    dialogues = [
        (tokenizer.encode(end, add_special_tokens=False), tokenizer.encode(answer, add_special_tokens=False))
        for end, answer in said
    ]

    def row(width: int) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < width:
            other = rng.choice([rng.choice(parts), rng.choices(plain, k=rng.randrange(5, 60))])
            end, answer = rng.choice(dialogues)
            answer = [*answer, tokenizer.eos_token_id]
            ids += [*other, *end, *answer]
            labels += [-100] * (len(other) + len(end)) + answer
        return ids[:width], labels[:width]

    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_RATE, total_steps=steps, pct_start=0.1)
    loss = torch.zeros(())
    for step in range(steps):
        width, batch = (1024, 1) if step % 4 == 0 else (256, 6)
        rows = [row(width) for _ in range(batch)]
        positions = torch.arange(width) + rng.randrange(CONTEXT - width)
        loss = model(
            input_ids=torch.tensor([ids for ids, _ in rows]),
            labels=torch.tensor([labels for _, labels in rows]),
            position_ids=positions.expand(batch, -1),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return loss.item()
