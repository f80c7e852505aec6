"""The base of task heads: a model's features, and the defaults of a head's layers."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_tfm.keras_internals import functional_of
from keras_tfm.layers import Dropout, LayerNormalization, SequencePooling, TokenEmbedding
from keras_tfm.layers.types import Activation, DType, Initializer, Tensor
from keras_tfm.models import identity
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.encoder_decoders.shifted_source import end_token_features, shifted_mask
from keras_tfm.models.identity import Marker, tensors_of
from keras_tfm.models.model import Model


class HeadBase:
    """The model that gets a head, with the defaults of the head's layers.

    Attributes:
        model: the functional model; of a `keras.Sequential`, the one inside.
        features: symbolic tensor (B, T, D), input of the head.
        dtype: policy of the head's layers.
        is_causal: bool, whether the model is decoder-only: a token's features do not depend on
            later tokens. False if it is unknown, in hand-composed models.
    """

    def __init__(
        self,
        model: keras.Model,
        features: Tensor | str | None = None,
        kernel_initializer: Initializer | None = None,
        dtype: DType = None,
    ):
        model = functional_of(model)
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
            marker = Marker("features", dtype=dtype, name=unused_name(model, "features_marker"))
            self.features, self._pooled = marker(_given_features(model, features)), None
        self._arguments = marker.identity.arguments
        self._embedding = marker.identity.embedding
        blocks = identity.blocks_of(model, marker.identity)
        self.is_causal = bool(blocks) and all(getattr(x, "causal", False) for x in blocks)
        self._initializer = keras.initializers.get(
            keras.initializers.TruncatedNormal(stddev=0.02)
            if kernel_initializer is None
            else kernel_initializer
        )
        self.dtype = marker.dtype_policy if dtype is None else dtype

    def argument(self, name: str, given: object, default: object) -> Any:
        """The argument given to the head, else the model's, else a default."""
        return self._arguments.get(name, default) if given is None else given

    def embedding(self, given: TokenEmbedding | str | None) -> TokenEmbedding:
        """The `TokenEmbedding` to which the output is tied."""
        given = self._embedding if given is None else given
        layer = self.model.get_layer(given) if isinstance(given, str) else given
        if not isinstance(layer, TokenEmbedding):
            raise ValueError(
                "expected embedding=, a TokenEmbedding of the model or its name, since "
                f"{self.model.name!r} does not know its embedding, got {given!r}"
            )
        return layer

    def dense(
        self, units: int, name: str, activation: Activation | None = None, use_bias: bool = True
    ) -> keras.layers.Dense:
        """A dense layer of the head."""
        return keras.layers.Dense(
            units,
            activation=activation,
            use_bias=use_bias,
            # Cloned: one initializer object would draw the same numbers for every layer.
            kernel_initializer=self._initializer.clone(),
            dtype=self.dtype,
            name=name,
        )

    def begin(self, x: Tensor) -> Tensor:
        """The layers with which every head of the family begins, if any: (..., D) -> (..., D)."""
        return x

    def transform(
        self,
        x: Tensor,
        dim: int,
        name: str,
        activation: Activation | None = None,
        layer_norm_epsilon: float | None = None,
    ) -> Tensor:
        """A dense layer of width `dim` with an activation, and a normalisation."""
        activation = self.argument("activation", activation, "gelu")
        return self._transform(x, dim, name, activation, layer_norm_epsilon, use_bias=True)

    def _transform(
        self,
        x: Tensor,
        dim: int,
        name: str,
        activation: Activation,
        layer_norm_epsilon: float | None,
        use_bias: bool,
    ) -> Tensor:
        x = self.dense(dim, name, activation, use_bias)(x)
        epsilon = self.argument("layer_norm_epsilon", layer_norm_epsilon, 1e-12)
        return LayerNormalization(
            epsilon=epsilon, center=use_bias, dtype=self.dtype, name=f"{name}_norm"
        )(x)

    def token_logits(
        self,
        x: Tensor,
        table: TokenEmbedding,
        activation: Activation | None = None,
        layer_norm_epsilon: float | None = None,
    ) -> Tensor:
        """Logits (..., V) of features (..., D), tied to an embedding, without the bias."""
        x = self.transform(x, table.dim, "transform", activation, layer_norm_epsilon)
        return table(x, reverse=True)

    def pool(self) -> Tensor:
        """Pooled symbolic vector (B, D): the model's, or that of a new pooler."""
        if self._pooled is None:
            at_end = end_token_features(self.model, self.features)
            x = token(self.features, 0) if at_end is None else at_end
            rate = self.argument("pooler_dropout", None, 0.0)
            if rate:
                x = Dropout(rate, dtype=self.dtype, name="pooler_dropout")(x)
            x = self._pooler(x)
            name = unused_name(self.model, "pooled_marker")
            self._pooled = Marker("pooled", dtype=self.dtype, name=name)(x)
        return self._pooled

    def _pooler(self, x: Tensor) -> Tensor:
        """The dense layer of a new pooler."""
        activation = self.argument("pooler_activation", None, "tanh")
        return self.dense(self.features.shape[-1], "pooler", activation)(x)

    # Those of a classifier of texts.
    poolings: tuple[str, ...] = ("first", "last", "mean")

    @property
    def pooling(self) -> str:
        """The default pooling of a classifier of texts."""
        return "last" if self.is_causal else "first"

    def has_classifier_bias(self, pooling: str) -> bool:
        """Whether the last layer of a classifier of texts has a bias."""
        return pooling == "first"

    def pool_tokens(self, mode: str, features: Tensor | None = None) -> Tensor:
        """Symbolic vector (B, D) of the tokens that are not padding: "last" or "mean".

        Args:
            mode: str, the mode of `SequencePooling`.
            features: symbolic tensor (B, T, D). Default: the model's.
        """
        pooling = SequencePooling(mode, dtype=self.dtype, name="pooling")
        mask, x = shifted_mask(self.model), self.features if features is None else features
        return pooling(x) if mask is None else pooling(x, mask=mask)

    def classify(
        self,
        x: Tensor,
        num_classes: int,
        dropout: float | None,
        use_bias: bool = True,
        name: str = "classifier",
    ) -> Tensor:
        """Dropout and a dense layer: (..., D) -> logits (..., C)."""
        rate = self.argument("dropout", dropout, 0.0)
        x = Dropout(rate, dtype=self.dtype, name=f"{name}_dropout")(self.begin(x))
        return self.dense(num_classes, name, use_bias=use_bias)(x)

    def mark(self, x: Tensor, **arguments: Any) -> Tensor:
        """Marks the head's input.

        Args:
            arguments: the head's arguments that are recorded with another value than given.
        """
        name = unused_name(self.model, "head_marker")
        return Marker("head", arguments=arguments, dtype=self.dtype, name=name)(x)

    def with_outputs(self, outputs: object, inputs: object = None) -> Model:
        """The model with these outputs, and its own inputs unless others are given."""
        return derived_model(self.model, self.model.input if inputs is None else inputs, outputs)


class TransformingHead(HeadBase):
    """Of a family whose heads all begin with a dense layer and a norm, without biases: ModernBERT.

    They take the place of the pooler, and the activation is `head_activation` of the builder.
    """

    def begin(self, x: Tensor) -> Tensor:
        """The layers with which every head of the family begins."""
        return self.transform(x, x.shape[-1], "transform")

    def transform(
        self,
        x: Tensor,
        dim: int,
        name: str,
        activation: Activation | None = None,
        layer_norm_epsilon: float | None = None,
    ) -> Tensor:
        """A dense layer of width `dim` with an activation, and a normalisation."""
        activation = self.argument("head_activation", activation, "gelu")
        return self._transform(x, dim, name, activation, layer_norm_epsilon, use_bias=False)

    def has_classifier_bias(self, pooling: str) -> bool:
        """Whether the last layer of a classifier of texts has a bias: not in the decoder."""
        return not self.is_causal

    def _pooler(self, x: Tensor) -> Tensor:
        return x


class LastTokenHead(HeadBase):
    """Of T5Gemma and T5Gemma 2, whose classifiers are one dense layer on the last token."""

    @property
    def pooling(self) -> str:
        """The default pooling of a classifier of texts."""
        return "last"

    def has_classifier_bias(self, pooling: str) -> bool:
        """Whether the last layer of a classifier of texts has a bias."""
        return True


class DenseClassifierHead(HeadBase):
    """Of EuroBERT, whose classifiers of texts have a dense layer, of `classifier_activation`.

    With the pooling "late" it is applied to each token, and the mean is taken after it.
    """

    poolings = (*HeadBase.poolings, "late")

    @property
    def pooling(self) -> str:
        """The default pooling of a classifier of texts."""
        return "late"

    def has_classifier_bias(self, pooling: str) -> bool:
        """Whether the last layer of a classifier of texts has a bias."""
        return True

    def pool_tokens(self, mode: str, features: Tensor | None = None) -> Tensor:
        """Symbolic vector (B, D) of the tokens that are not padding: "last", "mean" or "late"."""
        if mode == "late":
            return super().pool_tokens("mean", self._pooler(self.features))
        return self._pooler(super().pool_tokens(mode, features))

    def _pooler(self, x: Tensor) -> Tensor:
        activation = self.argument("classifier_activation", None, None)
        return self.dense(self.features.shape[-1], "pooler", activation)(x)


class MobileBERTHead(HeadBase):
    """Of MobileBERT, whose output over the vocabulary is wider than its embedding.

    The first E columns are the embedding's table, the other D - E have weights of their own. The
    pooler has a dense layer with `pooler_dense` of the builder.
    """

    def token_logits(
        self,
        x: Tensor,
        table: TokenEmbedding,
        activation: Activation | None = None,
        layer_norm_epsilon: float | None = None,
    ) -> Tensor:
        """Logits (..., V) of features (..., D), without the bias."""
        dim = x.shape[-1]
        if table.dim > dim:
            raise ValueError(f"embedding_dim ({table.dim}) must not exceed dim ({dim})")
        x = self.transform(x, dim, "transform", activation, layer_norm_epsilon)
        if table.dim == dim:
            return table(x, reverse=True)
        own = self.dense(table.vocabulary_size, "output", use_bias=False)
        return table(x[..., : table.dim], reverse=True) + own(x[..., table.dim :])

    def _pooler(self, x: Tensor) -> Tensor:
        return super()._pooler(x) if self.argument("pooler_dense", None, True) else x


class SpeechHead(HeadBase):
    """Of wav2vec 2.0 and HuBERT: a classifier of audio has a dense layer, and pools the mean."""

    @property
    def pooling(self) -> str:
        """The default pooling of a classifier of audio."""
        return "mean"

    def has_classifier_bias(self, pooling: str) -> bool:
        """Whether the last layer of a classifier of audio has a bias."""
        return True

    def pool_tokens(self, mode: str, features: Tensor | None = None) -> Tensor:
        """Symbolic vector (B, C) of the features that are not padding."""
        # The original projects before it takes the mean, which is the same.
        width = self.argument("classifier_dim", None, 256)
        return self.dense(width, "projector")(super().pool_tokens(mode, features))


def head_base(
    model: keras.Model,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> HeadBase:
    """The base of a model's heads, by its family."""
    marker = identity.features_marker(model) if features is None else None
    arguments = {} if marker is None else marker.identity.arguments
    kind = HeadBase
    if "head_activation" in arguments:
        kind = TransformingHead
    elif arguments.get("classifier_activation") is not None:
        kind = DenseClassifierHead
    elif marker is not None and marker.identity.family in ("t5gemma", "t5gemma2"):
        kind = LastTokenHead
    elif marker is not None and marker.identity.family == "mobilebert":
        kind = MobileBERTHead
    elif marker is not None and marker.identity.family == "wav2vec2":
        kind = SpeechHead
    return kind(model, features, kernel_initializer, dtype)


def _own_features(model: keras.Model) -> tuple[Tensor, Tensor | None]:
    """The model's features and pooled vector."""
    x, pooled = identity.features_of(model), tensors_of(model, "pooled")
    if x is None:
        raise ValueError(
            "expected a model of keras_tfm.models, or features=, a tensor (B, T, D) of the model "
            f"or a layer's name: {model.name!r} has no features of its own"
        )
    known = [x, *pooled]
    known += [y for role in ("visual", "alignment", "pairs") for y in tensors_of(model, role)]
    if identity.head_of(model) is None and any(
        all(output is not one for one in known) for output in model.outputs
    ):
        raise ValueError(
            "expected features=, a tensor (B, T, D) of the model or a layer's name: "
            f"{model.name!r} has layers after its own features, which would be dropped"
        )
    return x, pooled[-1] if pooled else None


def _given_features(model: keras.Model, features: Any) -> Tensor:
    """The tensor given as `features=`: a tensor or a layer's name."""
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


def unused_name(model: keras.Model, name: str) -> str:
    """`name`, with a number if the model has an operation of that name."""
    taken = {operation.name for operation in model.operations}
    numbered = (name if i == 0 else f"{name}_{i}" for i in range(len(taken) + 1))
    return next(x for x in numbered if x not in taken)


def checked_labels(labels: Sequence[str] | None, num_classes: int) -> list[str] | None:
    """The names of a classifier's classes as a list.

    Raises:
        ValueError: there is not one name per class.
    """
    if labels is None:
        return None
    if len(labels) != num_classes or not all(isinstance(x, str) for x in labels):
        raise ValueError(f"labels must be {num_classes} names, one a class, got {labels!r}")
    return list(labels)


def token(x: Tensor, index: int) -> Tensor:
    """The features (B, D) of one token: (B, T, D) -> (B, D).

    A slice and a reshape, which XNNPACK runs; it has no slice that removes an axis, as `x[:, 0]`.
    """
    return keras.ops.reshape(x[:, index : index + 1], (-1, x.shape[-1]))
