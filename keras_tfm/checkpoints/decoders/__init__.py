"""Tables of decoder-only language models."""
