"""Retrieval: questions about an invented world, answered by searching its pages."""

from .retrieval import Retrieval

__all__ = ["Retrieval"]
