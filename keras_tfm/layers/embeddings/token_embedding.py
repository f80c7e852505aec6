"""Token embedding and tied output: ids to vectors, and features to logits with the same table."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.embeddings.lookup import as_integers, is_integer, is_traced, lookup
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN, PADDINGS, TokenMask, current_mask
from keras_tfm.layers.multi_head_attention.heads import leading
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor
from keras_tfm.runtime.decoding.special_ids import REAL_PAD

# A table with more values than this is not transposed into the decoding cache.
LARGE = 2**24


@keras.saving.register_keras_serializable("keras_tfm")
class TokenEmbedding(RematerializedLayer):
    """Looks up a vector for each token id; with `reverse=True`, logits from the same table.

    Lookup: E[id], times sqrt(D) with `scale=True`, or times the number or numbers `scale`. Reverse:
    x E^T.
    "Attention Is All You Need" (arXiv:1706.03762), section 3.4, after "Using the Output Embedding
    to Improve Language Models" (arXiv:1608.05859).

    Args:
        vocabulary_size: int, number of ids (V). Valid ids are 0 to V - 1.
        dim: int, width of a vector (D).
        scale: bool, float or D floats, multiply the vectors in a lookup (not with `reverse`) by
            sqrt(D), by this number, or each channel by its own number.
        mask_zero: bool, whether id 0 is padding, which later layers do not attend to.
        mask_id: int, the padding id. Default: 0 with `mask_zero`, otherwise none. -1: rows are
            padded with -1, which is no token. Otherwise an id -2 is the token `mask_id`, which
            is not padding then.
        padding: str, where `mask_id` is padding: "anywhere" (default); "ends", only before the
            first and after the last other id of a row; "after_end", as "ends", but the first one
            after the last other id is a token: the tokenizer appends it to each text.
        embeddings_initializer: initializer of the table (V, D). Default: normal with standard
            deviation D^-0.5, so that scaled vectors and tied logits start near unit variance.

    Call arguments:
        inputs: (B, T), integers, ids; with `reverse=True`, features (B, T, D).
        reverse: bool, return logits over the vocabulary.

    The mask that the ids carry, if any, takes the place of the one by `mask_id`: pass it as
    `model(ids, mask=mask)`, (B, T), boolean, True for tokens.

    Returns:
        Vectors (B, T, D), or logits (B, T, V) with `reverse=True`.

    Raises:
        ValueError: in eager calls, an id outside 0 to V - 1. In a compiled graph TensorFlow raises
            InvalidArgumentError on a CPU, which names the id and the range.
        TypeError: ids that are not integers. Whole numbers in float32 are accepted for ids (B, T),
            since a `keras.Sequential` without an `Input` casts what it is given.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import TokenEmbedding
    >>> embedding = TokenEmbedding(vocabulary_size=11, dim=4, scale=True, mask_zero=True)
    >>> x = embedding(np.array([[3, 7, 0]]))
    >>> tuple(x.shape), tuple(embedding(x, reverse=True).shape)
    ((1, 3, 4), (1, 3, 11))
    """

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        scale: bool | float | Sequence[float] = False,
        mask_zero: bool = False,
        mask_id: int | None = None,
        embeddings_initializer: Initializer | None = None,
        padding: str = "anywhere",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("vocabulary_size", vocabulary_size)
        check_integer("dim", dim)
        self.vocabulary_size = vocabulary_size
        self.dim = dim
        if isinstance(scale, list | tuple | np.ndarray):
            if len(scale) != dim:
                raise ValueError(
                    f"scale must have a number for each of the {dim} channels, got {len(scale)}"
                )
            for number in scale:
                check_number("scale", number)
            scale = tuple(float(x) for x in scale)
        elif not isinstance(scale, bool):
            check_number("scale", scale)
        self.scale = scale
        check_integer("mask_id", mask_id, minimum=NO_TOKEN, optional=True)
        if mask_zero and mask_id not in (None, 0):
            raise ValueError(f"mask_zero=True means mask_id=0, got mask_id={mask_id}")
        if mask_id is not None and mask_id >= vocabulary_size:
            raise ValueError(
                f"mask_id must be in the vocabulary, 0..{vocabulary_size - 1}, got {mask_id}"
            )
        if padding not in PADDINGS:
            raise ValueError(f"padding must be one of {list(PADDINGS)}, got {padding!r}")
        self.padding = padding
        self.mask_id = 0 if mask_zero else mask_id
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=dim**-0.5)
        self.embeddings_initializer = as_initializer(
            "embeddings_initializer", embeddings_initializer
        )

    def build(self, inputs_shape: Shape | None = None) -> None:
        """Creates the table: its shape does not depend on the input."""
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.dim),
            initializer=self.embeddings_initializer,
            autocast=False,  # looked up in float32, in LiteRT too, and cast last
        )
        self.built = True

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the layer; ids that Keras made floats become integers again."""
        is_reverse = kwargs.get("reverse", args[0] if args else False)
        if not is_reverse and hasattr(inputs, "dtype"):
            inputs = _integers(inputs)  # before Keras casts floats to the layer's dtype
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        """Ids (B, T) -> (B, T, D), or features (B, T, D) -> logits (B, T, V)."""
        if reverse:
            self._check_features(inputs)
            table = ops.cast(self.embeddings, self.compute_dtype)
            scope = current_scope.get()
            is_xla = scope is not None and scope.xla
            if keras.backend.backend() == "tensorflow" and not is_traced(inputs) and not is_xla:
                # A graph fuses the transpose with the product; here it would copy the table.
                return _eager_logits(inputs, table)
            return _logits(inputs, self._transpose(table))
        inputs = _integers(inputs)
        self._check_ids(inputs)
        x = ops.cast(lookup(self.embeddings, self._in_vocabulary(inputs)), self.compute_dtype)
        return self._scale_vectors(x)

    def _scale_vectors(self, x: Tensor) -> Tensor:
        return x if self.scale is False else x * ops.cast(self.lookup_factors(), x.dtype)

    def lookup_factors(self) -> np.ndarray:
        """What a lookup multiplies vectors with: a number, (), or one for each channel, (D,)."""
        if isinstance(self.scale, bool):
            return np.array(self.dim**0.5 if self.scale else 1.0)
        return np.array(self.scale)

    def _transpose(self, table: Tensor) -> Tensor:
        scope = current_scope.get()
        # With few rows of features XLA is slow at a product with a transposed table.
        if scope is None or not scope.xla or self.vocabulary_size * self.dim > LARGE:
            return ops.transpose(table)
        return scope.keep(self.name, lambda: ops.transpose(table))

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        """The padding mask of ids; features keep the mask that they carry."""
        if not is_integer(inputs) or previous_mask is not None:
            return previous_mask
        if self.mask_id is None:
            return None
        if isinstance(inputs, keras.KerasTensor):
            return TokenMask(self.mask_id, self.padding)(inputs)
        return current_mask(inputs, None, self.mask_id, self.padding)

    def _in_vocabulary(self, ids: Tensor) -> Tensor:
        """Ids that the table has."""
        if self.mask_id is None or (current_scope.get() is not None and self.mask_id >= 0):
            return ids
        if self.mask_id == NO_TOKEN:
            return ops.maximum(ids, 0)
        return ops.where(ops.equal(ids, REAL_PAD), ops.cast(self.mask_id, ids.dtype), ids)

    def compute_output_shape(self, inputs_shape: Shape, reverse: bool = False) -> Shape:
        """(B, T) -> (B, T, D); with `reverse`, (B, T, D) -> (B, T, V)."""
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape, self.dim)

    def compute_output_spec(self, inputs: Tensor, reverse: bool = False) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        if reverse:
            self._check_features(inputs)
        else:
            _integers(inputs)
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _check_features(self, inputs: Tensor) -> None:
        if inputs.shape[-1] != self.dim:
            raise ValueError(
                f"reverse=True expects features of width {self.dim}, "
                f"got shape {tuple(inputs.shape)}"
            )

    def _check_ids(self, ids: Tensor) -> None:
        if is_traced(ids):
            return
        values = ops.convert_to_numpy(ids)
        if self.mask_id is not None:
            values = values[values != (NO_TOKEN if self.mask_id == NO_TOKEN else REAL_PAD)]
        if values.size and (values.min() < 0 or values.max() >= self.vocabulary_size):
            raise ValueError(
                f"{self.name}: token ids must be in 0..{self.vocabulary_size - 1}, "
                f"got {values.min()}..{values.max()}"
            )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "dim": self.dim,
            "scale": self.scale,
            "mask_zero": self.mask_id == 0,
            "mask_id": self.mask_id,
            "padding": self.padding,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


def _logits(x: Tensor, table: Tensor) -> Tensor:
    """(..., D), (D, V) -> (..., V); on TensorFlow as a 2D product, which takes fewer operations."""
    if keras.backend.backend() != "tensorflow":
        return ops.matmul(x, table)
    y = ops.matmul(ops.reshape(x, (-1, x.shape[-1])), table)
    return ops.reshape(y, (*leading(x, len(x.shape) - 1), table.shape[-1]))


def _eager_logits(x: Tensor, table: Tensor) -> Tensor:
    """(..., D), (V, D) -> (..., V)."""
    import tensorflow as tf

    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), table, transpose_b=True)
    return tf.reshape(y, (*x.shape[:-1], table.shape[0]))


def _integers(ids: Tensor) -> Tensor:
    # Floats of more axes than (B, T) are most likely features, without reverse=True.
    name = 'TokenEmbedding: declare keras.Input(..., dtype="int32"): ids'
    return as_integers(ids, name, floats=len(ids.shape) <= 2)
