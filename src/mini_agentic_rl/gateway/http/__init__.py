"""The gateway over HTTP: `MiniLLMServer`, its application, and the routes that it has in common with `LLMProxy`'s."""
