"""How layers that do not read the `DecodingScope` are stepped: a rule for each class."""
