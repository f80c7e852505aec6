"""Texts and tokenizers in generation."""
