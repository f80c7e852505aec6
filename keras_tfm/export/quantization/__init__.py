"""Quantization: presets, calibration, and which layers keep more bits."""
