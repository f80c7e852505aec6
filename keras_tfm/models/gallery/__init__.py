"""Models of proteins, drawings and image regions."""
