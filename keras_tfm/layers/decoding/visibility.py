"""Which cached and new keys the tokens of a decoding step see."""

from typing import NamedTuple

from keras import ops

from keras_tfm.layers.decoding.cache import Entry
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.positions.attention_position import Positions, Span, as_tensor
from keras_tfm.layers.types import Size, Tensor, Window


class Branches(NamedTuple):
    """Several hypotheses of each row in one step, one token each (beam search).

    The n hypotheses of a row share one cache: a step's n tokens occupy n adjacent columns, and each
    hypothesis attends only to its own ancestors. Nothing is copied when one hypothesis is dropped
    and another one continues twice. The tokens of a step are (B, n), all at the scope's position.

    Attributes:
        ancestors: (B, n, S), boolean, the cache columns that belong to each hypothesis.
        positions: (S,), int32, the position of each column, the same in all rows.
        column: int or int32 scalar tensor, the first cache column that the step writes.
    """

    ancestors: Tensor
    positions: Tensor
    column: Size

    def after(self, prefix: int) -> "Branches":
        """The same hypotheses after `prefix` columns, which belong to all of them."""
        if not prefix:
            return self
        positions = ops.convert_to_tensor(self.positions)
        return Branches(
            ops.pad(self.ancestors, [(0, 0), (0, 0), (prefix, 0)], constant_values=True),
            ops.concatenate([ops.arange(prefix, dtype="int32"), positions + prefix], axis=0),
            self.column + prefix,
        )


class Visible(NamedTuple):
    """What the T queries of a step see: S cached keys and N new keys, S + N columns of scores.

    Attributes:
        own: bool. True: of the new keys, query t scores only key t, in one extra column (N = 1).
            False: query t scores all new keys (N = T) and sees those up to its own.
        write_first: bool, whether the cache has the new keys already: no extra columns (N = 0).
        mask: (1 | B, T, S + N), boolean, True = attend; None if all keys are seen.
        penalty: (1 | B, 1, T, S + N), float32, the mask as a tensor that is added to the scores,
            made once for all layers of a step; None if all keys are seen.
        some: (B, 1, T, 1), float32, 0 for queries that see no key, else 1; None if every query
            sees its own key.
        positions: `Positions` of queries and keys, counting the padding.
        masked_score: float, added to the scores of masked keys.
    """

    own: bool
    write_first: bool
    mask: Tensor | None
    penalty: Tensor | None
    some: Tensor | None
    positions: Positions
    masked_score: float

    def also(self, attention_mask: Tensor | None) -> "Visible":
        """Masked further by `attention_mask` (B, T, positions)."""
        if attention_mask is None:
            return self
        here = ops.take(attention_mask, as_tensor(self.positions.key), axis=-1)
        return self._replace(mask=ops.logical_and(self.mask, here)).with_penalty(sees_itself=False)

    def with_context(self, context_mask: Tensor | None, count: Size) -> "Visible":
        """Followed by the `count` columns of a context, whose tokens are seen by every query.

        Args:
            context_mask: (B, S), boolean, True = token, False = padding; None: all are tokens.
            count: int or int32 scalar tensor, S.
        """
        own = self.mask
        if context_mask is None:
            seen = ops.ones((*ops.shape(own)[:-1], count), "bool")
        else:
            own = _of_rows(own, ops.shape(context_mask)[0])
            seen = ops.broadcast_to(ops.expand_dims(context_mask, 1), (*ops.shape(own)[:-1], count))
        both = ops.concatenate([own, seen], axis=-1)
        return self._replace(mask=both).with_penalty(sees_itself=self.some is None)

    def with_penalty(self, sees_itself: bool) -> "Visible":
        """A copy with `penalty` and `some` computed from the mask."""
        seen = ops.cast(ops.expand_dims(self.mask, 1), "float32")
        some = None if sees_itself else ops.max(seen, axis=-1, keepdims=True)
        return self._replace(penalty=self._penalty(seen), some=some)

    def repeated_penalty(self, repeats: int) -> Tensor:
        """`penalty` with its rows `repeats` times, (1 | B, 1, repeats 1 | T, S + N).

        The mask is repeated, not the penalty: XNNPACK does not support TILE, so a TILE of the
        penalty would split the prefill's partition in two.
        """
        seen = ops.cast(ops.expand_dims(self.mask, 1), "float32")
        return self._penalty(ops.tile(seen, (1, 1, repeats, 1)))

    def _penalty(self, seen: Tensor) -> Tensor:
        return (seen - 1.0) * -self.masked_score


class Extended(NamedTuple):
    """What the queries of a causal self-attention attend to in one step.

    Attributes:
        entry: the layer's cache entry before the step, or after it with `write_first`; None if it
            is known to be empty.
        visible: which cached and new keys the queries see; None if the cache is empty.
        mask: (B, T), boolean, True = token, False = padding; None if all new keys are tokens.
    """

    entry: Entry | None
    visible: Visible | None
    mask: Tensor | None


def visible(
    tokens: Span,
    capacity: int,
    window: Window | None,
    branches: Branches | None,
    cached_mask: Tensor | None,
    mask: Tensor | None,
    padding: Tensor | None,
    own: bool,
    masked_score: float,
    write_first: bool = False,
    groups: Tensor | None = None,
) -> Visible:
    """Computes what the tokens of a step see.

    Args:
        tokens: `Span`, positions of the step's T tokens.
        capacity: int, number of cache columns (S). Columns from the step's position on are empty or
            stale.
        window: int, keys at this distance or further are not seen; optional.
        branches: `Branches` of a beam search; optional.
        cached_mask: (B, S), boolean, True = token, False = padding. None: all are tokens.
        mask: (B, T), boolean, likewise for the tokens of the step.
        padding: (B,), int32, number of padding columns before each row's first token; optional.
        own: bool, see `Visible`; requires T = 1 or tokens that share one position.
        masked_score: float, added to the scores of masked keys.
        write_first: bool, see `Visible`. `cached_mask` then includes the tokens of the step.
        groups: (B, T), int32, groups of the step's tokens, see `masks.in_groups`; without `own` and
            `write_first`.
    """
    if branches is None:
        columns = ops.arange(capacity, dtype="int32")
    else:
        columns = ops.convert_to_tensor(branches.positions)
    if write_first:
        return _visible_after_writing(tokens, columns, window, cached_mask, padding, masked_score)
    # With `own` all tokens share one position.
    start = ops.cast(tokens.start, "int32")
    here = ops.reshape(start, (1,)) if own else tokens.tensor()
    keys = ops.concatenate([columns, here], axis=0)
    cached = ops.expand_dims(columns < start, (0, 1))  # (1, 1, S)
    new: Tensor = None
    if own:
        if branches is not None:
            cached = ops.convert_to_tensor(branches.ancestors)
        if window is not None:
            cached = ops.logical_and(cached, columns > start - masks.sides(window)[0])
    else:
        distances = Positions(tokens, keys).distances()
        sight: Tensor = masks.in_sight(distances, True, window)
        cached = ops.logical_and(cached, ops.expand_dims(sight[:, :capacity], 0))
        new = ops.expand_dims(sight[:, capacity:], 0)  # (1, T, T)
        if groups is not None:
            new = masks.in_groups(groups, window)
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
    if batch is None:  # one of the two may still have a batch axis of 1
        size = ops.shape(new if cached.shape[0] == 1 else cached)[0]
        cached, new = (_of_rows(x, size) for x in (cached, new))
    both = ops.concatenate([cached, new], axis=-1)
    result = Visible(own, False, both, both, None, Positions(tokens, keys), masked_score)
    # With several tokens always keep `some`: without it the TFLite converter hoists a transpose of
    # the heads out of a loop and fails ("operand does not dominate this use").
    always = mask is None and padding is None and tokens.length == 1
    return result.with_penalty(sees_itself=isinstance(always, bool) and always)


def visible_context(mask: Tensor | None, positions: Positions, masked_score: float) -> Visible:
    """What the tokens of a step see of a context in the cache, whose columns are all written.

    Args:
        mask: (1 | B, 1 | T, S), boolean, True = attend; None if every token sees every key.
        positions: `Positions` of tokens and context.
        masked_score: float, added to the scores of masked keys.
    """
    seen = Visible(False, True, mask, None, None, positions, masked_score)
    return seen if mask is None else seen.with_penalty(sees_itself=False)


def _visible_after_writing(
    tokens: Span,
    columns: Tensor,
    window: Window | None,
    mask: Tensor | None,
    padding: Tensor | None,
    masked_score: float,
) -> Visible:
    """What the tokens see in a cache that has their own keys."""
    positions = Positions(tokens, columns)
    sight: Tensor = ops.expand_dims(masks.in_sight(positions.distances(), True, window), 0)
    real = _real(mask, columns, padding)
    if real is not None:
        sight = ops.logical_and(sight, ops.expand_dims(real, 1))
    return Visible(False, True, sight, sight, None, positions, masked_score).with_penalty(
        sees_itself=real is None
    )


def _real(mask: Tensor | None, positions: Tensor, padding: Tensor | None) -> Tensor | None:
    """Which keys are tokens according to mask and padding: (B, S), or None if all are."""
    if padding is None:
        return mask
    tokens = ops.greater_equal(ops.expand_dims(positions, 0), ops.expand_dims(padding, 1))
    return tokens if mask is None else ops.logical_and(mask, tokens)


def real_tokens(mask: Tensor | None, tokens: Span, padding: Tensor | None) -> Tensor | None:
    """Which inputs of a step are tokens, not padding: (B, T), or None if all are."""
    return _real(mask, tokens.tensor(), padding)


def _of_tokens(x: Tensor, length: Size) -> Tensor:
    """(B, 1) or (B, T) -> (B, T)."""
    return x if x.shape[1] == length else ops.tile(x, (1, length))


def _of_rows(x: Tensor, batch: Size) -> Tensor:
    if x.shape[0] != 1:
        return x
    return ops.broadcast_to(x, (batch, *ops.shape(x)[1:]))
