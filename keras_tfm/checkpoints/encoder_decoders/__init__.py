"""Tables of encoder-decoder models."""
