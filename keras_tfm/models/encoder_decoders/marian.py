"""Marian: the translation models of "OPUS-MT" (Tiedemann and Thottingal, EAMT 2020)."""

from dataclasses import dataclass, replace

from keras_tfm.layers.types import Arguments
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoderArguments
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import with_arguments

# The configurations of the released models "opus-mt-..." and "opus-mt-tc-big-...".
# marian(58101, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 512, "num_layers": 6, "num_heads": 8, "intermediate_dim": 2048},
    "big": {
        "dim": 1024, "num_layers": 6, "num_heads": 16, "intermediate_dim": 4096,
        "activation": "relu", "max_length": 1024,
    },
}  # fmt: skip


@dataclass(frozen=True)
class MarianArguments(EncoderDecoderArguments):
    """The arguments of `marian`."""

    pad_id: int | None = None  # type: ignore[assignment]  # `marian` replaces None
    target_vocabulary_size: int | None = None


@builder
@with_arguments(
    MarianArguments, dim=512, num_layers=6, num_heads=8, intermediate_dim=2048, activation="silu",
    scale_embedding=True, max_length=512, start_id=None, end_id=0, forced_last_id=0, name="marian",
)  # fmt: skip
def marian(arguments: MarianArguments) -> Model:
    """Marian's translation model, from token ids to logits.

    It differs from the original Transformer in its positions, sines first, and in a constant bias
    of the logits. In the source, `pad_id` is padding. In the target it is also the start token, so
    the target has no padding mask: its padding comes after the text, where causal attention does
    not see it.

    Args:
        target_vocabulary_size: int, number of target ids, with a table of their own. Default: one
            vocabulary and one table for source and target.
        pad_id: int, id of padding tokens. Default: the last id.
        start_id: int, the token with which a target starts. Default: `pad_id`.

    `start_id`, `end_id` and the forced tokens do not change the model. They are kept in
    `model.arguments`, loaded and saved with a checkpoint.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, or the heads do not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import marian
    >>> model = marian(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> model.arguments["pad_id"], model.arguments["start_id"]
    (10, 10)
    >>> generate(model, [[4, 5, 0]], max_length=5, start_id=10, end_id=0).tokens.shape
    (1, 5)
    """
    pad_id = arguments.vocabulary_size - 1 if arguments.pad_id is None else arguments.pad_id
    start_id = pad_id if arguments.start_id is None else arguments.start_id
    arguments = replace(arguments, pad_id=pad_id, start_id=start_id)
    return arguments.build(target_vocabulary_size=arguments.target_vocabulary_size)
