"""BART: "Denoising Sequence-to-Sequence Pre-training" (arXiv:1910.13461)."""

from collections.abc import Sequence

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Section 4.1 of the paper, and the released checkpoints. bart(50265, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 6, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
def bart(
    vocabulary_size: int,
    dim: int = 1024,
    num_layers: int = 12,
    num_heads: int = 16,
    intermediate_dim: int = 4096,
    num_decoder_layers: int | None = None,
    num_decoder_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    activation: Activation = "gelu",
    scale_embedding: bool = False,
    max_length: int = 1024,
    output_bias: bool = True,
    pad_id: int = 1,
    start_id: int | None = 2,
    end_id: int | Sequence[int] = 2,
    forced_first_id: int | None = None,
    forced_last_id: int | Sequence[int] | None = 2,
    name: str = "bart",
    dtype: DType = None,
) -> Model:
    """BART, a post-norm encoder-decoder with learned positions, from token ids to logits.

    It differs from the original Transformer in its learned positions, whose table starts with two
    unused rows, and in a normalisation after the embeddings of each stack. The output shares the
    table of the embedding and has a constant bias. In the source, `pad_id` is padding. The target
    has no padding mask: its padding comes after the text, where causal attention does not see it.
    For training, let targets start with `start_id` and ignore class `pad_id` in the loss.

    `start_id`, `end_id` and the forced tokens do not change the model. They are kept in
    `model.arguments`, loaded and saved with a checkpoint. Classifiers on the model read `start_id`
    and `end_id`.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, or the heads do not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import bart
    >>> model = bart(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> generate(model, [[0, 4, 5, 2]], max_length=5, start_id=2, end_id=2).tokens.shape
    (1, 5)
    """
    parts = EncoderDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_decoder_layers=num_decoder_layers,
        num_decoder_heads=num_decoder_heads, decoder_intermediate_dim=decoder_intermediate_dim,
        dropout=dropout, attention_dropout=attention_dropout, activation_dropout=activation_dropout,
        activation=activation, scale_embedding=scale_embedding, max_length=max_length,
        output_bias=output_bias, pad_id=pad_id, start_id=start_id, learned_positions=True,
        embedding_norm=True, dtype=dtype,
    )  # fmt: skip
    return parts.build(name)
