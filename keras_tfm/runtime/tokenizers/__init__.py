"""Tokenizers, chat templates and constraints of a file."""
