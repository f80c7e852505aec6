"""Encoder-decoder models, one builder per family."""
