"""A setting is declared once: a field of one name in two unrelated classes is a homonym, with a reason, or an error."""

from __future__ import annotations

import importlib
import inspect
import re
from itertools import combinations
from pathlib import Path

import mini_agentic_rl
from mini_agentic_rl.config import Settings, extra_of

HOMONYMS = {
    "adapter": "the one that a model is taken with; all that are merged into it",
    "algorithm": "of reinforcement learning; of any training that the tool can start",
    "api_key": "keys that a server takes; the key that an agent sends",
    "backend": "who turns rewards into weights; what keeps the rollouts of a store",
    "batch_size": "examples of the imitation; of post-training; texts to score at once",
    "beta": "of the divergence from the reference; of the odds ratio",
    "dataset": "tasks of an agent; the examples that `dataset` shows, and takes by its place",
    "deterministic": "of the engine, which the loop's setting sets",
    "format": "of an exported model; of rows",
    "learning_rate": "of the policy's optimizer, of the value head, of the imitation",
    "schedule": "of the policy's optimizer, of the imitation",
    "max_attempts": "of a rollout that trains weights; of one that judges a prompt",
    "max_batch_tokens": "of a forward pass while sampling; of a forward-backward pass while learning",
    "max_grad_norm": "of the policy's gradients; of the value head's",
    "max_length": "tokens of an example to train on; of a text to score; characters that cost no reward",
    "max_new_tokens": "of a rollout's call; of a reply in `chat`",
    "max_samples": "tasks or examples to train on; examples to show, which may be none; rows of the tool's actions",
    "model": "the one to load; the name that an endpoint has for it",
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


_SETTINGS_CLASS = re.compile(r"^class .*Settings\b.*\):", re.MULTILINE)


def _declared(kind: type[Settings]) -> set[str]:
    annotated = set(inspect.get_annotations(kind)) & set(kind.model_fields)
    groups = {name for name in annotated if isinstance(kind.model_fields[name].default, Settings)}
    return {name for name in annotated - groups if "restates" not in extra_of(kind.model_fields[name])}


def _all_settings() -> list[type[Settings]]:
    package = Path(mini_agentic_rl.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if _SETTINGS_CLASS.search(path.read_text(encoding="utf-8")):
            importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
    found: list[type[Settings]] = []
    kinds = Settings.__subclasses__()
    while kinds:
        kind = kinds.pop()
        if kind not in found and kind.__module__.startswith("mini_agentic_rl."):
            found.append(kind)
            kinds += kind.__subclasses__()
    return found


def test_no_setting_is_declared_twice():
    twice: dict[str, set[str]] = {}
    declared = [(kind.__name__, _declared(kind)) for kind in _all_settings()]
    for (one, names), (other, others) in combinations(declared, 2):
        for name in names & others:
            twice.setdefault(name, set()).update((one, other))
    assert {name: found for name, found in twice.items() if name not in HOMONYMS} == {}
    assert set(HOMONYMS) <= set(twice), "a homonym that is none any more"


def test_each_panel_and_default_names_a_setting():
    for kind in _all_settings():
        kind.settings()
        for path in (*kind.defaults, *kind.helps):
            assert kind.setting_at(path.split(".")) is not None or path in kind.model_fields, (kind, path)
