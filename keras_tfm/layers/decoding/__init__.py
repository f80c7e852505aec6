"""Stepping: the scope that layers ask, the KV cache as a value, and who sees what."""
