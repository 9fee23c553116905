"""What only the older package had: `mini_llm_server`, to be run as a module."""
