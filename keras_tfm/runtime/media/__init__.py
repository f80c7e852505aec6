"""Reads images and audio."""
