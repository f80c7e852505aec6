"""Embeddings of tokens and segments, prefixes, padding masks and pooling."""
