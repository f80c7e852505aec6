"""Evoformer: "Highly accurate protein structure prediction with AlphaFold" (Jumper et al. 2021)."""

from contextlib import nullcontext

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import (
    Dropout,
    LayerNormalization,
    MSABlock,
    PairBlock,
    PairEmbedding,
    TokenEmbedding,
)
from keras_tfm.layers.gallery.gated_attention import normal
from keras_tfm.layers.types import Arguments, DType, Tensor
from keras_tfm.models.gallery.evoformer_parts import RecycledTarget, TargetFeatures, TargetSequence
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Supplement 1.2.7, 1.5, 1.6, 1.7.2 and 1.10. Use: evoformer(**SIZES["alphafold2"]).
SIZES: dict[str, Arguments] = {
    "alphafold2": {
        "dim": 256, "pair_dim": 128, "num_layers": 48, "num_heads": 8, "num_pair_heads": 4,
        "outer_dim": 32, "single_dim": 384, "feature_dim": 26, "num_extra_layers": 4,
        "extra_dim": 64, "extra_feature_dim": 2, "num_recycles": 3, "residue_index": True,
    },
}  # fmt: skip


@builder
def evoformer(
    vocabulary_size: int = 24,
    dim: int = 256,
    pair_dim: int = 128,
    num_layers: int = 48,
    num_heads: int = 8,
    num_pair_heads: int = 4,
    outer_dim: int = 32,
    hidden_dim: int | None = None,
    transition_factor: int = 4,
    dropout: float = 0.15,
    pair_dropout: float = 0.25,
    single_dim: int = 384,
    max_distance: int = 32,
    num_recycles: int = 0,
    num_extra_layers: int = 0,
    extra_dim: int = 64,
    num_extra_heads: int = 8,
    feature_dim: int = 0,
    extra_feature_dim: int = 0,
    residue_index: bool = False,
    num_sequences: int | None = None,
    num_residues: int | None = None,
    num_extra_sequences: int | None = None,
    rematerialize: bool = False,
    layer_norm_epsilon: float = 1e-5,
    name: str = "evoformer",
    dtype: DType = None,
) -> Model:
    """Evoformer, the trunk of AlphaFold 2: alignments of proteins to features of residues.

    Each block updates the alignment from itself and from pairs of residues (`MSABlock`), and then
    the pairs from the alignment and from triangles of residues (`PairBlock`). The first sequence is
    the target; the order of the others does not matter. `text.encode_alignment` makes the token
    ids; id 0 is padding, of short sequences and of whole rows.

    With `num_recycles`, the trunk runs again on its own results, with the same weights and no
    gradient through the earlier runs (algorithms 30 and 31). In training, the number of runs is
    drawn for each example from 1 to `num_recycles` + 1. There is no structure module, so no
    distances are recycled; templates are left out.

    Add a head with `masked_msa` (pretraining) or `pair_classifier` (contacts, distogram). Heads of
    texts, such as `token_classifier`, take the target's features.

    Args:
        dim: int, width of the alignment's features (D).
        pair_dim: int, width of the pairs' features (E).
        num_heads: int, number of heads of row and column attention. Must divide `dim`.
        num_pair_heads: int, number of heads of triangle attention. Must divide `pair_dim`.
        outer_dim: int, width of the factors of the outer product mean.
        hidden_dim: int, width of the triangle multiplications. Default: `pair_dim`.
        transition_factor: int, inner width of the transitions, as a multiple of D and E.
        dropout: float, dropout rate of row attention; a mask is shared by all rows.
        pair_dropout: float, dropout rate of the triangle layers, shared by rows or columns.
        single_dim: int, width of the target's features (C).
        max_distance: int, distance along the chain from which on all are alike.
        num_recycles: int, number of additional runs of the trunk.
        num_extra_layers: int, number of blocks of the stack of extra sequences, which has global
            column attention and updates the pairs only. With 0, there are no extra sequences.
        extra_dim: int, width of that stack.
        num_extra_heads: int, number of its heads. Must divide `extra_dim`.
        feature_dim: int, number of numbers that come with each token, such as deletions and a
            cluster's profile (F). With 0, there is no such input.
        extra_feature_dim: int, likewise of the extra sequences.
        residue_index: bool, whether the model has the input `residue_index`.
        num_sequences: int, number of sequences (S). None: any number.
        num_residues: int, number of residues (N). None: any number. If it is given, large layers
            are computed in blocks, and memory grows more slowly with N.
        num_extra_sequences: int, number of extra sequences (R). None: any number.
        rematerialize: bool, whether the backward pass recomputes each half of a block, of which
            only the result is kept (`keras.RematScope`). A model that is loaded keeps everything.

    Returns:
        A functional model from a dict of `tokens` (B, S, N), int32, and, where the arguments ask
        for them, `alignment_features` (B, S, N, F), `residue_index` (B, N), int32, `extra_tokens`
        (B, R, N), int32, and `extra_features` (B, R, N, G). The outputs are a dict of "alignment"
        (B, S, N, D), "pairs" (B, N, N, E) and "features" (B, N, C) of the target.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a number of heads that does not divide its width.

    Example:

    >>> from keras_tfm.models import evoformer
    >>> model = evoformer(dim=8, pair_dim=6, num_layers=2, num_heads=2, num_pair_heads=3,
    ...                   single_dim=5, num_sequences=4, num_residues=7)
    >>> [model.output[x].shape for x in ("alignment", "pairs", "features")]
    [(None, 4, 7, 8), (None, 7, 7, 6), (None, 7, 5)]
    """
    for argument, value, minimum in (
        ("dim", dim, 1), ("pair_dim", pair_dim, 1), ("num_layers", num_layers, 1),
        ("single_dim", single_dim, 1), ("extra_dim", extra_dim, 1),
        ("num_recycles", num_recycles, 0), ("num_extra_layers", num_extra_layers, 0),
        ("feature_dim", feature_dim, 0), ("extra_feature_dim", extra_feature_dim, 0),
    ):  # fmt: skip
        check_integer(argument, value, minimum)
    for argument, length in (
        ("num_sequences", num_sequences), ("num_residues", num_residues),
        ("num_extra_sequences", num_extra_sequences),
    ):  # fmt: skip
        check_integer(argument, length, optional=True)
    _check_heads("num_heads", num_heads, "dim", dim)
    _check_heads("num_pair_heads", num_pair_heads, "pair_dim", pair_dim)
    _check_heads("num_extra_heads", num_extra_heads, "extra_dim", extra_dim)
    if extra_feature_dim and not num_extra_layers:
        raise ValueError("extra_feature_dim needs num_extra_layers of at least 1, got 0")

    rows, extra_rows = (num_sequences, num_residues), (num_extra_sequences, num_residues)
    inputs = {"tokens": keras.Input(rows, dtype="int32", name="tokens")}
    if feature_dim:
        inputs["alignment_features"] = keras.Input((*rows, feature_dim), name="alignment_features")
    if residue_index:
        inputs["residue_index"] = keras.Input((num_residues,), dtype="int32", name="residue_index")
    if num_extra_layers:
        inputs["extra_tokens"] = keras.Input(extra_rows, dtype="int32", name="extra_tokens")
    if extra_feature_dim:
        shape = (*extra_rows, extra_feature_dim)
        inputs["extra_features"] = keras.Input(shape, name="extra_features")

    def table(name: str, width: int) -> TokenEmbedding:
        return TokenEmbedding(
            vocabulary_size, width, embeddings_initializer=normal(), dtype=dtype, name=name
        )

    def embed(name: str, width: int, tokens: Tensor, features: Tensor | None) -> Tensor:
        """Tokens and the numbers that come with them: (B, S, N) -> (B, S, N, D)."""
        x = table(name, width)(tokens)
        if features is None:
            return x
        dense = keras.layers.Dense(
            width, kernel_initializer=normal(), dtype=dtype, name=f"{name}_features"
        )
        return x + dense(features)

    def block(i: int, extra: bool = False) -> tuple[MSABlock, PairBlock]:
        """Both halves of one block."""
        kind = "extra" if extra else "block"
        shared: Arguments = {
            "transition_factor": transition_factor,
            "epsilon": layer_norm_epsilon,
            "dtype": dtype,
        }
        return (
            MSABlock(
                num_extra_heads if extra else num_heads,
                global_attention=extra,
                dropout=dropout,
                name=f"{kind}_{i}_alignment",
                **shared,
            ),
            PairBlock(
                num_pair_heads,
                outer_dim=outer_dim,
                hidden_dim=hidden_dim,
                dropout=pair_dropout,
                name=f"{kind}_{i}_pairs",
                **shared,
            ),
        )

    tokens = inputs["tokens"]
    first = TargetSequence(name="target_sequence")
    target = first(tokens)
    mask = ops.not_equal(tokens, 0)
    embedded = embed("embedding", dim, tokens, inputs.get("alignment_features"))
    of_target = table("target_embedding", dim)(target)
    embedded = embedded + ops.expand_dims(of_target, 1)
    pair_embedding = PairEmbedding(
        vocabulary_size, pair_dim, max_distance, dtype=dtype, name="pair_embedding"
    )
    index = (inputs["residue_index"],) if residue_index else ()
    embedded_pairs = pair_embedding(target, *index)
    extra, extra_mask = None, None
    if num_extra_layers:
        extra_mask = ops.not_equal(inputs["extra_tokens"], 0)
        features = inputs.get("extra_features")
        extra = embed("extra_embedding", extra_dim, inputs["extra_tokens"], features)
    with keras.RematScope("full") if rematerialize else nullcontext():
        extra_blocks = [block(i, extra=True) for i in range(num_extra_layers)]
        blocks = [block(i) for i in range(num_layers)]
    recycled = RecycledTarget(layer_norm_epsilon, dtype=dtype, name="recycled_alignment")
    recycled_norm = LayerNormalization(
        epsilon=layer_norm_epsilon, dtype=dtype, name="recycled_pairs_norm"
    )
    x, z = embedded, embedded_pairs
    for run in range(num_recycles + 1):
        if num_recycles:
            # Before the first run there is nothing: zeros, of which the normalisation leaves beta.
            row, pairs = (of_target * 0, embedded_pairs * 0) if run == 0 else (first(x), z)
            if run:
                kept = _restart(tokens, run, dtype)
                row = ops.stop_gradient(row) * kept
                pairs = ops.stop_gradient(pairs) * ops.expand_dims(kept, -1)
            x = recycled(embedded, row)
            z = embedded_pairs + recycled_norm(pairs)
        y = extra
        for of_rows, of_pairs in extra_blocks:
            y = of_rows(y, z, mask=extra_mask)
            z = of_pairs(z, y, mask=extra_mask)
        for of_rows, of_pairs in blocks:
            x = of_rows(x, z, mask=mask)
            z = of_pairs(z, x, mask=mask)
    names = [layer.name for pair in blocks for layer in pair]
    identity: Arguments = {"embedding": "embedding", "blocks": names, "dtype": dtype}
    x = Marker("alignment", **identity)(x)
    z = Marker("pairs", **identity)(z)
    single = TargetFeatures(single_dim, dtype=dtype, name="target_features")(tokens, x)
    single = Marker("features", **identity)(single)
    return Model(inputs, {"alignment": x, "pairs": z, "features": single}, name=name)


def _check_heads(argument: str, num_heads: int, width: str, dim: int) -> None:
    check_integer(argument, num_heads)
    if dim % num_heads:
        raise ValueError(f"{argument} ({num_heads}) must divide {width} ({dim})")


def _restart(tokens: Tensor, run: int, dtype: DType) -> Tensor:
    """In training, 0 with probability 1 / (run + 1), for each example: (B, 1, 1).

    The number of runs since the last 0 is then uniform. The scale of what dropout keeps does not
    matter: a normalisation follows.
    """
    ones = ops.cast(ops.ones_like(ops.max(tokens, axis=(1, 2), keepdims=True)), "float32")
    return Dropout(1 / (run + 1), dtype=dtype, name=f"restart_{run}")(ones)
