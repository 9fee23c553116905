"""Train an assistant against a simulated user: two agents in one rollout, on one model and one base_url.

    python examples/train_with_user_simulator.py --steps 12
    python examples/train_with_user_simulator.py --train-both

A user wants a table on some day for some people, which only the user knows. The assistant has to ask, and then to book
with the right arguments. Both ask the same endpoint, each under the name of its model: the assistant's is trained, the
user's is the same model without its adapter. `--user-adapter` gives the user a trained adapter that stays as it is,
`--train-both` one that is trained along with the assistant's.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from openai import AsyncOpenAI

from mini_agentic_rl import LitAgent, LoggingHook, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings
from mini_agentic_rl.policy import LearnerSettings

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MOST_SEATS = 8
TURNS = 3
GREETING = "Welcome! How can I help you?"
OPENING = "I would like to book a table."
ASSISTANT_PROMPT = "You take bookings. Ask the guest for the day and the number of people, then call book."
USER_PROMPT = (
    "You are a guest who books a table on {day} for {seats} people. Answer the waiter in one short sentence that says "
    "the day and the number of people."
)
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a table.",
        "parameters": {
            "type": "object",
            "properties": {"day": {"type": "string", "enum": list(DAYS)}, "seats": {"type": "integer"}},
            "required": ["day", "seats"],
        },
    },
}


def goals(split: str, size: int, seed: int) -> list[dict[str, Any]]:
    """What the users want: `size` goals of a split, the same ones for the same seed."""
    draw = random.Random(f"{seed}/{split}")
    return [{"day": draw.choice(DAYS), "seats": draw.randint(1, MOST_SEATS)} for _ in range(size)]


def demonstration(goal: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation as it should be, for the assistant to imitate."""
    call = {"id": "call_1", "type": "function", "function": {"name": "book", "arguments": json.dumps(goal)}}
    return [
        {"role": "system", "content": ASSISTANT_PROMPT},
        {"role": "user", "content": OPENING},
        {"role": "assistant", "content": "On which day, and for how many people?"},
        {"role": "user", "content": f"On {goal['day']}, for {goal['seats']} people."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


class Booking(LitAgent):
    """The assistant and the user, who talk to each other until the assistant books."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"]
        if "user" in resources:
            user_model, user_sampling = resources["user"].model, llm.sampling_parameters
        else:
            user_model, user_sampling = f"{llm.model}-base", {**llm.sampling_parameters, "temperature": 0.0}
        base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        assistant: list[Any] = [
            {"role": "system", "content": ASSISTANT_PROMPT},
            {"role": "user", "content": OPENING},
        ]
        # The user sees the same conversation from the other side.
        user: list[Any] = [
            {"role": "system", "content": USER_PROMPT.format(**task)},
            {"role": "user", "content": GREETING},
            {"role": "assistant", "content": OPENING},
        ]
        async with AsyncOpenAI(base_url=base_url, api_key=llm.api_key or "none") as client:
            for turn in range(TURNS):
                completion = await client.chat.completions.create(
                    model=llm.model, messages=assistant, tools=[BOOK], **llm.sampling_parameters
                )
                reply = completion.choices[0].message
                if reply.tool_calls:
                    return float(asked_for(reply.tool_calls[0].function) == task)
                if turn == TURNS - 1:
                    break
                question = reply.content or ""
                user.append({"role": "user", "content": question})
                completion = await client.chat.completions.create(model=user_model, messages=user, **user_sampling)
                answer = completion.choices[0].message.content or ""
                user.append({"role": "assistant", "content": answer})
                assistant += [{"role": "assistant", "content": question}, {"role": "user", "content": answer}]
        return 0.0


def asked_for(function: Any) -> Any:
    """What the assistant wants to book; None where it called another function."""
    return json.loads(function.arguments) if function.name == "book" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument("--train-both", action="store_true", help="train the user as well, with an adapter of its own")
    parser.add_argument("--user-adapter", default=None, help="folder of a trained adapter for a user that is fixed")
    parser.add_argument("--steps", type=int, default=12, help="reinforcement-learning steps")
    parser.add_argument("--tasks-per-step", type=int, default=8, help="goals drawn in each step")
    parser.add_argument("--eval-size", type=int, default=50, help="held-out goals")
    parser.add_argument("--sft-examples", type=int, default=24, help="conversations that the assistant imitates first")
    parser.add_argument("--output-dir", default=None, help="folder for checkpoints and the adapters")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.train_both and options.user_adapter:
        parser.error("--train-both trains the user, --user-adapter keeps it as it is: give one of them")

    warm_start = WarmStart(demonstration, [BOOK], WarmStartSettings(examples=options.sft_examples))
    algorithm = MiniGRPO(
        options.model,
        adapters=("assistant", "user") if options.train_both else ("assistant",),
        fixed_adapters={"user": options.user_adapter} if options.user_adapter else None,
        total_steps=options.steps,
        tasks_per_step=options.tasks_per_step,
        max_new_tokens=48,
        eval_size=options.eval_size,
        seed=options.seed,
        warm_start=warm_start if options.sft_examples else None,
        learner=LearnerSettings(learning_rate=5e-4),
    )
    trainer = Trainer(
        algorithm=algorithm,
        agent=Booking(),
        hooks=[LoggingHook()],
        n_runners=64,
        output_dir=options.output_dir,
    )
    trainer.fit(goals("train", 10_000, options.seed), val_dataset=goals("test", options.eval_size, 0))
    for row in algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")


if __name__ == "__main__":
    main()
