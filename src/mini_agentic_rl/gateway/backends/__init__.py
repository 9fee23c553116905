"""What samples tokens for the gateway: the `Backend` protocol, and the policy of this process behind it."""
