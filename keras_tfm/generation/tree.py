"""The tree of a search's beginnings: which columns of their one cache each of them goes on from.

The n tokens of a step, one of each beginning, lie side by side in the cache. Most beginnings are
given up soon, and then nothing goes on from most columns of all but the last few positions.
"""

from typing import Any, NamedTuple

from keras import ops

Tensor = Any


class Tree(NamedTuple):
    """Beginnings over the columns of a cache.

    Attributes:
        ancestors: (B, n, S), float32, 1 where a beginning goes on from a column, 0 elsewhere.
        positions: (S,), int32, where the columns stand, in all rows; ascending, then 0 where a
            column holds nothing yet.
        filled: int32, how many columns hold something.
    """

    ancestors: Tensor
    positions: Tensor
    filled: Tensor

    @classmethod
    def of_prompt(cls, batch: Any, width: int, columns: int, length: int) -> "Tree":
        """n beginnings, `width`, over S columns, of which all go on from the first `length`."""
        column = ops.arange(columns, dtype="int32")
        ancestors = ops.cast(column < length, "float32")
        return cls(
            ops.broadcast_to(ancestors, (batch, width, columns)),
            ops.where(column < length, column, 0),
            ops.convert_to_tensor(length, dtype="int32"),
        )

    @property
    def steps_left(self) -> Tensor:
        """For how many steps there are columns."""
        return (self.ancestors.shape[2] - self.filled) // self.ancestors.shape[1]

    def wider(self, more: int) -> "Tree":
        """With so many more columns."""
        return self._replace(
            ancestors=ops.pad(self.ancestors, [(0, 0), (0, 0), (0, more)]),
            positions=ops.pad(self.positions, [(0, more)]),
        )

    def grown(self, position: Tensor, parents: Tensor) -> "Tree":
        """With a token of each beginning at `position`, each of which then takes a parent's place.

        Args:
            position: int32.
            parents: (B, n), int32, below n.
        """
        batch, n = ops.shape(self.ancestors)[0], self.ancestors.shape[1]
        own = ops.broadcast_to(ops.eye(n, dtype="float32"), (batch, n, n))
        added = ops.slice_update(self.ancestors, (0, 0, self.filled), own)
        positions = ops.broadcast_to(position, (n,))
        return Tree(
            ops.matmul(ops.one_hot(parents, n, dtype="float32"), added),
            ops.slice_update(self.positions, (self.filled,), positions),
            self.filled + n,
        )

    def pruned(self) -> tuple["Tree", Tensor]:
        """The same beginnings, without the columns that none of them goes on from.

        Where rows of the batch need different numbers of columns for a position, all have the
        largest, some of them for nothing.

        Returns:
            The tree, and (B, S), int32, which of the old columns each of the new ones is.

        >>> from keras import ops
        >>> from keras_tfm.generation.tree import Tree
        >>> tree = Tree.of_prompt(batch=1, width=2, columns=6, length=0)
        >>> tree = tree.grown(0, ops.array([[1, 1]])).grown(1, ops.array([[0, 1]]))
        >>> tree, columns = tree.pruned()  # of position 0 the second token, of position 1 both
        >>> columns.numpy()[0, :3].tolist(), tree.positions.numpy().tolist()
        ([1, 2, 3], [0, 1, 1, 0, 0, 0])
        """
        # In float32, in which LiteRT compares and adds up fastest: these numbers are exact in it.
        positions = ops.cast(self.positions, "float32")
        across, down = ops.expand_dims(positions, 0), ops.expand_dims(positions, 1)
        column = ops.arange(self.ancestors.shape[2], dtype="float32")
        new = ops.expand_dims(column, 1)
        written = _less(column, ops.cast(self.filled, "float32"))
        needed = ops.max(self.ancestors, axis=1) * written  # (B, S)

        # A column's place among those of its position, and among those of them that a row needs.
        beside = _equal(down, across)  # (S, S)
        to_the_left = beside * _less(new, column)
        place, needed_place = ops.sum(to_the_left, axis=0), ops.matmul(needed, to_the_left)
        # Each position keeps as many as the row that needs most; where they begin.
        kept = written * _less(place, ops.max(ops.matmul(needed, beside), axis=0))
        first = ops.sum(ops.expand_dims(kept, 1) * _less(down, across), axis=0)

        # Of each new column the old one, where there is one.
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
    """1 where the whole number x is less than y, 0 elsewhere."""
    return ops.clip(y - x, 0.0, 1.0)


def _equal(x: Tensor, y: Tensor) -> Tensor:
    """1 where the whole numbers x and y are equal, 0 elsewhere."""
    return 1.0 - ops.minimum(ops.abs(x - y), 1.0)
