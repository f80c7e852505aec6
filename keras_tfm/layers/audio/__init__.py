"""Layers that read audio."""
