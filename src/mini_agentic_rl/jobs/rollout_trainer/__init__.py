"""`run_ppo`, as training programs of agent-lightning 1.0 call it; `config.yaml` is what they compose with Hydra."""

from .entrypoint import run_ppo

__all__ = ["run_ppo"]
