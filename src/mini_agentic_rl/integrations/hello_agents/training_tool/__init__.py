"""The tool by which an agent trains models: in Python, and as an OpenAI tool."""

from .parameters import ToolError, ToolParameter
from .tool import RLTrainingTool

__all__ = ["RLTrainingTool", "ToolError", "ToolParameter"]
