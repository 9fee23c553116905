"""Views: the JSON that the pages of the dashboard show, made of the objects of a store. Pure functions."""

from ....adapter import ToldConversation, conversations
from .group import group_view
from .rollout import rollout_view
from .tokens import tokens_view

__all__ = ["ToldConversation", "conversations", "group_view", "rollout_view", "tokens_view"]
