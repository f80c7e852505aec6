"""Positions: layers that add them to their input, and position parts of attention."""
