"""Decoder-only language models, one builder per family."""
