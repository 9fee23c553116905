"""The process that compiles grammars for a trial on systems without fork, such as Windows.

    python -m mini_agentic_rl.gateway.constraints.spawned_trial_worker FILE MIB

FILE holds the tokenizer as JSON, MIB limits the memory of a grammar. A question is a grammar with its schemas.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from ...processes import bound_memory, peak_memory_bytes, serve_answers
from .trial_worker import try_grammar


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load the tokenizer and return the function that compiles a grammar for a trial."""
    setup = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokens = LLTokenizer(setup["tokenizer"], eos_token=setup["end_ids"])
    bound_memory(int(sys.argv[2]))

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        began, before = time.process_time(), peak_memory_bytes()
        outcome = try_grammar(question, tokens)
        return {**outcome, "seconds": time.process_time() - began, "mib": (peak_memory_bytes() - before) / 2**20}

    return answer


if __name__ == "__main__":
    serve_answers(prepare)
