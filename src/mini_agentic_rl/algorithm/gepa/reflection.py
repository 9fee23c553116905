"""The question to the model that reflects: the prompt, what came of it, and the rules for a new one."""

from __future__ import annotations

from collections.abc import Sequence

_REFLECT = """\
An agent follows this prompt template, whose placeholders are filled in with a task:
<template>
{template}
</template>

What it did with some tasks, with the reward of each (higher is better) and what is known of its mistakes:

{transcripts}

Write a new template for the same agent. Read the tasks and find out what is asked for in general; take over every fact
about the subject that the transcripts show and that the agent will need again, for it may not know it. Where an
attempt went well, keep what made it so; where it went wrong, say what is to be done instead. Give no answers to the
tasks above. {rules}
Answer with the new template between <prompt> and </prompt> and nothing else."""


def reflection(template: str, transcripts: Sequence[str], rules: str) -> str:
    """Return the question (the update of a prompt by reflection; section 3.2 of the paper)."""
    return _REFLECT.format(template=template, transcripts="\n\n".join(transcripts), rules=rules)
