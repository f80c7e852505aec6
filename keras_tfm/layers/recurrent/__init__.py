"""Causal layers with a state of constant size, which take the place of self-attention."""
