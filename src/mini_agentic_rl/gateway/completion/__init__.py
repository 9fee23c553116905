"""The life of one chat request: prepared, sampled, read, recorded, remembered, answered."""
