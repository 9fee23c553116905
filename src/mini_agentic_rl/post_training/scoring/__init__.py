"""The reward service: a reward model behind HTTP, scoring what many clients send in batches made on the way."""
