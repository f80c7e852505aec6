"""Generation with the signatures of a file."""
