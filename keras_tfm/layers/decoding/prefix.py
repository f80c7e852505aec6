"""Positions before the first token of a decoding step: a prefix, such as the features of an image.

Example:

>>> from keras_tfm.layers.decoding.prefix import PrefixScope
>>> scope = PrefixScope(is_first=True)
>>> scope.begin_prefix(5)
>>> scope.end_prefix(6)
Traceback (most recent call last):
ValueError: a prefix of 6 positions cannot be removed: the sequence has one of 5
"""


class PrefixScope:
    """What a `DecodingScope` knows of the prefix at the present place of the model.

    Args:
        is_first: bool, whether this is the first step, which gets no cache.
    """

    def __init__(self, is_first: bool):
        self._is_first = is_first
        self._prefix = 0
        self._prefixes: dict[str, int] = {}  # by cache entry

    @property
    def is_first(self) -> bool:
        """Whether this is the first step, which gets no cache."""
        return self._is_first

    @property
    def prefixes(self) -> dict[str, int]:
        """The number of columns before the first token, by name of the entries that have some."""
        return {name: prefix for name, prefix in self._prefixes.items() if prefix}

    def begin_prefix(self, count: int) -> None:
        """Layers called from here on have `count` positions more before the first token.

        Their first step computes these positions along with those of the tokens, and their cache
        entries have `count` more columns.
        """
        self._prefix += count

    def end_prefix(self, count: int) -> None:
        """Layers called from here on have `count` positions less before the first token."""
        if count > self._prefix:
            raise ValueError(
                f"a prefix of {count} positions cannot be removed: the sequence has one of "
                f"{self._prefix}"
            )
        self._prefix -= count
