"""The jobs behind the commands: settings in, a summary out. Here the trainer meets the agents that ship with it."""
