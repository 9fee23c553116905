"""Learn from use: a server keeps the sessions of an agent, somebody says later what they were worth, a learner learns.

    python examples/learn_from_use.py --folder outputs/use

The agent here is one call, and the people are a rule (an answer is to be one short sentence). In production the three
parts are `mini-agentic-rl serve --learn-from-use FOLDER`, the agent, and `mini-agentic-rl learn FOLDER`, each in a
process of its own; here they take turns in one.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI

from mini_agentic_rl import Sessions, session
from mini_agentic_rl.apps.learning import LearnSettings, learn_job
from mini_agentic_rl.commands import ServeSettings, open_server

THINGS = ("rain", "a river", "bread", "a bicycle", "music", "a bee", "snow", "glass")
QUESTIONS = [f"What is {thing}?" for thing in THINGS]


def answer(url: str, question: str, max_tokens: int) -> tuple[str, str]:
    """Answer a question in a session of its own, with the user's consent; return the session's id and the answer."""
    with session(url, key=question, consent=True) as opened, OpenAI(base_url=opened.base_url, api_key="none") as client:
        reply = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
        )
        return opened.id, reply.choices[0].message.content or ""


def worth(text: str) -> float:
    """What people would say: 1 for one sentence of at most 20 words, less the longer it is."""
    words = len(text.split())
    return float(text.strip().endswith(".")) * min(1.0, 20 / max(1, words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("outputs/use"))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4, help="sessions of each question in a round")
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    serving = ServeSettings(model=options.model, port=0, learn_from_use=options.folder)
    learning = LearnSettings(folder=options.folder, once=True)
    with open_server(serving) as server, Sessions(server.endpoint) as sessions, ThreadPoolExecutor(32) as people:
        for number in range(options.rounds):
            asked = QUESTIONS * options.samples
            said = list(people.map(lambda question: answer(server.endpoint, question, options.max_tokens), asked))
            for session_id, text in said:
                sessions.reward(session_id, worth(text))
            mean = sum(worth(text) for _, text in said) / len(said)
            done = learn_job(learning)
            time.sleep(2)  # the server looks for new versions once a second
            print(f"round {number + 1}: mean reward {mean:.3f}, then version {done['version']}")


if __name__ == "__main__":
    main()
