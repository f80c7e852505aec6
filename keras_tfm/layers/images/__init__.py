"""Layers that read images."""
