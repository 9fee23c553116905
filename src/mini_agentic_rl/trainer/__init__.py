"""The trainer, the run folder it writes, and the report on it."""

from .trainer import Trainer

__all__ = ["Trainer"]
