"""The length of a model's position table."""

import keras

from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import GridPositionEmbedding, PositionEmbedding


def table_length(model: keras.Model, target: str | None = None) -> int | None:
    """The length of the shortest table of learned positions in the layers that are stepped.

    Args:
        model: functional.
        target: the name of the stepped input.

    Returns:
        The number of positions; None without a table.

    >>> from keras_tfm.generation.position_tables import table_length
    >>> from keras_tfm.models import gpt
    >>> table_length(gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7))
    7
    """
    called = [call.node.operation for call in SteppedModel(model, target).stepping]
    layers = [x for x in called if isinstance(x, keras.Layer)]
    layers += [inner for layer in layers for inner in sublayers(layer)]
    kinds = (PositionEmbedding, GridPositionEmbedding)
    lengths = [x.max_length for x in layers if isinstance(x, kinds)]
    return min(lengths, default=None)


def positions_to_check(model: keras.Model, target: str | None, length: int) -> int:
    """The number of positions that a generation of `length` tokens steps through.

    The last token is not read, so a table may have one position less.

    >>> from keras_tfm.generation.position_tables import positions_to_check
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> positions_to_check(model, None, 8), positions_to_check(model, None, 5)
    (7, 5)
    """
    return length - 1 if table_length(model, target) == length - 1 else length
