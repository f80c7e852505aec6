"""Task heads: layers on top of the features of a model."""
