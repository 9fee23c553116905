"""Rewards: scores of replies.

Pure functions of what a model said and what was right, and reward functions made of them, of a judge, of a reward model
and of any callable; the latter are called alike, by TRL, by `RewardHook` and by hand (`base`).
"""

from .base import Reward, RewardError, RewardFunction, Sample, samples_of
from .combine import NormalisedSum, WeightedSum, load_reward, load_rewards, weighted_sum
from .extract import extract_answer
from .format import FormatReward, LengthPenaltyReward, has_answer_line, has_boxed_answer, has_thinking, length_penalty
from .function import FunctionReward
from .judge import JudgeReward
from .math import AccuracyReward, is_correct, normalise_answer, same_answer
from .remote import RemoteReward
from .rubric import Criterion, Rubric
from .steps import StepReward, count_steps
from .symbolic import SymbolicError
from .tool_use import ToolUseReward
from .values import parse_number, plain_number

__all__ = [
    "AccuracyReward",
    "Criterion",
    "FormatReward",
    "FunctionReward",
    "JudgeReward",
    "LengthPenaltyReward",
    "NormalisedSum",
    "RemoteReward",
    "Reward",
    "RewardError",
    "RewardFunction",
    "Rubric",
    "Sample",
    "StepReward",
    "SymbolicError",
    "ToolUseReward",
    "WeightedSum",
    "count_steps",
    "extract_answer",
    "has_answer_line",
    "has_boxed_answer",
    "has_thinking",
    "is_correct",
    "length_penalty",
    "load_reward",
    "load_rewards",
    "normalise_answer",
    "parse_number",
    "plain_number",
    "same_answer",
    "samples_of",
    "weighted_sum",
]
