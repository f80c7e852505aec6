"""Heads: layers on a model's features for one task.

Each function takes a model and returns a model of the same inputs and the same layers, weights
included, with this head in place of the one it had.

All take three options:

- `features`: what the head is put on, a symbolic tensor (B, T, D) of the model or a layer's name. A
  model of a builder of `keras_tfm.models` has features of its own. A model that was composed by
  hand has none, and needs this argument: for a pre-norm model, name the normalisation after the
  last block.
- `kernel_initializer`: of the head's dense layers; by default BERT's, a truncated normal
  distribution with standard deviation 0.02.
- `dtype`: of the head's layers; by default that of the builder's layers, and the global policy for
  a model that was composed by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.layers import Dropout, LayerNormalization, OutputBias, TokenEmbedding
from keras_tfm.models import identity
from keras_tfm.models.model import Model

Tensor = Any
# Arguments of heads that are no options of a task.
_NOT_RECORDED = ("model", "features", "embedding", "dtype")


def backbone(model: keras.Model, features: Any = None) -> Model:
    """The model without its head: from its inputs to features (B, T, D).

    >>> from keras_tfm.models import backbone, gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> backbone(model).output.shape
    (None, None, 8)
    """
    x = _Base(model, features).features
    return Model(model.input, x, name=model.name)


def encoder(model: keras.Model) -> Model:
    """The encoder of an encoder-decoder model: from `source` to features (B, S, D).

    >>> from keras_tfm.models import encoder, t5
    >>> model = t5(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> encoder(model).output.shape
    (None, None, 8)
    """
    x = identity.encoded_of(model)
    if x is None:
        raise ValueError(
            f"expected an encoder-decoder model of keras_tfm.models, got {model.name!r} without "
            "an encoder"
        )
    inputs = model.input["source"] if isinstance(model.input, dict) else model.input
    marker = identity.HeadMarker("encoder", name=_unused(model, "head_marker"))
    return Model(inputs, marker(x), name=model.name)


def masked_language_model(
    model: keras.Model,
    next_sentence: bool = False,
    positions: bool = False,
    activation: Any = None,
    layer_norm_epsilon: float | None = None,
    embedding: TokenEmbedding | str | None = None,
    features: Any = None,
    kernel_initializer: Any = None,
    dtype: Any = None,
) -> Model:
    """Logits (B, T, V) of the masked tokens: BERT's pre-training (arXiv:1810.04805).

    A dense layer with an activation, a normalisation, the embedding's own table, and a bias.

    Args:
        model: of `models.bert`, for instance.
        next_sentence: adds the output of `next_sentence`; then the outputs are "tokens" (B, T, V)
            and "next_sentence" (B, 2).
        positions: adds the input `mask_positions` (B, M), int32; the logits are then (B, M, V), of
            the tokens at these positions only. In training few tokens count, and
            `text.MaskTokens(positions=True)` says which: the others need no logits.
        activation: of the dense layer; by default that of the model's feed-forward networks, and
            "gelu" for a model that was composed by hand.
        layer_norm_epsilon: of the normalisation; by default that of the model, and 1e-12 for a
            model that was composed by hand.
        embedding: layer of the model, or its name, whose table makes the logits; by default the
            model's embedding. Required for a model that was composed by hand.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads`.

    Example:

    >>> from keras_tfm.models import bert, masked_language_model
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> masked_language_model(model).output.shape
    (None, None, 11)
    """
    base = _Base(model, features, kernel_initializer, dtype)
    x = base.mark("masked_language_model", locals(), base.features)
    table = base.embedding(embedding)
    dense = base.dense(
        x.shape[-1], "transform", activation=base.argument("activation", activation, "gelu")
    )
    norm = LayerNormalization(
        epsilon=base.argument("layer_norm_epsilon", layer_norm_epsilon, 1e-12),
        dtype=base.dtype,
        name="transform_norm",
    )
    inputs = model.input
    if positions:
        chosen = keras.Input((None,), dtype="int32", name="mask_positions")
        given = inputs if isinstance(inputs, dict) else {x.name: x for x in model.inputs}
        inputs = {**given, "mask_positions": chosen}
        x = ops.take_along_axis(x, chosen[..., None], axis=1)
    logits = table(norm(dense(x)), reverse=True)
    outputs = OutputBias(dtype=base.dtype, name="output_bias")(logits)
    if next_sentence:
        is_next = base.dense(2, "next_sentence")
        outputs = {"tokens": outputs, "next_sentence": is_next(base.pooled())}
    return Model(inputs, outputs, name=model.name)


def next_sentence(
    model: keras.Model, features: Any = None, kernel_initializer: Any = None, dtype: Any = None
) -> Model:
    """Logits (B, 2): whether the second text follows the first (0) or does not (1).

    >>> from keras_tfm.models import bert, next_sentence
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> next_sentence(model).output.shape
    (None, 2)
    """
    base = _Base(model, features, kernel_initializer, dtype)
    x = base.mark("next_sentence", locals(), base.pooled())
    return Model(model.input, base.dense(2, "next_sentence")(x), name=model.name)


def sequence_classifier(
    model: keras.Model,
    num_classes: int,
    dropout: float | None = None,
    features: Any = None,
    kernel_initializer: Any = None,
    dtype: Any = None,
    labels: Sequence[str] | None = None,
) -> Model:
    """Logits (B, C) of a text, or of a pair of texts, from the pooled first token.

    The pooler is the model's own if it has one, otherwise a new one: a dense layer with tanh on the
    first token's features.

    Args:
        model: of `models.bert`, for instance.
        num_classes: number of classes (C); 1 is a regression.
        dropout: rate before the last layer; by default the model's, and 0 for a model that was
            composed by hand.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads`.
        labels: names of the classes, which `save_huggingface` writes and `load_huggingface` reads.

    Example:

    >>> from keras_tfm.models import bert, sequence_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, segments=False)
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    labels = _checked_labels(labels, num_classes)
    base = _Base(model, features, kernel_initializer, dtype)
    x = base.mark("sequence_classifier", locals(), base.pooled())
    return Model(model.input, base.classify(x, num_classes, dropout), name=model.name)


def token_classifier(
    model: keras.Model,
    num_classes: int,
    dropout: float | None = None,
    features: Any = None,
    kernel_initializer: Any = None,
    dtype: Any = None,
    labels: Sequence[str] | None = None,
) -> Model:
    """Logits (B, T, C) of each token. Arguments as in `sequence_classifier`.

    >>> from keras_tfm.models import bert, token_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> token_classifier(model, num_classes=5).output.shape
    (None, None, 5)
    """
    labels = _checked_labels(labels, num_classes)
    base = _Base(model, features, kernel_initializer, dtype)
    x = base.mark("token_classifier", locals(), base.features)
    return Model(model.input, base.classify(x, num_classes, dropout), name=model.name)


def question_answering(
    model: keras.Model, features: Any = None, kernel_initializer: Any = None, dtype: Any = None
) -> Model:
    """Logits of where an answer begins and ends, "start" (B, T) and "end" (B, T).

    BERT's for SQuAD (arXiv:1810.04805, section 4.2): the question is segment 0, the text segment 1.

    >>> from keras_tfm.models import bert, question_answering
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> {name: x.shape for name, x in question_answering(model).output.items()}
    {'start': (None, None), 'end': (None, None)}
    """
    base = _Base(model, features, kernel_initializer, dtype)
    x = base.mark("question_answering", locals(), base.features)
    start, end = ops.unstack(base.dense(2, "span")(x), 2, axis=-1)
    return Model(model.input, {"start": start, "end": end}, name=model.name)


class _Base:
    """A model on which a head is put, and what its layers are made with.

    Attributes:
        model: the model.
        features: symbolic tensor (B, T, D) that the head is put on.
        dtype: policy of the head's layers.
    """

    def __init__(
        self,
        model: keras.Model,
        features: Any = None,
        kernel_initializer: Any = None,
        dtype: Any = None,
    ):
        if not identity.is_functional(model):
            raise TypeError(
                "expected a functional keras.Model (made of keras.Input and layers), "
                f"got {type(model).__name__}"
            )
        self.model = model
        if features is None:
            self.features, self._pooled = _own_features(model)
            marker = identity.features_marker(model)
            assert marker is not None
        else:
            marker = identity.FeaturesMarker(dtype=dtype, name=_unused(model, "features_marker"))
            self.features, self._pooled = marker(_given_features(model, features)), None
        self._arguments = marker.identity.arguments
        self._embedding = marker.identity.embedding
        self._initializer = keras.initializers.get(
            keras.initializers.TruncatedNormal(stddev=0.02)
            if kernel_initializer is None
            else kernel_initializer
        )
        self.dtype = marker.dtype_policy if dtype is None else dtype

    def argument(self, name: str, given: Any, default: Any) -> Any:
        """The head's argument, or else the model's, or else a default."""
        return self._arguments.get(name, default) if given is None else given

    def embedding(self, given: TokenEmbedding | str | None) -> TokenEmbedding:
        """The layer whose table makes logits."""
        given = self._embedding if given is None else given
        layer = self.model.get_layer(given) if isinstance(given, str) else given
        if not isinstance(layer, TokenEmbedding):
            raise ValueError(
                "expected embedding=, a TokenEmbedding of the model or its name, since "
                f"{self.model.name!r} has none of its own, got {given!r}"
            )
        return layer

    def dense(self, units: int, name: str, activation: Any = None) -> keras.layers.Dense:
        """A dense layer of the head."""
        return keras.layers.Dense(
            units,
            activation=activation,
            # An initializer object draws the same numbers each time it is called.
            kernel_initializer=self._initializer.clone(),
            dtype=self.dtype,
            name=name,
        )

    def pooled(self) -> Tensor:
        """Symbolic vector (B, D) of the whole sequence: the model's own, or of a new pooler."""
        if self._pooled is None:
            x = self.dense(self.features.shape[-1], "pooler", "tanh")(self.features[:, 0])
            marker = identity.PooledMarker(
                dtype=self.dtype, name=_unused(self.model, "pooled_marker")
            )
            self._pooled = marker(x)
        return self._pooled

    def classify(self, x: Tensor, num_classes: int, dropout: float | None) -> Tensor:
        """Logits (..., C) of vectors (..., D)."""
        rate = self.argument("dropout", dropout, 0.0)
        x = Dropout(rate, dtype=self.dtype, name="classifier_dropout")(x)
        return self.dense(num_classes, "classifier")(x)

    def mark(self, kind: str, arguments: Mapping[str, Any], x: Tensor) -> Tensor:
        """The head's input, which carries the head's kind and the arguments of its function."""
        kept = {
            key: value
            for key, value in arguments.items()
            if key not in _NOT_RECORDED and not isinstance(value, _Base)
        }
        name = _unused(self.model, "head_marker")
        return identity.HeadMarker(kind, kept, dtype=self.dtype, name=name)(x)


def _checked_labels(labels: Sequence[str] | None, num_classes: int) -> list[str] | None:
    if labels is None:
        return None
    if len(labels) != num_classes or not all(isinstance(x, str) for x in labels):
        raise ValueError(f"labels must be {num_classes} names, one a class, got {labels!r}")
    return list(labels)


def _own_features(model: keras.Model) -> tuple[Tensor, Tensor | None]:
    """The model's features and pooled vector."""
    x, pooled = identity.features_of(model), identity.pooled_of(model)
    if x is None:
        raise ValueError(
            "expected a model of keras_tfm.models, or features=, a tensor (B, T, D) of the model "
            f"or a layer's name: {model.name!r} has no features of its own"
        )
    own = [x, pooled]
    if identity.head_of(model) is None and any(
        all(output is not one for one in own) for output in model.outputs
    ):
        raise ValueError(
            "expected features=, a tensor (B, T, D) of the model or a layer's name: "
            f"{model.name!r} has layers after its own features, which would be dropped"
        )
    return x, pooled


def _given_features(model: keras.Model, features: Any) -> Tensor:
    """The tensor that `features=` means."""
    if isinstance(features, str):
        names = [operation.name for operation in model.operations]
        if features not in names:
            raise ValueError(f"features must name one of {names}, got {features!r}")
        found = identity.outputs_in(model, model.operations[names.index(features)])
        if len(found) != 1:
            raise ValueError(
                f"features must name a layer with one output, got {features!r} with {len(found)}"
            )
        features = found[0]
    elif not any(
        features is x
        for operation in model.operations
        for x in identity.outputs_in(model, operation)
    ):
        raise ValueError(
            f"features must be a symbolic tensor of {model.name!r} or a layer's name, "
            f"got {features!r}"
        )
    if len(features.shape) != 3:
        raise ValueError(f"features must be (B, T, D), got shape {features.shape}")
    return features


def _unused(model: keras.Model, name: str) -> str:
    """`name`, with a number if the model has an operation of that name."""
    taken = {operation.name for operation in model.operations}
    numbered = (name if i == 0 else f"{name}_{i}" for i in range(len(taken) + 1))
    return next(x for x in numbered if x not in taken)
