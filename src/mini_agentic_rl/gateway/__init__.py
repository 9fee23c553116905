"""The gateway: an OpenAI-compatible endpoint that records every token it serves.

Text stops here: requests arrive as messages, are rendered to token ids, and cross the `Backend` seam as ids only.
"""
