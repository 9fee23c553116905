"""The gateway over HTTP: the application that every gateway serves, and `MiniLLMServer`, the one on a sampler."""
