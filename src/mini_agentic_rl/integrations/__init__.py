"""Other people's systems: each folder is optional, and registers itself by entry points (`pyproject.toml`)."""
