"""Searches for a prompt: what APO and GEPA have in common.

algorithm    `PromptSearch`, the base of the algorithms: settings, what it is bound to, its result
run          `PromptSearchRun`: begin or go on, a step and a checkpoint at a time, to the end
state        what a checkpoint holds of any search
trials       rollouts of prompts, and what a model is shown of them
writer       the model that writes templates, held to their `placeholders`
prompt_resource, settings
"""
