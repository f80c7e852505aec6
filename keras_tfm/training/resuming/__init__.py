"""Resumes an interrupted training."""
