"""Whatever a model says in a task with turns is answered and scored, by our families and by reasoning-gym's scorers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from mini_agentic_rl.datasets import find_family
from mini_agentic_rl.recipes.reasoning_gym.gym import generators

from .conftest import Attack

FAMILIES = ("countdown", "guess", "retrieval", "units", "wordle")
LIMIT_S = 1.0
"""Seconds of one turn of a family of ours."""
SCORE_LIMIT_S = 75.0
"""Seconds of one score: ten of work, and the start of a process where an answer has ended the last one."""

ODD = [
    *("", " ", "\x00", "\ud800", "🙂", "١٢", "½", "nan", "-0", "1e999", "9" * 5000, "(" * 99, "1" + "+1" * 40),
    *(
        "9**9**9",
        "3(4)",
        "1 2",
        "[1, 2]",
        "{}",
        "None",
        "true",
        "crane",
        "CRANE",
        "aaaaa",
        "cränes",
        "</tool_response>",
    ),
    *("1,234", "-5", "a" * 20_000, "\n" * 3000, "Answer: 1", "Guess: 5", "'; DROP TABLE", "x" * 199 + "\n", "\u202e5"),
    *("0x1f", "03", "5.", "9**9**9**9", "1e10000", "-1e-10000", "𝟙𝟚", "Ⅷ", "１２", "5\u200b", "İstan", "ﬀﬀﬀ", "groß"),
    *("9" * 10_000, "9" * 199, "(" * 5000, "1/(1-1)", "1//0", "(1)(2)", "1if 2else 3", "1_000", "~1", "-" * 99 + "1"),
    *(
        "__import__('os').system('true')",
        "().__class__.__mro__",
        "{{7*7}}",
        "%s%n",
        "{0.__class__}",
        "\x1b[2J",
        "\x00" * 99,
    ),
    *("a" * 40 + "!", "((a+)+)+$", "1," * 100, "1,000" * 40, ",".join(["999"] * 60), "1." + "0" * 190, "e\u0301" * 100),
]
FRAMES = ["{}", "Answer: {}", "Guess: {}", "Answer: {}\n", "\nAnswer: {}\n</s>", "Answer: {0}\nAnswer: {0}"]
TOOLS = ["convert", "calculator", "search", "read", "", "submit", "__class__"]
FIELDS = ["unit", "expression", "query", "document", "x"]

GENERATORS_LEFT_OUT = {"composite", "knight_swap"}
"""One needs other generators as settings, the other takes seconds for each problem."""


def message(rng: random.Random) -> dict[str, Any]:
    """Return something that a model might say, or should not."""
    if rng.random() < 0.5:
        return {"role": "assistant", "content": rng.choice([rng.choice(FRAMES).format(rng.choice(ODD)), None, ""])}
    arguments = rng.choice(
        [
            json.dumps({rng.choice(FIELDS): rng.choice([*ODD, 5, -1, 10**30, 1.5, None, True, [], {}])}),
            rng.choice(["", "null", "[]", '"x"', "{", "[" * 5000, '{"unit"', "NaN"]),
        ]
    )
    function = {"name": rng.choice([*TOOLS, "\ud800"]), "arguments": rng.choice([arguments] * 9 + [None, 5, {}, []])}
    calls = [{"id": "c", "type": "function", "function": function}] * rng.choice([1, 1, 1, 2, 50])
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_whatever_a_model_says_in_a_task_is_answered_and_scored(attack: Attack) -> None:
    rng = random.Random(0)
    rows = {name: list(find_family(name).tasks("train", 12, 0)) for name in FAMILIES}
    for number in range(attack.times(4000)):
        name = FAMILIES[number % len(FAMILIES)]
        said = [message(rng) for _ in range(6)]
        with attack.attempt(said, limit_s=LIMIT_S):
            episode = find_family(name).start(rng.choice(rows[name]))
            for one in said:
                for reply in episode.receive(one):
                    assert len(reply["content"].encode()) < 10_000, "what follows has to fit a request"
            scores = episode.scores()
            assert 0.0 <= scores["reward"] <= 1.0
            assert all(math.isfinite(value) for value in scores.values())


def test_hostile_answers_to_the_scorers_of_reasoning_gym(attack: Attack, tmp_path: Path) -> None:
    file = tmp_path / "written"
    programs = [
        f"open({str(file)!r}, 'w').write('x')",
        f"__import__('os').system('touch {file}')",
        f"__import__('subprocess').Popen(['touch', {str(file)!r}])",
        f"__import__('pathlib').Path({str(file)!r}).touch()",
        f"__import__('os').mkdir({str(file)!r})",
        "__import__('socket').create_connection(('127.0.0.1', 9))",
        "__import__('os').fork()",
        "__import__('os')._exit(3)",
        "__import__('sys').exit()",
        "[0] * 10**12",
        "(lambda f: f(f))(lambda f: f(f))",
    ]
    rng = random.Random(0)
    names = [name for name in generators() if name not in GENERATORS_LEFT_OUT]
    rng.shuffle(names)
    for name in names[: attack.times(len(names))]:
        family = find_family(f"reasoning_gym:{name}")
        (row,) = family.tasks("train", 1)
        for answer in rng.sample([*programs, *ODD], 3):
            with attack.attempt((name, answer), limit_s=SCORE_LIMIT_S):
                episode = family.start(row)
                episode.receive({"role": "assistant", "content": f"Answer: {answer}"})
                assert 0.0 <= episode.scores()["reward"] <= 1.0
                assert not file.exists()
