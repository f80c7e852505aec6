"""What the tokens of a step see: of the cache's columns, and of each other."""

from typing import Any, NamedTuple

from keras import ops

from keras_tfm.layers import masks
from keras_tfm.layers.positions.coordinates import Positions, Span, as_tensor

Tensor = Any


class Branches(NamedTuple):
    """Several hypotheses of each row, of which a step feeds one token each, side by side.

    A beam search continues its n best hypotheses. They share one cache, in which the n tokens of a
    step lie side by side, and each attends to its own ancestors: nothing is copied when a
    hypothesis is dropped and another continues twice. The tokens of a step are (B, n), all at the
    scope's position.

    Attributes:
        ancestors: (B, n, S), boolean, which columns of the cache each hypothesis continues.
        positions: (S,), int32, where the columns stand, in all rows.
        column: where in the cache the step's tokens go, an integer or an int32 scalar tensor.
    """

    ancestors: Tensor
    positions: Tensor
    column: Any


class Visible(NamedTuple):
    """What T queries of a step see of S cached keys and of N new ones: S + N columns of scores.

    Attributes:
        own: whether each query sees the new key of its own token alone, which takes one column for
            all of them, the last (N = 1); otherwise the queries see new keys up to their own.
        mask: (1 | B, T, S + N), boolean, True = attend.
        penalty: (1 | B, 1, T, S + N), float32, added to the scores: the mask, made once for all
            layers of a step.
        some: (B, 1, T, 1), float32, 0 for queries that see nothing; None: each sees its own key.
        positions: where queries and keys stand, padding counted.
        masked_score: what is added to the score of a masked key.
    """

    own: bool
    mask: Tensor
    penalty: Tensor
    some: Tensor | None
    positions: Positions
    masked_score: float

    def also(self, attention_mask: Tensor | None) -> "Visible":
        """Masked further by (B, T, S), over the positions of the cache."""
        if attention_mask is None:
            return self
        here = ops.take(attention_mask, as_tensor(self.positions.key), axis=-1)
        return self._replace(mask=ops.logical_and(self.mask, here)).made(sees_itself=False)

    def made(self, sees_itself: bool) -> "Visible":
        """With the penalty of the mask, and what says which queries see nothing."""
        seen = ops.cast(ops.expand_dims(self.mask, 1), "float32")
        some = None if sees_itself else ops.max(seen, axis=-1, keepdims=True)
        return self._replace(penalty=(seen - 1.0) * -self.masked_score, some=some)


def visible(
    tokens: Span,
    capacity: int,
    window: int | None,
    branches: Branches | None,
    cached_mask: Tensor | None,
    mask: Tensor | None,
    padding: Tensor | None,
    own: bool,
    masked_score: float,
) -> Visible:
    """What the tokens of a step see.

    Args:
        tokens: where the step's T tokens stand.
        capacity: S, the columns of the cache. Those from the step's position on are empty or stale.
        window: keys this far away or further are not seen.
        branches: of a beam search, or None.
        cached_mask: (B, S), boolean, which cached tokens are real, or None for all.
        mask: (B, T), boolean, which tokens of the step are real, or None for all.
        padding: (B,), int32, the columns before a row's first token, or None.
        own: see `Visible`; T = 1, or all tokens stand together.
        masked_score: what is added to the score of a masked key.
    """
    if branches is None:
        columns = ops.arange(capacity, dtype="int32")
    else:
        columns = ops.convert_to_tensor(branches.positions)
    # With `own` all tokens stand at one position.
    start = ops.cast(tokens.start, "int32")
    here = ops.reshape(start, (1,)) if own else tokens.tensor()
    keys = ops.concatenate([columns, here], axis=0)
    cached = ops.expand_dims(columns < start, (0, 1))  # (1, 1, S)
    if own:
        if branches is not None:
            cached = ops.convert_to_tensor(branches.ancestors)
        if window is not None:
            cached = ops.logical_and(cached, columns > start - window)
        new = None
    else:
        distances = Positions(tokens, keys).distances()
        sight = masks.in_sight(distances, True, window)
        cached = ops.logical_and(cached, ops.expand_dims(sight[:, :capacity], 0))
        new = ops.expand_dims(sight[:, capacity:], 0)  # (1, T, T)
    cached_real = _real(cached_mask, columns, padding)
    if cached_real is not None:
        cached = ops.logical_and(cached, ops.expand_dims(cached_real, 1))
    new_real = _real(mask, here, padding)
    if own:
        if new_real is None:
            new = ops.ones((*ops.shape(cached)[:-1], 1), dtype="bool")
        else:
            new = ops.expand_dims(_of_tokens(new_real, tokens.length), 2)
    elif new_real is not None:
        new = ops.logical_and(new, ops.expand_dims(new_real, 1))
    batch = 1 if cached.shape[0] == 1 and new.shape[0] == 1 else None
    if batch is None:  # one of them may be the same for all rows
        size = ops.shape(new if cached.shape[0] == 1 else cached)[0]
        cached, new = (_of_rows(x, size) for x in (cached, new))
    both = ops.concatenate([cached, new], axis=-1)
    result = Visible(own, both, both, None, Positions(tokens, keys), masked_score)
    # Of several tokens always with `some`: without it the TFLite converter moves a transposition of
    # the heads out of a loop, and fails ("operand does not dominate this use").
    always = mask is None and padding is None and tokens.length == 1
    return result.made(sees_itself=isinstance(always, bool) and always)


def _real(mask: Tensor | None, positions: Tensor, padding: Tensor | None) -> Tensor | None:
    """Which keys are real, by their mask and by the padding: (B, S), or None for all."""
    if padding is None:
        return mask
    tokens = ops.greater_equal(ops.expand_dims(positions, 0), ops.expand_dims(padding, 1))
    return tokens if mask is None else ops.logical_and(mask, tokens)


def real_tokens(mask: Tensor | None, tokens: Span, padding: Tensor | None) -> Tensor | None:
    """Which tokens of a step are real, by their mask and by the padding: (B, T), or None."""
    return _real(mask, tokens.tensor(), padding)


def _of_tokens(x: Tensor, length: Any) -> Tensor:
    """(B, 1) -> (B, T), unless it is that already."""
    return x if x.shape[1] == length else ops.tile(x, (1, length))


def _of_rows(x: Tensor, batch: Any) -> Tensor:
    if x.shape[0] != 1:
        return x
    return ops.broadcast_to(x, (batch, *ops.shape(x)[1:]))
