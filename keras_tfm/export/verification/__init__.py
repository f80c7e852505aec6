"""Compares an exported file with its model."""
