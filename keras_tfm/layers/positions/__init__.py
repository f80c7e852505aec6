"""Positions: layers that add them to their input, and parts that attention is given."""
