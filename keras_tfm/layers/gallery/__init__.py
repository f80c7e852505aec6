"""Layers of models for proteins, drawings and image regions."""
