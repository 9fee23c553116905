"""A setting is declared once: a field of one name in two unrelated classes is a homonym, with a reason, or an error."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from itertools import combinations

import mini_agentic_rl
from mini_agentic_rl.config import Settings, extra_of

HOMONYMS = {
    "dataset": "tasks of an agent; the examples that `dataset` shows, and takes by its place",
    "deterministic": "of the engine, which the loop's setting sets",
    "learning_rate": "of the policy's optimizer, of the value head, of the imitation",
    "max_attempts": "of a rollout that trains weights; of one that judges a prompt",
    "max_batch_tokens": "of a forward pass while sampling; of a forward-backward pass while learning",
    "max_grad_norm": "of the policy's gradients; of the value head's",
    "max_new_tokens": "of a rollout's call; of a reply in `chat`",
    "max_samples": "tasks to train on; examples to show, which may be none",
    "on_failure": "of a rollout that trains weights; of one that judges a prompt",
    "output": "file for the result of `eval`, `convert-dpo` and `dataset`, each in its own form",
    "preset": "a variant of the loss; what fits into some memory",
    "seed": "of all draws of a run; of the search for a prompt",
    "split": "of tasks to measure on; of examples to show, where `all` is one",
    "temperature": "of training, above 0; of measuring and of talking, where 0 is greedy",
    "total_steps": "optimizer steps of a schedule; steps of the loop",
    "warmup_steps": "of the policy's optimizer; of the imitation",
}
"""Names that stand for different settings."""

FLAT = ("post_training", "rl_training_tool", "rl.", "cli.store")
"""Rooms whose classes are flat, for their users type these names; what they share is still stated there again."""


def _declared(kind: type[Settings]) -> set[str]:
    annotated = set(inspect.get_annotations(kind)) & set(kind.model_fields)
    groups = {name for name in annotated if isinstance(kind.model_fields[name].default, Settings)}
    return {name for name in annotated - groups if "restates" not in extra_of(kind.model_fields[name])}


def _all_settings() -> list[type[Settings]]:
    for module in pkgutil.walk_packages(mini_agentic_rl.__path__, "mini_agentic_rl."):
        if module.name.endswith("settings") or ".jobs." in module.name:
            importlib.import_module(module.name)
    found: list[type[Settings]] = []
    kinds = Settings.__subclasses__()
    while kinds:
        kind = kinds.pop()
        if kind not in found and kind.__module__.startswith("mini_agentic_rl."):
            found.append(kind)
            kinds += kind.__subclasses__()
    return found


def test_no_setting_is_declared_twice():
    kinds = [
        kind
        for kind in _all_settings()
        if not any(kind.__module__.removeprefix("mini_agentic_rl.").startswith(room) for room in FLAT)
    ]
    twice: dict[str, set[str]] = {}
    for one, other in combinations(kinds, 2):
        for name in _declared(one) & _declared(other):
            twice.setdefault(name, set()).update((one.__name__, other.__name__))
    assert {name: found for name, found in twice.items() if name not in HOMONYMS} == {}
    assert set(HOMONYMS) <= set(twice), "a homonym that is none any more"


def test_each_panel_and_default_names_a_setting():
    for kind in _all_settings():
        kind.settings()
        for path in (*kind.defaults, *kind.helps):
            assert kind.setting_at(path.split(".")) is not None or path in kind.model_fields, (kind, path)
