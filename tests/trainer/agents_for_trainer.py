"""Agents, algorithms and parts that are named by their dotted path in the tests beside this file."""

from __future__ import annotations

from mini_agentic_rl import Algorithm, Hook, InMemoryLightningStore, LitAgent, LitAgentRunner, rollout


class Half(LitAgent):
    """Earns half a point."""

    def rollout(self, task):
        return 0.5


def earn_half(task):
    """The same as a plain function."""
    return 0.5


async def earn_by_prompt(task, prompt_template, rollout):
    """Asks for a resource."""
    return float(len(prompt_template.format(word=task)))


half = rollout(earn_half)


class Seen(Hook):
    """Counts what ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def on_rollout_end(self, *, rollout, spans):
        self.ended.append(rollout.input)


class Forgetful(Algorithm):
    """Follows none of the trainer's settings; keeps what it was given."""

    async def run(self, train_dataset=None, val_dataset=None):
        self.given = (train_dataset, val_dataset, self.context)


class Obedient(Forgetful):
    """Follows all of them."""

    honours = frozenset({"num_epochs", "on_failure"})


class CountingRunner(LitAgentRunner):
    """A runner of the user's own."""

    runs = 0

    async def iter(self, *, event=None):
        CountingRunner.runs += 1
        await super().iter(event=event)


def make_store():
    """A factory."""
    return InMemoryLightningStore()


NOT_A_PART = 3
