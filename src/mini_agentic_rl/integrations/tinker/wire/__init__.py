"""The wire of the Tinker API: what its clients send, in JSON or protobuf, and what they are answered."""
