"""Leaving the house: an adapter merged into its base, an adapter for others, a GGUF file."""
