"""Attention: the function, its masks, and the self- and cross-attention layers."""
