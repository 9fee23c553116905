"""Tracers of AgentOps and of the Agent Framework."""
