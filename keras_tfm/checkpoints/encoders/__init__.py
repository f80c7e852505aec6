"""Tables of text encoders."""
