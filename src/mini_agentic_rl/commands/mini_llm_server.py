"""Serve a model behind an OpenAI-compatible endpoint, under the older name of `serve`.

    python -m mini_agent_lighting.utils.mini_llm_server --model Qwen/Qwen2.5-0.5B-Instruct --port 8000

The options are those of `mini-agentic-rl serve`.
"""

from __future__ import annotations

import sys

from mini_agentic_rl.gateway import MiniLLMServer

__all__ = ["MiniLLMServer", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Serve until Ctrl-C."""
    # An absolute import: under the older name this module belongs to another package.
    from mini_agentic_rl.commands.command_line import app

    app(["serve", *(sys.argv[1:] if arguments is None else arguments)], prog_name="mini_llm_server")


if __name__ == "__main__":
    main()
