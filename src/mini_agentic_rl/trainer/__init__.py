"""The trainer, the run folder that it writes, and the report on it.

Follow `Trainer.fit`:

    trainer.py           `Trainer`: keywords become parts, an agent and tasks become a run
    keywords.py          the refusal of a keyword that it does not know
    components.py        a part from an instance, a class, a factory, a path or a mapping
    parts.py             strategy, store and runner: those asked for, those of the environment, or the usual ones
    recorded_run.py      a run in its folder: begun or resumed, and its summary written at the end
    run_folder.py        `RunFolder`: its files and checkpoints; changed_settings.py tells what a resume would change
    run.py               `Run`: the bundles of the algorithm and of the runners, which a strategy runs on one store

Follow the answers of a run to its report:

    evaluations.py       every answer, kept; statistics.py and intervals.py say how sure a share of right ones is,
                         majority.py what a vote of several answers gives
    summary.py           `summary.json`
    report.py            `report.html`, with charts.py
    verdict.py           whether rewards made the policy better on held-out tasks
    comparison.py        runs on the same problems, by paired tests (paired.py)
    sweep_table.py       the runs of a sweep, as means over their seeds (seed_means.py)

settings.py holds the settings of runners and folder; all else loads when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
