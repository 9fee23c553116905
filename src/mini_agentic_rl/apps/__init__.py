"""Programs around a training: each folder is optional, and registers itself by entry points (`pyproject.toml`)."""
