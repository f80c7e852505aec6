"""Quantized checkpoints: their integers and scales become those of a model and of its files."""
