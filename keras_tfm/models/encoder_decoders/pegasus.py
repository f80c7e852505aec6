"""PEGASUS: "Pre-training with Extracted Gap-sentences" (arXiv:1912.08777)."""

from keras_tfm.layers.types import Arguments
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoderArguments
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import with_arguments

# Section 6 of the paper. Only "large" was released. pegasus(96103, **SIZES["large"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 16, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
@with_arguments(
    EncoderDecoderArguments, num_layers=16, activation="relu", scale_embedding=True, pad_id=0,
    start_id=0, end_id=1, forced_last_id=1, name="pegasus",
)  # fmt: skip
def pegasus(arguments: EncoderDecoderArguments) -> Model:
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
    return arguments.build(normalize_first=True)
