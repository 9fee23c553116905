"""Questions to the critic. Filled in by `str.format`."""

from __future__ import annotations

CRITIQUE = """\
The prompt template:
<template>
{template}
</template>

What the agent did with it:

{transcripts}

{angle}

Write down, in at most five short points, what about the template held the reward back and what a better template would
say instead. Speak about the template in general: no advice that only helps one of the tasks above, and no answers to
them. Do not write the new template."""

ANGLES = (
    "Begin with the attempts that earned least: find what in the template led to each failure.",
    "Compare the attempts that earned most with those that earned least: find what the template should demand so that "
    "all go like the best.",
    "Look for what the template leaves unsaid: the form of the answer, the steps on the way, what to do in doubt.",
)
"""Points of view that a criticism takes first; the children of a parent take turns, so that they differ."""

EDIT = """\
The prompt template:
<template>
{template}
</template>

A criticism of it:
<criticism>
{critique}
</criticism>

Rewrite the template so that the criticism no longer applies. {rules}
Answer with the new template between <prompt> and </prompt> and nothing else."""
