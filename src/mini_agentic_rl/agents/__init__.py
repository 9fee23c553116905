"""Agents that ship with the package: ordinary client code, trained through its `base_url`.

`math_agent` is the agent and its reward; `math_protocol`, its conversation, needs nothing of the framework.
"""
