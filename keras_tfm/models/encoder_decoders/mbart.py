"""mBART: "Multilingual Denoising Pre-training" (arXiv:2001.08210), and mBART-50."""

from collections.abc import Sequence

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Section 2.2 of the paper; released for 25 languages (250,027 ids) and for 50 (250,054 ids,
# arXiv:2008.00401). mbart(250027, **SIZES["large"]).
SIZES: dict[str, Arguments] = {
    "large": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
def mbart(
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
    scale_embedding: bool = True,
    max_length: int = 1024,
    output_bias: bool = True,
    pad_id: int = 1,
    start_id: int | None = None,
    end_id: int | Sequence[int] = 2,
    forced_first_id: int | None = None,
    forced_last_id: int | Sequence[int] | None = 2,
    name: str = "mbart",
    dtype: DType = None,
) -> Model:
    """mBART, a pre-norm BART for many languages, from token ids to logits.

    It differs from `bart` in its pre-norm blocks, in one more normalisation after each stack, and
    in its language tokens. A source of mBART ends with the end token and its language, and a target
    starts with its language. In mBART-50, a source starts with its language, and a target with
    `start_id` and its language.

    Args:
        start_id: int, the token with which a target starts; the language for a model of one target
            language. Default: none, to be given to `generate`.

    `start_id`, `end_id` and the forced tokens do not change the model. They are kept in
    `model.arguments`, loaded and saved with a checkpoint. Classifiers on the model read `start_id`
    and `end_id`.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, or the heads do not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import mbart
    >>> model = mbart(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> language = 10
    >>> generate(model, [[4, 5, 2, 9]], max_length=5, start_id=language, end_id=2).tokens.shape
    (1, 5)
    """
    parts = EncoderDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_decoder_layers=num_decoder_layers,
        num_decoder_heads=num_decoder_heads, decoder_intermediate_dim=decoder_intermediate_dim,
        dropout=dropout, attention_dropout=attention_dropout, activation_dropout=activation_dropout,
        activation=activation, scale_embedding=scale_embedding, max_length=max_length,
        output_bias=output_bias, pad_id=pad_id, start_id=start_id, normalize_first=True,
        learned_positions=True, embedding_norm=True, dtype=dtype,
    )  # fmt: skip
    return parts.build(name)
