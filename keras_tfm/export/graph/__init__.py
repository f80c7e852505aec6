"""Converts signatures to a graph, and rewrites the converted graph."""
