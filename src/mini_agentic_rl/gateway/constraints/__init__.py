"""Answers of a given form: what a request asks for as a grammar, and the grammar as a limit on tokens (llguidance)."""

from .compiler import ConstraintCompiler
from .rules import AnswerRule, answer_rule

__all__ = ["AnswerRule", "ConstraintCompiler", "answer_rule"]
