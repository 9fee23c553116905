"""`new`: write a small project that runs at once."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import Field

from ..config import Settings
from ..errors import UserError

TRAIN_KINDS: Final = [
    "animals",
    "fruits",
    "colours",
    "rivers",
    "tools",
    "sports",
    "cities",
    "planets",
    "trees",
    "metals",
    "birds",
    "flowers",
]
TEST_KINDS: Final = ["drinks", "games", "vegetables", "instruments", "oceans", "languages"]
_COUNTS: Final = {2: "two", 3: "three", 4: "four"}


class NewSettings(Settings):
    """The settings of `new`."""

    project: Path = Field(default=Path("my-agent"), json_schema_extra={"argument": True})
    """Folder to write; it is made if it is not there, and has to be empty."""


def new(settings: NewSettings) -> None:
    """Write a small project that runs at once: an agent, its tasks, a reward, settings, and a test.

    `mini-agentic-rl new my-agent` writes the folder my-agent; `mini-agentic-rl train --config train.yaml` in it
    trains. Then change one file after another into your own: agent.py, reward.py, tasks/.
    """
    for path in new_job(settings):
        typer.echo(f"wrote {path}")
    typer.echo(f"next: cd {shlex.quote(str(settings.project))} && mini-agentic-rl train --config train.yaml")


def new_job(settings: NewSettings) -> list[Path]:
    """Write the project, and return its files.

    Raises:
        UserError: the folder holds something, or cannot be written.
    """
    folder = settings.project
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "holds something already" if folder.is_dir() else "is a file"
            raise UserError(f"{folder} {what}: name a new folder, or an empty one", setting="project")
        written = []
        for name, text in _files(folder.resolve().name).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}", setting="project") from error
    return written


def _files(name: str) -> Mapping[str, str]:
    title = re.sub(r"[\s`#]+", " ", name).strip() or "my-agent"
    return {
        "README.md": _README.replace("{title}", title),
        "agent.py": _AGENT,
        "reward.py": _REWARD,
        "tasks/train.jsonl": _rows(TRAIN_KINDS),
        "tasks/test.jsonl": _rows(TEST_KINDS),
        "train.yaml": _TRAIN,
        "test_agent.py": _TEST,
    }


def _rows(kinds: list[str]) -> str:
    return "".join(json.dumps(row) + "\n" for row in _tasks(kinds))


def _tasks(kinds: list[str]) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        for count, word in _COUNTS.items():
            yield {"question": f"Name {word} {kind}, with commas between them.", "answer": str(count)}


_AGENT: Final = '''"""The agent: it gets a task and a model, asks the model, and is told what that was worth."""

from mini_agentic_rl import LitAgent
from openai import AsyncOpenAI

from reward import reward


class Agent(LitAgent):
    """Answers a task with one call. Put your own agent here: anything that takes a base URL."""

    async def rollout_async(self, task, resources, rollout):
        """Try one task, a row of tasks/train.jsonl; the number that is returned is its reward."""
        llm = resources["llm"]
        base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        answer = await ask(base_url, llm.api_key or "none", llm.model, task["question"], **llm.sampling_parameters)
        return reward(answer, task)


async def ask(base_url, api_key, model, question, **sampling):
    """Return what the model answers. Every call at this URL is recorded with its tokens, and trained."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": question}]
        reply = await client.chat.completions.create(model=model, messages=messages, **sampling)
    return reply.choices[0].message.content or ""
'''

_REWARD: Final = '''"""The reward: what an answer is worth, from 0 to 1."""


def reward(answer, task):
    """Return 1.0 for exactly as many names as were asked for, and less the further away the answer is.

    A reward that grades teaches faster than one that is mostly 0: answers to one task are compared with each other.
    """
    wanted = int(task["answer"])
    names = [name.strip(" .\\n") for name in answer.split(",")]
    good = [name for name in names if 0 < len(name.split()) < 4]
    if len(good) != len(names):
        return 0.0
    return max(0.0, 1.0 - abs(len(good) - wanted) / wanted)
'''

_TRAIN: Final = """# mini-agentic-rl train --config train.yaml
# Options on the command line win; `mini-agentic-rl train --help` tells them, --help-all all of them.
agent: agent:Agent          # module:ClassName
dataset: tasks              # train.jsonl and test.jsonl: a question and an answer each, and what else you like
model: embedded             # or a Hugging Face id, as Qwen/Qwen2.5-0.5B-Instruct, or a folder
output_dir: outputs/run
total_steps: 12
tasks_per_step: 8
samples_per_prompt: 8       # tries at each task, which are compared with each other
max_new_tokens: 32          # at most this many sampled tokens in one call
eval_size: 18
# loggers: tensorboard      # or wandb, swanlab, mlflow, trackio; several with commas
# otlp: http://localhost:6006   # traces for Phoenix, Langfuse, Jaeger ...
"""

_TEST: Final = '''"""Tests of agent, reward and tasks, which need no model: pip install pytest, then python -m pytest"""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agent import ask
from reward import reward

TASKS = Path(__file__).parent / "tasks"


@pytest.mark.parametrize(
    ("answer", "worth"),
    [("cats, dogs", 1.0), ("cats", 0.5), ("cats, dogs, owls", 0.5), ("", 0.0), ("I like many animals, really.", 0.0)],
)
def test_an_answer_is_worth_the_more_the_better_it_is(answer, worth):
    assert reward(answer, {"answer": "2"}) == worth


def test_every_task_has_a_question_and_an_answer_and_none_is_in_both_files():
    train, test = (
        [json.loads(line) for line in (TASKS / name).read_text().splitlines()] for name in ("train.jsonl", "test.jsonl")
    )
    assert all(task["question"] and int(task["answer"]) > 0 for task in train + test)
    assert not {task["question"] for task in train} & {task["question"] for task in test}


class Model(BaseHTTPRequestHandler):
    """A model that always says the same, behind the interface of the real one."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": f"cats, dogs ({asked['messages'][0]['content']})"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice]}
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_the_agent_asks_the_model_and_returns_its_words():
    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        answer = asyncio.run(ask(url, "none", "a-model", "Name two animals.", temperature=0.0))
        server.shutdown()
    assert answer == "cats, dogs (Name two animals.)"
'''

_README: Final = """# {title}

An agent that learns by reinforcement. It runs as it is; change one file after another into your own.

```bash
mini-agentic-rl train --config train.yaml          # measures, trains, measures again, writes outputs/run
mini-agentic-rl dashboard outputs/run              # what the agent did, and why a reward is what it is
mini-agentic-rl eval --agent agent:Agent --dataset tasks --adapter outputs/run/adapter
mini-agentic-rl serve --adapter outputs/run/adapter --port 8000     # behind an OpenAI-compatible URL
pip install pytest && python -m pytest             # the tests of these files; they need no model
```

| file | what it holds | change it to |
|---|---|---|
| `agent.py` | the agent: it gets a task and the address of the model | your own, in any SDK that takes a `base_url` |
| `reward.py` | what an answer is worth | what you want more of |
| `tasks/` | `train.jsonl` is trained on, `test.jsonl` only measured | your tasks: `question`, `answer`, what you like |
| `train.yaml` | the settings of the training | `mini-agentic-rl train --help` tells them |
| `test_agent.py` | tests of the above | keep them green: a wrong reward is learnt as well as a right one |

The first training fetches the embedded model (SmolLM2-135M, 93 MB) and takes a few minutes on a CPU. A second run
needs another `--output-dir`, or `--overwrite`; `--resume` goes on with one that was stopped.

Nothing is learnt? Look at the rewards first. Answers to one task are compared with each other: if they are all worth
the same, there is nothing to prefer. Make tasks easier, or let the reward grade.
"""
