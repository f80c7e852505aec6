"""Exports `.litertlm` files, for LiteRT-LM."""
