"""Decoding step by step: the scope, the KV cache and the masks of a step."""
