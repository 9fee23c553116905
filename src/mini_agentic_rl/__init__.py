"""mini-agentic-rl: train the LLM agent you already have, on the computer you already have."""

__version__ = "0.1.0"
