"""Heads: what is put on a model's features for a task.

Each takes a model, of `models.bert` for instance or one that has a head already, and returns a
model of the same inputs and the same layers, weights included, with another end.
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers import Dropout, LayerNormalization, OutputBias, TokenEmbedding
from keras_tfm.layers.transformer_block import TransformerBlock
from keras_tfm.models.model import Model

Tensor = Any


def backbone(model: keras.Model) -> Model:
    """The model without its head: from its inputs to features (B, T, D).

    They are the output of its last block, normalised where the model normalises it.

    >>> from keras_tfm.models import backbone, gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> backbone(model).output.shape
    (None, None, 8)
    """
    return Model(model.input, features(model), name=model.name)


def masked_language_model(
    model: keras.Model, next_sentence: bool = False, positions: bool = False
) -> Model:
    """Logits (B, T, V) of the tokens that were masked: BERT's pre-training (arXiv:1810.04805).

    A dense layer with the blocks' activation, a normalisation, the embedding's own table, and a
    bias.

    Args:
        model: of `models.bert`.
        next_sentence: whether there is a second output, as of `next_sentence`; then the outputs are
            "tokens" (B, T, V) and "next_sentence" (B, 2).
        positions: whether the model takes one more input, `mask_positions` (B, M), int32, and gives
            the logits (B, M, V) of the tokens there alone. In training few tokens count, and
            `text.MaskTokens(positions=True)` says which: the others need no logits.

    Example:

    >>> from keras_tfm.models import bert, masked_language_model
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> masked_language_model(model).output.shape
    (None, None, 11)
    """
    x, block = features(model), last_block(model)
    embedding = next(layer for layer in model.layers if isinstance(layer, TokenEmbedding))
    dense = keras.layers.Dense(
        x.shape[-1],
        activation=block.activation,
        kernel_initializer=block.kernel_initializer.clone(),
        dtype=block.dtype_policy,
        name="transform",
    )
    norm = LayerNormalization(
        epsilon=block.layer_norm_epsilon, dtype=block.dtype_policy, name="transform_norm"
    )
    inputs = model.input
    if positions:
        chosen = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**model.input, "mask_positions": chosen}
        x = ops.take_along_axis(x, chosen[..., None], axis=1)
    logits = embedding(norm(dense(x)), reverse=True)
    outputs = OutputBias(dtype=block.dtype_policy, name="output_bias")(logits)
    if next_sentence:
        outputs = {"tokens": outputs, "next_sentence": _is_next(model)}
    return Model(inputs, outputs, name=model.name)


def next_sentence(model: keras.Model) -> Model:
    """Logits (B, 2): whether the second text follows the first (0) or does not (1).

    >>> from keras_tfm.models import bert, next_sentence
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> next_sentence(model).output.shape
    (None, 2)
    """
    return Model(model.input, _is_next(model), name=model.name)


def sequence_classifier(
    model: keras.Model, num_classes: int, dropout: float | None = None
) -> Model:
    """Logits (B, C) of a text, or of a pair of texts, from the pooled first token.

    The pooler is the model's own where it has one, a new one elsewhere.

    Args:
        model: of `models.bert`.
        num_classes: C; 1 is a regression.
        dropout: rate before the last layer; by default the blocks'.

    Example:

    >>> from keras_tfm.models import bert, sequence_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, segments=False)
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    logits = _classify(model, pooled(model), num_classes, dropout)
    return Model(model.input, logits, name=model.name)


def token_classifier(model: keras.Model, num_classes: int, dropout: float | None = None) -> Model:
    """Logits (B, T, C) of each token. Arguments as in `sequence_classifier`.

    >>> from keras_tfm.models import bert, token_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> token_classifier(model, num_classes=5).output.shape
    (None, None, 5)
    """
    logits = _classify(model, features(model), num_classes, dropout)
    return Model(model.input, logits, name=model.name)


def question_answering(model: keras.Model) -> Model:
    """Logits of where an answer begins and ends, "start" (B, T) and "end" (B, T).

    BERT's for SQuAD (arXiv:1810.04805, section 4.2): the question is segment 0, the text segment 1.

    >>> from keras_tfm.models import bert, question_answering
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> {name: x.shape for name, x in question_answering(model).output.items()}
    {'start': (None, None), 'end': (None, None)}
    """
    block = last_block(model)
    span = keras.layers.Dense(
        2,
        kernel_initializer=block.kernel_initializer.clone(),
        dtype=block.dtype_policy,
        name="span",
    )
    start, end = ops.unstack(span(features(model)), 2, axis=-1)
    return Model(model.input, {"start": start, "end": end}, name=model.name)


def last_block(model: keras.Model) -> TransformerBlock:
    """The block whose output the features are."""
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if not blocks:
        raise ValueError(
            f"expected a model of keras_tfm.models, with encoder or decoder blocks in it; "
            f"{model.name!r} has none among its layers"
        )
    return blocks[-1]


def features(model: keras.Model) -> Tensor:
    """The tensor (B, T, D) that heads are put on."""
    last = last_block(model)
    ending = last.name.rpartition("_")[0]
    names = {layer.name for layer in model.layers}
    for name in (f"{ending}_dropout", f"{ending}_norm"):
        if name in names:
            return model.get_layer(name).output
    return last.output


def pooled(model: keras.Model) -> Tensor:
    """The tensor (B, D) of the whole text: the first token's features in a dense layer, tanh."""
    if any(layer.name == "pooler" for layer in model.layers):
        return model.get_layer("pooler").output
    x, block = features(model), last_block(model)
    return keras.layers.Dense(
        x.shape[-1],
        activation="tanh",
        kernel_initializer=block.kernel_initializer.clone(),
        dtype=block.dtype_policy,
        name="pooler",
    )(x[:, 0])


def _is_next(model: keras.Model) -> Tensor:
    block = last_block(model)
    return keras.layers.Dense(
        2,
        kernel_initializer=block.kernel_initializer.clone(),
        dtype=block.dtype_policy,
        name="next_sentence",
    )(pooled(model))


def _classify(model: keras.Model, x: Tensor, num_classes: int, dropout: float | None) -> Tensor:
    block = last_block(model)
    rate = block.dropout if dropout is None else dropout
    x = Dropout(rate, dtype=block.dtype_policy, name="classifier_dropout")(x)
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=block.kernel_initializer.clone(),
        dtype=block.dtype_policy,
        name="classifier",
    )(x)
