"""Rewards for brevity."""

from __future__ import annotations


def length_penalty(n_tokens: int, *, free: int, limit: int) -> float:
    """0 up to `free` tokens, then down in a straight line to -1 at `limit` tokens and beyond.

    The soft over-long punishment of DAPO (arXiv:2503.14476, equation 13), with `limit - free` its buffer.

    Raises:
        ValueError: unless 0 <= free < limit and n_tokens >= 0.
    """
    if not 0 <= free < limit:
        raise ValueError(f"length_penalty needs 0 <= free < limit, not free={free}, limit={limit}")
    if n_tokens < 0:
        raise ValueError(f"n_tokens must be 0 or more, not {n_tokens}")
    return -min(1.0, max(0, n_tokens - free) / (limit - free))
