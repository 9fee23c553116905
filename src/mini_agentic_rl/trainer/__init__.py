"""The trainer, the run folder that it writes, and the report on it.

`Trainer.fit`:

    trainer.py           `Trainer`: keywords become parts; an agent and tasks become a `Run`, algorithm and runners on
                         one store, executed by a strategy
    components.py        a part from an instance, a class, a factory, a path or a mapping; default parts
    run_folder.py        `RunFolder`: files and checkpoints of a run
    run.py               what a strategy executes of a run; and a run in its folder, from the beginning or its latest
                         checkpoint to the summary

Results:

    evaluations.py       every answer of every measurement; accuracies, comparisons
    statistics.py        intervals, pass@k, maj@k, paired tests
    summary.py           `summary.json` and the verdict: whether rewards improved the policy on held-out tasks
    report.py            `report.html`

`settings.py` holds the settings of runners and folder; everything else loads when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
