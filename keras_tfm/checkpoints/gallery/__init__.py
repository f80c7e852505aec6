"""Tables of models of drawings and image regions."""
