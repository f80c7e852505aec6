"""PEGASUS: "Pre-training with Extracted Gap-sentences" (arXiv:1912.08777)."""

from collections.abc import Sequence

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Section 6 of the paper. Only "large" was released. pegasus(96103, **SIZES["large"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 16, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
def pegasus(
    vocabulary_size: int,
    dim: int = 1024,
    num_layers: int = 16,
    num_heads: int = 16,
    intermediate_dim: int = 4096,
    num_decoder_layers: int | None = None,
    num_decoder_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    activation: Activation = "relu",
    scale_embedding: bool = True,
    max_length: int = 1024,
    output_bias: bool = True,
    pad_id: int = 0,
    start_id: int | None = 0,
    end_id: int | Sequence[int] = 1,
    forced_first_id: int | None = None,
    forced_last_id: int | Sequence[int] | None = 1,
    name: str = "pegasus",
    dtype: DType = None,
) -> Model:
    """PEGASUS, a pre-norm encoder-decoder for summaries, from token ids to logits.

    Sinusoidal positions, sines first, and one more normalisation after each stack. The output
    shares the table of the embedding and has a constant bias. In the source, `pad_id` is padding.
    In the target it is also the start token, so the target has no padding mask: its padding comes
    after the text, where causal attention does not see it.

    `start_id`, `end_id` and the forced tokens do not change the model. They are kept in
    `model.arguments`, loaded and saved with a checkpoint.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, or the heads do not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import pegasus
    >>> model = pegasus(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[4, 5, 1]], max_length=5, start_id=0, end_id=1).tokens.shape
    (1, 5)
    """
    parts = EncoderDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_decoder_layers=num_decoder_layers,
        num_decoder_heads=num_decoder_heads, decoder_intermediate_dim=decoder_intermediate_dim,
        dropout=dropout, attention_dropout=attention_dropout, activation_dropout=activation_dropout,
        activation=activation, scale_embedding=scale_embedding, max_length=max_length,
        output_bias=output_bias, pad_id=pad_id, start_id=start_id, normalize_first=True,
        dtype=dtype,
    )  # fmt: skip
    return parts.build(name)
