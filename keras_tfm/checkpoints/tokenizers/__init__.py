"""Tokenizer files and chat templates."""
