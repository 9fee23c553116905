"""The commands: one file each, with its settings, its work and its output. Importing this package imports no torch.

`mini-agentic-rl train`, from its options to a step:

1. `settings_command(app, "train", TrainConfig)` (`options.py`) makes an option of each setting of `TrainConfig`.
2. `read_settings` (`options.py`) joins the options with the file of `--config` (`config_file.py`), and pydantic checks.
3. `train_job` (`train.py`) fills in the defaults of the agent, loads agent and tasks, makes the algorithm, and opens
   the run folder (`trainer.recorded`).
4. `Trainer.fit` puts algorithm and runners on one store; an execution strategy runs them in this process or in others.
5. `ReinforcementLearning.run` (`algorithm`) loads the policy, serves it, and takes the steps.
6. `show_result` (`tables.py`) prints the summary of the run folder.

Names load when they are first used: settings import no torch, the work of a command does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
