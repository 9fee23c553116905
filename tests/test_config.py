"""Settings, their names in other packages, environment variables, errors that name settings, and logging."""

from __future__ import annotations

import io
import logging
import pickle
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, ValidationError
from rich.console import Console

import mini_agentic_rl
from command_line import invoke
from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.config import (
    COMMAS,
    OTHER_NAMES,
    LightningEnvVar,
    Settings,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from mini_agentic_rl.errors import UserError, log_failure, nearest
from mini_agentic_rl.integrations.hello_agents import TrainingConfig
from mini_agentic_rl.logging import PACKAGE_LOGGER, setup_logging
from mini_agentic_rl.policy import LearnerSettings, LoraSettings
from mini_agentic_rl.post_training import SFTSettings


def test_a_variable_of_the_environment_is_read_missing_or_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    switch, port, role = (LightningEnvVar[f"AGL_{name}"] for name in ("MANAGED_STORE", "SERVER_PORT", "CURRENT_ROLE"))
    for text, value in (("1", True), ("True", True), (" yes ", True), ("off", False), ("0", False)):
        monkeypatch.setenv(switch.value, text)
        assert resolve_bool_env_var(switch, fallback=not value) is value
        assert resolve_bool_env_var(switch, not value, fallback=value) is not value
    for variable in LightningEnvVar:
        monkeypatch.delenv(variable.value, raising=False)
    assert resolve_int_env_var(port, fallback=4747) == 4747
    assert resolve_int_env_var(port) is None
    assert resolve_str_env_var(role, fallback="both") == "both"
    monkeypatch.setenv("AGL_SERVER_PORT", "80")
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    assert resolve_int_env_var(port, fallback=4747) == 80
    assert resolve_str_env_var(role, fallback="both") == "runner"
    monkeypatch.setenv("AGL_MANAGED_STORE", "maybe")
    monkeypatch.setenv("AGL_SERVER_PORT", "http")
    with pytest.raises(ValueError, match="AGL_MANAGED_STORE='maybe'"):
        resolve_bool_env_var(switch, fallback=True)
    with pytest.raises(ValueError, match="AGL_SERVER_PORT='http'"):
        resolve_int_env_var(port, fallback=4747)


def _option(name: str) -> str | None:
    return f"--{name.replace('_', '-')}" if name in ("full_finetune", "quantization") else None


def test_an_error_spells_its_settings_as_options_and_survives_the_way_from_another_process() -> None:
    error = UserError("`embedded` is quantised: set `quantization=none`, or `quantization`", setting="full_finetune")
    assert str(error) == "full_finetune: `embedded` is quantised: set `quantization=none`, or `quantization`"
    spelled = "--full-finetune: `embedded` is quantised: set --quantization none, or --quantization"
    assert error.spelled(_option) == spelled
    assert UserError("is no address", setting="store").spelled(_option) == "store: is no address"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.setting) == (str(error), "full_finetune")


def test_an_error_of_the_user_is_logged_in_one_line_and_any_other_with_its_traceback(caplog) -> None:
    logger = logging.getLogger("mini_agentic_rl.test_config")
    for error in (UserError("no space is left"), KeyError("x")):
        try:
            raise error from OSError("disk")
        except (UserError, KeyError) as caught:
            log_failure(logger, caught, "could not record a call")
    of_user, other = caplog.records
    assert (of_user.getMessage(), of_user.exc_info) == ("could not record a call: no space is left", None)
    assert other.getMessage() == "could not record a call"
    assert "KeyError: 'x'" in caplog.text


def test_logging_goes_to_the_console_and_the_file_once_and_leaves_the_root_logger_alone(tmp_path: Path) -> None:
    root_handlers, root_level = list(logging.getLogger().handlers), logging.getLogger().level
    output = io.StringIO()
    for _ in range(2):
        setup_logging("info", console=Console(file=output, width=40), files=tmp_path / "logs" / "run.log")
    logger = logging.getLogger(f"{PACKAGE_LOGGER}.part")
    logger.info("seen [b]once[/b] %s", "x" * 100)
    logger.debug("not seen")
    line = r"\d\d:\d\d:\d\d INFO seen \[b\]once\[/b\] x{100}\n"  # in a file neither padded nor wrapped
    assert re.fullmatch(line, output.getvalue())
    assert (tmp_path / "logs" / "run.log").read_text().count("seen") == 1
    assert logging.getLogger().handlers == root_handlers
    assert logging.getLogger().level == root_level


def test_parts_and_other_libraries_can_have_levels_of_their_own(tmp_path: Path) -> None:
    output = io.StringIO()
    setup_logging(
        "WARNING",
        console=Console(file=output, width=100),
        submodule_levels={f"{PACKAGE_LOGGER}.part": "debug"},
        apply_to=["another.library"],
    )
    logging.getLogger(f"{PACKAGE_LOGGER}.part").debug("detail")
    logging.getLogger("another.library").warning("theirs")
    logging.getLogger("another.library").info("chatter")
    assert "detail" in output.getvalue()
    assert "theirs" in output.getvalue()
    assert "chatter" not in output.getvalue()
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("loud")


def test_log_lines_that_are_the_purpose_of_an_object_are_shown_where_nothing_is_set_up() -> None:
    program = (
        "import logging\n"
        "from mini_agentic_rl.logging import log_visibly, setup_logging\n"
        "logger = logging.getLogger('mini_agentic_rl.one')\n"
        "logger.info('unseen')\n"
        "log_visibly(logger, 'seen %d', 1)\n"
        "setup_logging('WARNING')\n"
        "log_visibly(logger, 'unseen')\n"
        "setup_logging('INFO')\n"
        "log_visibly(logger, 'seen %d', 2)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert [line.split(" ", 1)[1] for line in shown.splitlines()] == ["INFO seen 1", "INFO seen 2"]


def test_a_list_may_be_one_text_with_commas() -> None:
    class Listed(Settings):
        """Holds a list."""

        levels: Annotated[list[int], COMMAS] = Field(default=[1])
        """Levels."""

    for given in ("2,3", ["2", 3], ["2, 3"], (2, 3)):
        assert Listed(levels=given).levels == [2, 3]
    with pytest.raises(ValidationError, match="levels"):
        Listed(levels="2,x")


def test_a_setting_of_a_group_may_be_spelled_by_its_name_within_the_group() -> None:
    for given in ({"lora_alpha": 4, "lora_dropout": 0.1}, {"lora": {"lora_alpha": 4, "lora_dropout": 0.1}}):
        config = TrainConfig(**given)
        assert (config.lora.alpha, config.lora.dropout) == (4, 0.1)
        assert config.lora.model_fields_set == {"alpha", "dropout"}
        assert TrainConfig(**config.flat()).lora == config.lora
    assert TrainConfig(lora=LoraSettings(r=8, lora_alpha=4, target_modules=["q_proj"])).lora.alpha == 4


def test_a_changed_group_keeps_the_defaults_of_the_settings_that_it_is_part_of() -> None:
    learner = TrainConfig().learner
    changed = learner.changed(max_batch_tokens=7)
    assert changed == learner.model_copy(update={"max_batch_tokens": 7})
    assert changed.warmup_steps != LearnerSettings().warmup_steps  # or the test would say nothing
    assert changed.model_fields_set == {"max_batch_tokens"}


def _all_settings() -> list[type[Settings]]:
    package = Path(mini_agentic_rl.__file__).parent
    for path in package.rglob("*.py"):
        if re.search(r"^class .*Settings\b.*\):", path.read_text(encoding="utf-8"), re.MULTILINE):
            import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
    classes = Settings.__subclasses__()
    for each in classes:
        classes += each.__subclasses__()  # the list grows while it is read
    return [each for each in set(classes) if each.__module__.startswith("mini_agentic_rl.")]


def test_each_changed_default_and_help_text_is_that_of_a_setting() -> None:
    for settings in _all_settings():
        settings.settings()
        for path in (*settings.defaults, *settings.helps):
            assert settings.setting_at(path.split(".")) is not None or path in settings.model_fields, (settings, path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("use_trl", "give backend='trl'"),
        ("lr", "give learner=LearnerSettings(learning_rate=…)"),
        ("lora_rank", "give lora=LoraSettings(r=…)"),
        ("use_peft", "lora=None trains every weight"),
        ("load_in_4bit", "give load_options={\"quantization\": '4bit'}"),
        ("reward_funcs", "the reward is what the agent"),
        ("report_to", "give it to Trainer(logger=…)"),
        ("cache_mib", "give engine=EngineSettings(cache_mib=…)"),
    ],
)
def test_an_argument_of_the_algorithm_that_belongs_elsewhere(name, message):
    with pytest.raises(UserError) as raised:
        MiniGRPO(**{name: 1})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (MiniGRPO, "num_generations", "here it is `samples_per_prompt`"),
        (MiniGRPO, "samples_per_promt", "did you mean `samples_per_prompt`?"),
        (TrainingConfig, "model_name_or_path", "here it is `model_name`"),
        (TrainConfig, "use_trl", "give `backend=trl`"),
        (SFTSettings, "num_train_epochs", "here it is `num_epochs`"),
    ],
)
def test_a_setting_of_another_name(make, name, message):
    with pytest.raises(ValidationError) as raised:
        make(**{name: 1})
    assert message in str(raised.value)


def test_a_second_file_of_settings_is_refused():
    result = invoke("train", "--config", "one.yaml", "--config=two.yaml")
    assert result.exit_code == 2
    assert "--config is given twice" in result.output


@pytest.mark.parametrize(
    ("command", "flag", "message"),
    [
        ("train", "--use-trl", "there is no --use-trl: here it is --backend trl"),
        ("train", "--num_generations=4", "here it is --samples-per-prompt"),
        ("sft", "--lora-rank", "here it is --lora-r"),
        ("store", "--mongo-uri", "here it is --url"),
        ("export", "--adapter=a", "here it is --adapters"),
        ("merge", "--adapters", "here it is --adapter"),
    ],
)
def test_an_option_of_another_name(command, flag, message):
    result = invoke(command, flag)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_every_other_name_leads_to_a_setting():
    homes = {*TrainConfig.settings(), *SFTSettings.settings(), *MiniGRPO.settings_class.model_fields}
    homes |= {*LearnerSettings.model_fields, "model_name", "backend", "schedule", "checkpointing", "r"}
    homes |= {"num_train_epochs", "eval_steps", "save_steps", "url", "adapter", "adapters"}
    assert [name for name, here in OTHER_NAMES.items() if not homes.intersection(here)] == []


def test_words_that_only_share_letters_are_not_meant():
    assert nearest("nope", ["start", "status", "stop"]) is None
    assert nearest("stpo", ["start", "status", "stop"]) == "stop"
    assert nearest("eval", ["train", "evaluate"]) == "evaluate"
    assert nearest("epochs", ["num_epochs", "max_steps"]) == "num_epochs"
