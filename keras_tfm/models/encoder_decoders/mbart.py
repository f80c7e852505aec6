"""mBART: "Multilingual Denoising Pre-training" (arXiv:2001.08210), and mBART-50."""

from keras_tfm.layers.types import Arguments
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoderArguments
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import with_arguments

# Section 2.2 of the paper; released for 25 languages (250,027 ids) and for 50 (250,054 ids,
# arXiv:2008.00401). mbart(250027, **SIZES["large"]).
SIZES: dict[str, Arguments] = {
    "large": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
@with_arguments(EncoderDecoderArguments, scale_embedding=True, start_id=None, name="mbart")
def mbart(arguments: EncoderDecoderArguments) -> Model:
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
    return arguments.build(normalize_first=True, learned_positions=True, embedding_norm=True)
