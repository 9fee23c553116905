"""`new`: write a small project that trains as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer
from pydantic import Field

from ..config import Settings
from ..errors import UserError
from ..visible_text import visible_argument

_TRAIN_KINDS: Final = (
    *("animals", "fruits", "colours", "rivers", "tools", "sports"),
    *("cities", "planets", "trees", "metals", "birds", "flowers"),
)
_TEST_KINDS: Final = ("drinks", "games", "vegetables", "instruments", "oceans", "languages")


class NewSettings(Settings):
    """The settings of `new`."""

    project: Path = Field(default=Path("my-agent"), json_schema_extra={"argument": True})
    """Folder to write; a new or an empty one."""


def new(settings: NewSettings) -> None:
    """Write a small project that trains as it is: an agent, its tasks, a reward, settings, and a test.

    `mini-agentic-rl new my-agent` writes the folder my-agent; `mini-agentic-rl train --config train.yaml` in it
    trains. Then change one file after another into your own: agent.py, reward.py, tasks/.
    """
    folder = settings.project
    title = re.sub(r"[\s`#]+", " ", folder.absolute().name).strip() or "my-agent"
    files = {
        "README.md": _README.replace("{title}", title),
        "agent.py": _AGENT,
        "reward.py": _REWARD,
        "tasks/train.jsonl": _rows(_TRAIN_KINDS),
        "tasks/test.jsonl": _rows(_TEST_KINDS),
        "train.yaml": _TRAIN,
        "test_agent.py": _TEST,
    }
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not empty" if folder.is_dir() else "is a file"
            raise UserError(f"{folder} {what}: name a new folder, or an empty one", setting="project")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            typer.echo(f"wrote {path}")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}", setting="project") from error
    typer.echo(f"next: cd {visible_argument(folder)}")
    typer.echo("then: mini-agentic-rl train --config train.yaml")


def _rows(kinds: Sequence[str]) -> str:
    """Return tasks as JSON lines."""
    rows = [
        {"question": f"Name {word} {kind}, with commas between them.", "answer": str(count)}
        for kind in kinds
        for count, word in ((2, "two"), (3, "three"), (4, "four"))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


_AGENT: Final = '''"""The agent: it gets a task and a model, asks the model, and returns a reward."""

from mini_agentic_rl import LitAgent
from openai import AsyncOpenAI

from reward import reward


class Agent(LitAgent):
    """Answers a task with one call. Put your own agent here: anything that takes a base URL."""

    async def rollout_async(self, task, resources, rollout):
        """Try one task, a row of tasks/train.jsonl, and return the reward."""
        llm = resources["llm"]
        base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        # Every call at this URL is recorded with its tokens, and trained.
        async with AsyncOpenAI(base_url=base_url, api_key=llm.api_key or "none") as client:
            messages = [{"role": "user", "content": task["question"]}]
            reply = await client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
        return reward(reply.choices[0].message.content or "", task)
'''

_REWARD: Final = '''"""The reward of an answer, from 0 to 1."""


def reward(answer, task):
    """Return 1.0 for the requested number of names, and less for an answer with more or fewer.

    A graded reward teaches faster than one that is mostly 0: answers to one task are compared with each other.
    """
    wanted = int(task["answer"])
    names = [name.strip(" .\\n") for name in answer.split(",")]
    good = [name for name in names if 0 < len(name.split()) < 4]
    if len(good) != len(names):
        return 0.0
    return max(0.0, 1.0 - abs(len(good) - wanted) / wanted)
'''

_TRAIN: Final = """# mini-agentic-rl train --config train.yaml
# Options on the command line win; `mini-agentic-rl train --help` shows them, --help-all shows all of them.
agent: agent:Agent          # module:ClassName
dataset: tasks              # train.jsonl and test.jsonl: a question and an answer each, and any other columns
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

_TEST: Final = '''"""Tests of the reward and the tasks, without a model: pip install pytest, then python -m pytest"""

import json
from pathlib import Path

import pytest

from reward import reward

TASKS = Path(__file__).parent / "tasks"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("cats, dogs", 1.0), ("cats", 0.5), ("cats, dogs, owls", 0.5), ("", 0.0), ("I like many animals, really.", 0.0)],
)
def test_a_better_answer_has_a_higher_reward(answer, expected):
    assert reward(answer, {"answer": "2"}) == expected


def test_every_task_has_a_question_and_an_answer_and_none_is_in_both_files():
    train, test = (
        [json.loads(line) for line in (TASKS / name).read_text(encoding="utf-8").splitlines()]
        for name in ("train.jsonl", "test.jsonl")
    )
    assert all(task["question"] and int(task["answer"]) > 0 for task in train + test)
    assert not {task["question"] for task in train} & {task["question"] for task in test}
'''

_README: Final = """# {title}

An agent that learns by reinforcement. It trains as it is; change one file after another into your own.

```bash
mini-agentic-rl train --config train.yaml          # measures, trains, measures again, writes outputs/run
mini-agentic-rl dashboard outputs/run              # what the agent did, and its rewards
mini-agentic-rl eval --agent agent:Agent --dataset tasks --adapter outputs/run/adapter
mini-agentic-rl serve --adapter outputs/run/adapter --port 8000     # behind an OpenAI-compatible URL
pip install pytest
python -m pytest                                   # the tests of these files; they need no model
```

| file | content | change it to |
|---|---|---|
| `agent.py` | the agent: it gets a task and the address of the model | your own, in any SDK that takes a `base_url` |
| `reward.py` | the reward of an answer | a score of what you want more of |
| `tasks/` | `train.jsonl` to train on, `test.jsonl` only to measure | your tasks: `question`, `answer`, other columns |
| `train.yaml` | the settings of the training | `mini-agentic-rl train --help` lists them |
| `test_agent.py` | tests of the above | keep them green: a wrong reward is learned as well as a right one |

The first training downloads the embedded model (SmolLM2-135M, 93 MB) and takes a few minutes on a CPU. A second run
needs another `--output-dir`, or `--overwrite`; `--resume` continues one that was stopped.

If nothing is learned, look at the rewards first. Answers to one task are compared with each other: if all have the same
reward, there is nothing to prefer. Make tasks easier, or grade the reward.

The check `lenient` in the output compares the last number of the text with the task's `answer`. It says something if
answers are values. Here `answer` is how many names to give, so the check says nothing.
"""
