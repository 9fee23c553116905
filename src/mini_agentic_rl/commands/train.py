"""`train`: measure, warm up, reinforce, measure again, and write the results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..algorithm import GRPOSettings, PPOSettings, WarmStart
from ..datasets import TRANSFER, TaskRows, family_type, split_style
from ..errors import UserError
from ..metrics import MetricsLogger, check_loggers
from ..policy import adapter_folder, launched, restarted
from ..trainer import RunFolder, recorded, what_next
from .tables import show, show_result
from .tasks import check_model, current_role
from .train_config import TrainConfig, with_agent_defaults

if TYPE_CHECKING:
    from ..algorithm import ReinforcementLearning
    from ..environments import Recipe

logger = logging.getLogger(__name__)

_MAX_PROCESSES = 4
"""Runners that are processes on this computer, unless `n_runners` is given."""


def train(settings: TrainConfig) -> None:
    """Train an agent: measure it, warm it up, reinforce it, measure it again, and write a report."""
    train_and_show(with_agent_defaults(settings))


def train_and_show(settings: TrainConfig) -> None:
    """Train, and print the summary."""
    summary = train_job(settings)
    if not summary:  # this process ran only runners
        return
    folder = RunFolder(settings.run.output_dir)
    written = [folder.adapter_path, folder.summary_path, folder.metrics_path, folder.report_path]
    show(settings, summary, partial(show_result, written=written, then=what_next(folder)))


def train_job(config: TrainConfig) -> dict[str, Any]:
    """Train, and return the summary of the run.

    With AGL_CURRENT_ROLE=runner the process runs the agent for an algorithm elsewhere until it is stopped, writes
    nothing, and returns an empty summary; so do all ranks but the first.

    Raises:
        UserError: a setting is invalid, or the output folder holds something else.
    """
    from ..environments import load_tasks
    from ..trainer import Trainer
    from .planning import apply_preset

    config = with_agent_defaults(config)
    check_loggers(config.run.loggers)
    config, recipe, components = config.prepare()
    if current_role() == "runner":
        # The output folder is that of the algorithm, elsewhere: nothing is written here.
        runners, store = _runners(config, components), components.get("store")
        Trainer(hooks=recipe.hooks, n_runners=runners, store=store, logger=MetricsLogger()).fit(recipe.agent)
        return {}
    check_model(config.load.model, config.load.device)
    config = apply_preset(config)
    tasks, loop = config.tasks, config.loop
    train = load_tasks(tasks.dataset, "train", config.max_samples, loop.seed, tasks.difficulty)
    held_out = load_tasks(tasks.dataset, "test", loop.eval_size, 0, tasks.difficulty)
    algorithm = make_algorithm(
        config,
        warm_start=_warm_start(config, recipe, train),
        validation=_validation(config),
        transfer=_transfer(config),
    )

    launch = launched()
    if launch is not None and launch.follows:
        algorithm.follow(launch)
        return {}
    if restarted():
        config = config.model_copy(update={"run": config.run.model_copy(update={"resume": True, "overwrite": False})})
    folder = RunFolder(config.run.output_dir, usual=type(config)().flat())
    about = {"model": config.load.model, "dataset": tasks.dataset}
    strategy: Any = config.strategy or components.get("strategy")  # None leaves it to the environment
    if strategy == "ray":
        strategy = {"type": "ray", "settings": config.ray}
    with recorded(folder, config.run, config.flat(), algorithm, about=lambda: about) as run:
        if not run.is_finished:
            trainer = Trainer(
                algorithm=algorithm,
                hooks=recipe.hooks,
                n_runners=_runners(config, components),
                strategy=strategy,
                output_dir=folder,
                logger=run.logger,
                otlp=config.export,
                resume=run.is_resumed,
                **{name: part for name, part in components.items() if name != "strategy"},
            )
            trainer.fit(recipe.agent, train, val_dataset=held_out)
    return folder.read_summary()


def make_algorithm(
    config: TrainConfig,
    *,
    model: str | None = None,
    warm_start: WarmStart | None = None,
    validation: TaskRows | None = None,
    transfer: TaskRows | None = None,
) -> ReinforcementLearning[Any]:
    """Return the algorithm of a configuration.

    Args:
        model: replaces the model of the configuration.
        warm_start: examples to imitate first.
        validation: tasks that choose which weights are kept.
        transfer: tasks of kinds that are not trained on, which are measured too.

    Raises:
        UserError: settings contradict each other.
    """
    from ..algorithm import MiniGRPO, MiniPPO
    from ..gateway import GatewayLimits

    load = config.load
    if config.full_finetune and adapter_folder(load.model) is not None:
        raise UserError(
            f"`full_finetune` trains whole weights, but {load.model} is an adapter: merge it into its base first",
            setting="model",
        )
    if config.full_finetune and load.quantization != "none":
        raise UserError(
            "quantised weights cannot be trained: use `quantization=none`, or LoRA", setting="full_finetune"
        )
    sampling = config.sampling
    if sampling.sampler_folder is None:
        sampling = sampling.changed(sampler_folder=config.run.output_dir / "sampler")
    kind: type[ReinforcementLearning[Any]] = MiniPPO if isinstance(config.loop, PPOSettings) else MiniGRPO
    return kind(
        load.model if model is None else model,
        settings=config.loop,
        engine=config.engine,
        ranks=config.ranks,
        sampler=sampling,
        lora=None if config.full_finetune else config.lora,
        learner=config.learner,
        warm_start=warm_start,
        validation=validation,
        transfer=transfer,
        limits=GatewayLimits(**config.limits.model_dump()),
        backend=config.backend,
        load_options=load.model_dump(exclude={"model"}),
    )


def _runners(config: TrainConfig, components: Mapping[str, Any]) -> int:
    """Return the number of runners: few if each is a process on this computer, and no more than rollouts that wait at
    the same time, since an idle runner polls the store."""
    from ..trainer import asks_for_processes

    strategy = config.strategy or components.get("strategy") or ("cs" if asks_for_processes() else "shm")
    if strategy == "cs":
        is_chosen = config.strategy is not None and "n_runners" in config.model_fields_set
        return config.n_runners if is_chosen else min(_MAX_PROCESSES, config.n_runners)
    loop = config.loop
    if strategy != "shm" or loop.eval_size is None or loop.max_staleness:
        return config.n_runners
    waiting = max(loop.eval_size, loop.validation_size, loop.tasks_per_step * loop.samples_per_prompt)
    return min(config.n_runners, waiting)


def _transfer(config: TrainConfig) -> TaskRows | None:
    """Return the tasks that measure transfer; None without such tasks, or with `transfer_size=0`."""
    from ..environments import load_tasks

    tasks, size = config.tasks, min(config.loop.transfer_size, config.loop.eval_size or config.loop.transfer_size)
    family = family_type(split_style(tasks.dataset)[0]) if size else None
    if family is None or not family.measures_transfer:
        return None
    return load_tasks(tasks.dataset, TRANSFER, size, 0, tasks.difficulty)


def _validation(config: TrainConfig) -> TaskRows | None:
    """Return the tasks that choose the weights; None with `validation_size=0`."""
    from ..environments import load_tasks

    tasks, size = config.tasks, config.loop.validation_size
    if size == 0:
        return None
    rows = load_tasks(tasks.dataset, "val", size, 0, tasks.difficulty)
    if len(rows) == 0:
        raise UserError(f"{tasks.dataset} has no tasks in the split val", setting="validation_size")
    return rows


def _warm_start(config: TrainConfig, recipe: Recipe, tasks: TaskRows) -> WarmStart | None:
    """Return the warm-up on worked solutions; None without a warm-up, or without solutions to imitate."""
    demonstrations = recipe.demonstrations
    is_mixed_in = isinstance(config.loop, GRPOSettings) and config.loop.sft_coef > 0
    if demonstrations is None or (config.warm_start.examples == 0 and not is_mixed_in):
        return None
    if not demonstrations.can_show(tasks[0]):
        logger.info("%s has no worked solutions: no warm-up", config.tasks.dataset)
        return None
    tools = demonstrations.tools(tasks[0])
    return WarmStart(demonstrations.demonstrate, tools, config.warm_start, demonstrations.besides)
