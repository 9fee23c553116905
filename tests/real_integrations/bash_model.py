"""A tiny model that has learnt to mend one file by a tool that runs commands, every second time.

Asked for the first time it calls the tool with one of two commands at even odds: one puts `fixed.py` in the place of
`stats.py`, the other does nothing of use. After a tool's result it ends: mini-swe-agent by a command, Claude Code by a
word.
"""

from __future__ import annotations

import json
from pathlib import Path

from agents_sdk import calling_model
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from tiny import tiny_model

GOOD, USELESS, FINISH = "cp fixed.py stats.py", "cp stats.py old.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CONTEXT = 16384


def _call(tool: str, command: str) -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps({"command": command})}}}\n</tool_call>'


def save_bash_model(folder: Path, tool: str) -> str:
    """Train one that calls a tool of this name, and save it with its tokenizer; a folder as `--model` takes it."""
    opening = "<|im_end|>\n<|im_start|>assistant\n"
    finish = _call(tool, FINISH) if tool == "bash" else "Done."
    said = [(opening, _call(tool, GOOD)), (opening, _call(tool, USELESS))]
    said += [(f"</tool_response>{opening}", finish)] * 2
    tokenizer = small_tokenizer(CHATML_TOOLS)
    model = tiny_model(len(tokenizer), width=96)
    model.config.max_position_embeddings = CONTEXT
    calling_model.imitate(model, tokenizer, said, steps=600)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
