"""The trainer: puts the pieces of a run together, keeps its folder, and tells how it went."""
