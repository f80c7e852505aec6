"""Quantization-aware training: the rounding of the exported file, in Keras."""
