"""The loop of a training, for every algorithm alike: measure, warm up, [sample, update]*, measure.

Follow a run from its start to its end:

    reinforcement.py    `ReinforcementLearning`, the base of the algorithms: loads the policy, serves it, runs a `Loop`;
                        arguments.py checks what it was given
    loop.py             `Loop`: the run from the first measurement to the last, and what is due after each step
    training_run.py     `TrainingRun`: what all parts of the loop are given; progress.py is what a checkpoint keeps
    measuring.py        accuracy before, between and after; validation.py chooses the weights that are kept
    warm_up.py          imitation before the first step, of what a `WarmStart` (warm_start.py) holds, until readiness.py
                        finds the policy ready for rewards
    checkpointing.py    checkpoints, the weights after each epoch, the result
    idle_steps.py       messages about steps that taught nothing, and the end of a run that only loses rollouts

Follow one step:

    steps.py            `ExactSteps`: sample, then learn; stale_steps.py learns while group_queue.py samples ahead
    step_tasks.py       the tasks of the step: in order, by curriculum.py, or by level_curriculum.py
    sampling.py         their rollouts, run until all have ended, and again where too few groups teach anything
    expert_prefix.py    failed tasks tried again, begun as an expert did
    credit.py           the rewards that each call of a rollout is trained with
    adapters.py         the rollouts as groups (groups.py) for each adapter that is trained
    replay.py           groups of earlier steps that join them
    objective.py        `Objective`: groups in, new weights out; `grpo/` and `ppo/` bring it, with the penalties of
                        shaping.py
    staleness.py        by how many updates the sampled tokens are older than the weights
    seen_tokens.py      a span of what the learner saw, for the dashboard

settings.py holds `LoopSettings`. Names are loaded when they are asked for: settings need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
