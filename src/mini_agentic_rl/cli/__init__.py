"""The commands `mini-agentic-rl` and `agl`. Importing this imports no torch.

`mini-agentic-rl train`, from its options to a step:

1. `app.py` declares it: `settings_command(app, "train", TrainConfig)` (`options.py`) makes an option of each setting of
   `jobs.TrainConfig`, whose groups are the settings classes of the rooms that they set.
2. `read_settings` (`options.py`) joins what was typed with the file of `--config` (`config_file.py`); pydantic checks.
3. `jobs.train_job` fills in what the agent decides, loads the agent and its tasks (`recipes`), makes the algorithm, and
   opens the run folder (`trainer.recorded`).
4. `Trainer.fit` puts algorithm and runners on one store, and an execution strategy runs them, here or in processes.
5. `ReinforcementLearning.run` (`algorithm.loop`) loads the policy, serves it, and takes the steps.
6. `tables.py` prints the summary that the run folder has by then.

Every other command goes the same way: its settings are a class, its work is a job, and here are its words.
"""

from .app import app

__all__ = ["app"]
