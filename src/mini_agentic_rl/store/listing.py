"""Lists of rollouts and groups: filters, pages, and the columns `step`, `group_id` and `reward` that they read.

A page begins below a position: the number that a store gave a rollout when it was created. Rollouts that are created or
deleted meanwhile shift no later page. A search looks at a bounded number of rollouts, so a page may end before it is
full, and even be empty, while `next` says where to go on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from ..semconv import AGL_ANNOTATION, AGL_REWARD, CompletionSpanAttributes, LightningSpanAttributes
from ..types import Attempt, AttemptedRollout, Rollout, RolloutStatus

MAX_LISTED: Final = 1000
"""Most rollouts or groups of one page."""
MAX_EXAMINED: Final = 2000
"""Rollouts that one call looks at."""
MAX_EXAMINED_WITH_SPANS: Final = 100
"""Rollouts that one call looks at when it searches the text of their spans."""


class RolloutPage(BaseModel):
    """Some rollouts, the newest first, each with its latest attempt."""

    items: list[AttemptedRollout | Rollout]
    rewards: list[float | None]
    """For each item, the final reward of its latest attempt."""
    next: int | None
    """Position below which the next page begins; None at the end."""


class RolloutGroup(BaseModel):
    """The rollouts that were sampled for one task in one step."""

    group: str
    step: int | None
    """Number of training steps that were finished before it was sampled."""
    rewards: list[float | None]
    """Final reward of the latest attempt of each rollout, oldest first."""
    input: Any
    """Task of the first rollout."""


class GroupPage(BaseModel):
    """Some groups, the newest first by their first rollout."""

    items: list[RolloutGroup]
    next: int | None
    """Position below which the next page begins; None at the end."""


@dataclass(frozen=True)
class RolloutFilter:
    """Conditions that a listed rollout meets; None means no condition."""

    status_in: Sequence[RolloutStatus] | None = None
    mode: str | None = None
    step: int | None = None
    """`metadata["step"]`: number of training steps finished before."""
    group: str | None = None
    """`metadata["group"]`."""
    reward_min: float | None = None
    reward_max: float | None = None
    worker_contains: str | None = None
    """Text within the worker id of the latest attempt."""
    input_contains: str | None = None
    """Text within the task, as JSON."""
    text: str | None = None
    """Text within the id, the task, the metadata, the metadata of the latest attempt, or a span."""

    def max_examined(self, limit: int) -> int:
        """Return the number of rollouts that one call looks at for a page of `limit` rollouts."""
        if self.text is not None:
            return MAX_EXAMINED_WITH_SPANS
        conditions = [name for name, value in vars(self).items() if value is not None]
        one_status = self.status_in is not None and len(self.status_in) == 1
        found_by_index = not conditions or conditions in (["step"], ["group"]) or (one_status and len(conditions) == 1)
        return limit if found_by_index else MAX_EXAMINED

    def matches(self, rollout: Rollout, attempt: Attempt | None, reward: float | None) -> bool:
        """Return True if a rollout meets all conditions except `text`."""
        if self.status_in is not None and rollout.status not in self.status_in:
            return False
        if self.mode is not None and rollout.mode != self.mode:
            return False
        if self.step is not None or self.group is not None:
            step, group = step_and_group(rollout.metadata)
            if (self.step is not None and step != self.step) or (self.group is not None and group != self.group):
                return False
        if self.reward_min is not None and (reward is None or reward < self.reward_min):
            return False
        if self.reward_max is not None and (reward is None or reward > self.reward_max):
            return False
        worker = "" if attempt is None else attempt.worker_id or ""
        if self.worker_contains is not None and self.worker_contains not in worker:
            return False
        return self.input_contains is None or contains_text(self.input_contains, [_json_text(rollout.input)])

    def text_found(self, rollout: Rollout, attempt: Attempt | None, span_bodies: Iterable[str]) -> bool:
        """Return True if `text` is None, or occurs in the rollout, its latest attempt or the JSON of its spans."""
        if self.text is None:
            return True
        texts = [rollout.rollout_id, _json_text(rollout.input), _json_text(rollout.metadata)]
        if attempt is not None:
            texts.append(_json_text(attempt.metadata))
        return contains_text(self.text, texts) or contains_text(self.text, span_bodies)


def check_page(before: int | None, limit: int) -> None:
    """Check the position and the limit of a listing.

    Raises:
        ValueError: `limit` is not between 1 and `MAX_LISTED`, or `before` is no position.
    """
    if not 1 <= limit <= MAX_LISTED:
        raise ValueError(f"limit={limit}: expected a number from 1 to {MAX_LISTED}")
    if before is not None and not 0 <= before < 2**63:
        raise ValueError(f"before={before}: expected the `next` of an earlier page")


def json_spellings(text: str) -> tuple[str, str]:
    """Return a text as JSON spells it, with and without escapes for characters outside ASCII."""
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def contains_text(text: str, json_texts: Iterable[str]) -> bool:
    """Return True if a text occurs in one of these JSON texts, in either spelling."""
    spellings = json_spellings(text)
    return any(spelling in json_text for json_text in json_texts for spelling in spellings)


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# The columns of a rollout that are taken from its metadata, and the reward of a span.

_LONGEST_GROUP: Final = 200


def step_and_group(metadata: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return `step` and `group` of a rollout's metadata, as databases can keep and index them."""
    step, group = metadata.get("step"), metadata.get("group")
    if not isinstance(step, int) or not -(2**63) <= step < 2**63:
        step = None
    if group is not None:
        group = str(group)[:_LONGEST_GROUP].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return step, group


_REWARD_VALUE: Final = re.compile(re.escape(LightningSpanAttributes.REWARD.value) + r"\.(\d+)\.value")
_AGENTOPS_OUTPUTS: Final = ("agentops.task.output", "agentops.entity.output")
"""Attributes in which AgentOps keeps the result of a decorated reward function: `{"type": "reward", "value": …}`."""


def primary_reward(name: str, attributes: Mapping[str, Any]) -> float | None:
    """Return the primary reward of a span with this name and these attributes, or None if it is no reward span.

    Reads the attributes of this package, which are those of agent-lightning 0.3, the single attribute of 0.2, and those
    of AgentOps.

    Raises:
        ValueError, TypeError: the reward is not a number.
    """
    numbers = [int(match[1]) for key in attributes if (match := _REWARD_VALUE.fullmatch(key))]
    if numbers:
        return float(attributes[f"{LightningSpanAttributes.REWARD.value}.{min(numbers)}.value"])
    value = attributes.get("reward") if name in (AGL_REWARD, AGL_ANNOTATION) else None
    for key in _AGENTOPS_OUTPUTS:
        if value is None and key in attributes:
            value = _agentops_reward(attributes[key])
    return float(value) if isinstance(value, int | float) else None


def _agentops_reward(output: Any) -> Any:
    if isinstance(output, str):
        try:
            output = json.loads(output)
        except ValueError:
            return None
    return output.get("value") if isinstance(output, Mapping) and output.get("type") == "reward" else None


LLM_CALL_SPAN: Final = CompletionSpanAttributes.SPAN_NAME
"""Name of the spans of LLM calls: the longest ones, and never with a reward."""


def stored_reward(name: str, attributes: Mapping[str, Any]) -> float | None:
    """Return the reward for the column `reward` of a span; None if it has none, or one that is not a number."""
    if name == LLM_CALL_SPAN or not any("reward" in key or key in _AGENTOPS_OUTPUTS for key in attributes):
        return None
    try:
        reward = primary_reward(name, attributes)
    except (ValueError, TypeError, OverflowError):
        return None
    return None if reward is None or math.isnan(reward) else reward
