"""Encoders of text, one builder per family."""
