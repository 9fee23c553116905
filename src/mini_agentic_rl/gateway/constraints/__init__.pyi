from .compiler import ConstraintCompiler as ConstraintCompiler
from .rules import AnswerRule as AnswerRule
from .rules import answer_rule as answer_rule
