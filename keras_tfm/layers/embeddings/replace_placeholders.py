"""Features at the placeholder tokens of a text, such as those of an image at `<image>`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.cache import value_of
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.embeddings.lookup import as_integers, is_traced
from keras_tfm.layers.types import Shape, Size, Tensor
from keras_tfm.runtime.decoding.special_ids import check_count

_checks: ContextVar[bool] = ContextVar("checks_placeholders", default=True)
_in_place: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("in_place", default=None)


@contextmanager
def any_placeholders() -> Iterator[None]:
    """The context in which rows may have any number of placeholder tokens: for random tokens.

    >>> import numpy as np
    >>> from keras_tfm.layers import ReplacePlaceholders
    >>> from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders
    >>> x, features = np.zeros((1, 1, 2), "float32"), np.ones((1, 5, 2), "float32")
    >>> with any_placeholders():
    ...     np.array(ReplacePlaceholders(9)(x, np.array([[9]]), features)).tolist()
    [[[1.0, 1.0]]]
    """
    token = _checks.set(False)
    try:
        yield
    finally:
        _checks.reset(token)


@contextmanager
def features_in_place(is_feature: Tensor, features: Tensor) -> Iterator[None]:
    """The context in which a host has put the features in the places of their tokens.

    The layer then reads no other features, counts no placeholders, and caches nothing.

    Args:
        is_feature: (B, T), boolean, the places.
        features: float tensor (B, T, D).

    >>> import numpy as np
    >>> from keras_tfm.layers import ReplacePlaceholders
    >>> from keras_tfm.layers.embeddings.replace_placeholders import features_in_place
    >>> x, features = np.zeros((1, 2, 1), "float32"), np.ones((1, 2, 1), "float32")
    >>> with features_in_place(np.array([[False, True]]), features):
    ...     np.array(ReplacePlaceholders(9)(x, np.array([[3, 9]]), features)).tolist()
    [[[0.0], [1.0]]]
    """
    token = _in_place.set((is_feature, features))
    try:
        yield
    finally:
        _in_place.reset(token)


@keras.saving.register_keras_serializable("keras_tfm")
class ReplacePlaceholders(RematerializedLayer):
    """Replaces the embeddings of placeholder tokens by features: image tokens inside a text.

    The i-th placeholder of a row gets the row's i-th feature:

        y_t = f_i    if token t is the i-th placeholder of its row, i <= N
        y_t = x_t    otherwise

    A vision-language model reads the projected features of an image encoder this way, as LLaVA
    (arXiv:2304.08485), Idefics3 (arXiv:2408.12637) and SmolVLM (arXiv:2504.05299) do: a prompt has
    the token `<image>` N times where the picture belongs. Features of several pictures are
    concatenated in the order of the prompt. The features need the width of the embeddings; the
    embeddings of placeholders are not used and get no gradient.

    Inside a `DecodingScope` an entry of the KV cache records which tokens were placeholders, so a
    prompt may be processed in steps of any number of tokens, and beams may branch.

    Args:
        token_id: int, id of the placeholder token.
        group: int, number of features that belong together, such as those of one picture or tile.
            A row may then have placeholders for its first groups alone: the others are padding, for
            instance pictures that other rows of the batch have. Default: a row has placeholders
            for all of its features.

    Call arguments:
        x: float tensor (B, T, D), embeddings of the tokens.
        tokens: (B, T), integers, the tokens.
        features: float tensor (B, N, D).
        features_mask: (B, N), boolean, True = feature, False = padding, which has to stand after
            the row's features. Default: the mask that `features` carries, or no padding.

    Returns:
        Float tensor (B, T, D), with the mask of `x`.

    Raises:
        ValueError: shapes that do not fit. Where the tokens are known (not in a compiled function):
            a row with placeholders whose number is not that of its features, or with `group` not a
            multiple of it, or more. A row without placeholders is text alone. In a compiled
            function surplus placeholders keep their embeddings, and surplus features are not used.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ReplacePlaceholders
    >>> x, tokens = np.zeros((1, 4, 1), "float32"), np.array([[3, 9, 4, 9]])
    >>> features = np.array([[[0.5], [0.75]]], "float32")
    >>> y = ReplacePlaceholders(token_id=9)(x, tokens, features)
    >>> np.array(y)[0, :, 0].tolist()
    [0.0, 0.5, 0.0, 0.75]
    """

    def __init__(self, token_id: int, group: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("token_id", token_id, minimum=0)
        check_integer("group", group, optional=True)
        self.token_id = token_id
        self.group = group

    def build(self, x_shape: Shape, tokens_shape: Shape, features_shape: Shape) -> None:
        """Checks the shapes; there are no weights."""
        self._check_shapes(x_shape, tokens_shape, features_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        tokens: Tensor,
        features: Tensor,
        features_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D), (B, T), (B, N, D) -> (B, T, D)."""
        self._check_shapes(x.shape, tokens.shape, features.shape)
        given = _in_place.get()
        if given is not None:
            places, vectors = given
            return ops.where(ops.expand_dims(places, -1), ops.cast(vectors, x.dtype), x)
        is_placeholder = ops.equal(as_integers(tokens, f"{self.name}: tokens"), self.token_id)
        count = _size(features, 1)
        if features_mask is None:
            real: Tensor = count
        else:
            real = ops.sum(ops.cast(features_mask, "int32"), axis=1, keepdims=True)
        if current_scope.get() is None and _checks.get():
            self._check_counts(is_placeholder, real)
        number = self._number(is_placeholder)  # 1 for the first placeholder of a row
        replaced = ops.logical_and(is_placeholder, ops.less_equal(number, real))
        row = ops.expand_dims(ops.arange(_size(features, 0), dtype="int32"), 1)
        place = row * count + ops.clip(number - 1, 0, count - 1)
        # Of a matrix, because LiteRT's GATHER with a batch axis has fewer kernels.
        flat = ops.reshape(ops.cast(features, x.dtype), (-1, x.shape[-1]))
        return ops.where(ops.expand_dims(replaced, -1), ops.take(flat, place, axis=0), x)

    def _number(self, is_placeholder: Tensor) -> Tensor:
        """(B, T), boolean -> (B, T), int32: the placeholders of the row up to each token."""
        scope = current_scope.get()
        counted = ops.cumsum(ops.cast(is_placeholder, "int32"), axis=1)
        if scope is None:
            return counted
        # The entry of a head of size 1, whose values are 1 for placeholders. What a token sees of
        # it is what a query of causal self-attention sees.
        ones = ops.cast(is_placeholder, self.compute_dtype)[:, None, :, None]
        step = scope.extend(self.name, None, ones, None)
        if step.entry is None or step.visible is None:
            return counted
        cached = ops.cast(value_of(step.entry), "float32")[:, 0]  # (B, S, 1)
        new = ops.cast(ones, "float32")[:, 0]  # (B, T, 1)
        seen = ops.cast(step.visible.mask, "float32")  # (1 | B, T, S + N)
        columns = cached.shape[1] if isinstance(cached.shape[1], int) else ops.shape(cached)[1]
        sums = ops.matmul(seen[..., :columns], cached)
        if step.visible.own:
            sums = sums + new
        elif not step.visible.write_first:
            sums = sums + ops.matmul(seen[..., columns:], new)
        # Rounded: a cache in int8 stores 1 as 127 x (1 / 127).
        return ops.cast(ops.round(sums[..., 0]), "int32")

    def _check_shapes(self, x: Shape, tokens: Shape, features: Shape) -> None:
        x, tokens, features = tuple(x), tuple(tokens), tuple(features)
        known = (len(x), len(tokens), len(features)) == (3, 2, 3)
        if not known or any(None not in (a, b) and a != b for a, b in zip(x, tokens, strict=False)):
            raise ValueError(
                f"{self.name}: expected x (B, T, D), tokens (B, T) and features (B, N, D), got "
                f"shapes {x}, {tokens} and {features}"
            )
        if x[2] != features[2]:
            raise ValueError(
                f"{self.name}: the features must have the width of the embeddings ({x[2]}), got "
                f"{features[2]}: project them"
            )

    def _check_counts(self, is_placeholder: Tensor, real: Tensor) -> None:
        """Raises if the numbers are known and differ in a row with placeholders."""
        if any(not isinstance(y, int) and is_traced(y) for y in (is_placeholder, real)):
            return
        found = ops.convert_to_numpy(is_placeholder).sum(1)
        wanted = np.broadcast_to(np.reshape(ops.convert_to_numpy(real), (-1,)), found.shape)
        for i, (a, b) in enumerate(zip(found.tolist(), wanted.tolist(), strict=True)):
            check_count(self.name, f"row {i}", a, self.token_id, b, self.group)


def _size(x: Tensor, axis: int) -> Size:
    return x.shape[axis] if isinstance(x.shape[axis], int) else ops.shape(x)[axis]
