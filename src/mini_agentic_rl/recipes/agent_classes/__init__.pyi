from .agent_class import AgentClassProgram as AgentClassProgram
