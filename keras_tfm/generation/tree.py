"""The hypotheses of a search as a tree: which columns of the shared KV cache belong to which.

The n hypotheses of a row share one cache: the n tokens of a step, one per hypothesis, are written
to n consecutive columns. Most hypotheses are soon dropped. Then most columns, except those of the
last few positions, belong to no hypothesis. Pruning removes these columns.
"""

from typing import NamedTuple

from keras import ops

from keras_tfm.layers.types import Size, Tensor


class Tree(NamedTuple):
    """The hypotheses over the columns of a cache. S is the capacity.

    Attributes:
        ancestors: (B, n, S), float32, 1 where a column holds a token of a hypothesis, 0 elsewhere.
        positions: (S,), int32, the position of each column, the same in all rows: ascending in the
            columns in use, 0 in the others.
        filled: () int32, number of columns in use.
    """

    ancestors: Tensor
    positions: Tensor
    filled: Tensor

    @classmethod
    def of_prompt(cls, batch: Size, width: int, columns: int, length: int) -> "Tree":
        """`width` hypotheses over `columns` columns, the first `length` of which are the prompt."""
        column = ops.arange(columns, dtype="int32")
        ancestors = ops.cast(column < length, "float32")
        return cls(
            ops.broadcast_to(ancestors, (batch, width, columns)),
            ops.where(column < length, column, 0),
            ops.convert_to_tensor(length, dtype="int32"),
        )

    @property
    def steps_left(self) -> Tensor:
        """The number of steps for which there are free columns."""
        return (self.ancestors.shape[2] - self.filled) // self.ancestors.shape[1]

    def wider(self, more: int) -> "Tree":
        """The same tree with `more` additional columns."""
        return self._replace(
            ancestors=ops.pad(self.ancestors, [(0, 0), (0, 0), (0, more)]),
            positions=ops.pad(self.positions, [(0, more)]),
        )

    def grow(self, position: Tensor, parents: Tensor) -> "Tree":
        """The tree after a step: one token per hypothesis is added, then the parents are selected.

        Args:
            position: () int32, position of the added tokens.
            parents: (B, n), int32, below n: the hypothesis that each of the next ones continues.
        """
        batch, n = ops.shape(self.ancestors)[0], self.ancestors.shape[1]
        new_columns = ops.broadcast_to(ops.eye(n, dtype="float32"), (batch, n, n))
        added = ops.slice_update(self.ancestors, (0, 0, self.filled), new_columns)
        positions = ops.broadcast_to(position, (n,))
        return Tree(
            ops.matmul(ops.one_hot(parents, n, dtype="float32"), added),
            ops.slice_update(self.positions, (self.filled,), positions),
            self.filled + n,
        )

    def prune(self) -> tuple["Tree", Tensor]:
        """The same hypotheses, without the columns that belong to none of them.

        Rows of a batch may need different numbers of columns for a position. All rows keep the
        largest number, so some columns of some rows stay unused.

        Returns:
            The tree, and (B, S), int32, the index of the old column that each new column copies.

        >>> from keras import ops
        >>> from keras_tfm.generation.tree import Tree
        >>> tree = Tree.of_prompt(batch=1, width=2, columns=6, length=0)
        >>> tree = tree.grow(0, ops.array([[1, 1]])).grow(1, ops.array([[0, 1]]))
        >>> tree, columns = tree.prune()  # position 0 keeps its second token, position 1 both
        >>> columns.numpy()[0, :3].tolist(), tree.positions.numpy().tolist()
        ([1, 2, 3], [0, 1, 1, 0, 0, 0])
        """
        # float32: fastest in LiteRT, and exact for these integers.
        positions = ops.cast(self.positions, "float32")
        across, down = ops.expand_dims(positions, 0), ops.expand_dims(positions, 1)
        column = ops.arange(self.ancestors.shape[2], dtype="float32")
        new = ops.expand_dims(column, 1)
        written = _less(column, ops.cast(self.filled, "float32"))
        needed = ops.max(self.ancestors, axis=1) * written  # (B, S)

        # The index of a column among those of its position, and among those that a row needs.
        beside = _equal(down, across)  # (S, S)
        to_the_left = beside * _less(new, column)
        place, needed_place = ops.sum(to_the_left, axis=0), ops.matmul(needed, to_the_left)
        # Each position keeps as many columns as the row that needs most, starting at `first`.
        kept = written * _less(place, ops.max(ops.matmul(needed, beside), axis=0))
        first = ops.sum(ops.expand_dims(kept, 1) * _less(down, across), axis=0)

        # The old column of each new one, if any.
        chosen = _equal(new, first + place) * kept  # (S, S)
        positions = ops.sum(chosen * positions, axis=1)
        chosen = _equal(new, ops.expand_dims(first + needed_place, 1))  # (B, S, S)
        chosen = chosen * ops.expand_dims(needed, 1)
        tree = Tree(
            ops.matmul(self.ancestors, ops.transpose(chosen, (0, 2, 1))),
            ops.cast(positions, "int32"),
            ops.cast(ops.sum(kept), "int32"),
        )
        return tree, ops.cast(ops.sum(chosen * column, axis=2), "int32")


def _less(x: Tensor, y: Tensor) -> Tensor:
    """1 where the integer x is less than y, 0 elsewhere."""
    return ops.clip(y - x, 0.0, 1.0)


def _equal(x: Tensor, y: Tensor) -> Tensor:
    """1 where the integers x and y are equal, 0 elsewhere."""
    return 1.0 - ops.minimum(ops.abs(x - y), 1.0)
