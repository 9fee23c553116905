"""The tool by which an agent trains models: in Python, as an OpenAI tool, over MCP, and for openai-agents."""

from .parameters import ToolError, ToolParameter
from .tool import RLTrainingTool

__all__ = ["RLTrainingTool", "ToolError", "ToolParameter"]
