"""Write a folder of small tasks: a function to be written into solution.py, and a hidden test that calls it.

    python examples/harness/one_liners.py one-liners
    mini-agentic-rl train --agent-command "python examples/harness/write_once.py" --dataset one-liners \
        --max-new-tokens 64
"""

import random
import sys
from pathlib import Path

SHAPES = [
    ("x plus {a}", "x + {a}"),
    ("x minus {a}", "x - {a}"),
    ("x times {a}", "x * {a}"),
    ("{a} minus x", "{a} - x"),
    ("x times {a} plus {b}", "x * {a} + {b}"),
    ("x squared plus {a}", "x ** 2 + {a}"),
    ("the remainder of x divided by {a}", "x % {a}"),
    ("the larger of x and {a}", "max(x, {a})"),
    ("the smaller of x and {a}", "min(x, {a})"),
    ("a list with x and {a}", "[x, {a}]"),
]
INSTRUCTION = "Write a Python function f(x) that returns {words}. Answer with the code alone.\n"
CHECK = '''"""Compare what the function gives, in a process of its own, with what was asked for."""

import os
import subprocess
import sys

code = "exec(open('solution.py').read()); print([f(x) for x in (2, 5, 11)])"
ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10)
right = ran.stdout == str([{expression} for x in (2, 5, 11)]) + "\\n"
with open(os.environ["REWARD_FILE"], "w") as file:
    file.write("1" if right else "0.1" if ran.returncode == 0 else "0")
'''


def main(folder: Path) -> None:
    """Write the tasks; none of the test set is in the training set."""
    draw = random.Random(0)
    made = [
        (words.format(a=a, b=b), expression.format(a=a, b=b))
        for words, expression in SHAPES
        for a, b in zip(draw.sample(range(2, 30), 10), draw.sample(range(2, 30), 10), strict=True)
    ]
    draw.shuffle(made)
    for number, (words, expression) in enumerate(made):
        task = folder / ("train" if number < 60 else "test") / f"{number:03d}"
        (task / "tests").mkdir(parents=True, exist_ok=True)
        (task / "instruction.md").write_text(INSTRUCTION.format(words=words))
        (task / "tests" / "check.py").write_text(CHECK.replace("{expression}", expression))
        (task / "tests" / "test.sh").write_text('exec python3 -I "$TESTS/check.py"\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
