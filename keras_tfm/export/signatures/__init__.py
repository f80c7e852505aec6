"""The signatures of a file, and the arguments that decide about them."""
