"""Moonshine v2: "Moonshine v2: Ergodic Streaming Encoder ASR" (arXiv:2602.12241)."""
