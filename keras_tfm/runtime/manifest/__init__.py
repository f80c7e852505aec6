"""The manifest: what a file says of itself."""
