"""Helper processes that take too much time or memory are ended, whatever the kernel bounds."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gateway.constraints.forms import END, TOKENIZER, json_schema, rule_of
from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.gateway.settings import GrammarLimits
from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.processes import DeadlineProcess, EndedError

GREEDY = """
from mini_agentic_rl.processes import bound_memory, serve_answers
bound_memory(32)
serve_answers(lambda: lambda mib: len(bytearray(mib << 20)) and __import__("time").sleep(600))
"""


def bound_the_memory_of_a_helper(folder: Path) -> None:
    (folder / "greedy.py").write_text(GREEDY)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ["PYTHONPATH"]))
    helper = DeadlineProcess("greedy")
    with pytest.raises(EndedError):
        helper.ask(256, limit=60)


async def bound_a_grammar(*, seconds: float, mib: int, setting: str) -> None:
    compiler = ConstraintCompiler(
        TOKENIZER, [END], limits=GrammarLimits(max_grammar_seconds=seconds, max_grammar_mib=mib)
    )
    simple = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    assert await compiler.compile(rule_of(response_format=json_schema(simple))) is not None
    costly = {"type": "string", "allOf": [{"pattern": f".*a{number}.*"} for number in range(30)]}
    with pytest.raises(BadRequestError, match=setting):
        await compiler.compile(rule_of(response_format=json_schema(costly)))
    compiler.close()


def main() -> None:
    bound_the_memory_of_a_helper(Path(sys.argv[1]))
    asyncio.run(bound_a_grammar(seconds=60, mib=16, setting="max_grammar_mib"))


if __name__ == "__main__":
    main()
