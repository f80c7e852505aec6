"""BART: "Denoising Sequence-to-Sequence Pre-training" (arXiv:1910.13461)."""

from keras_tfm.layers.types import Arguments
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoderArguments
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import with_arguments

# Section 4.1 of the paper, and the released checkpoints. bart(50265, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 6, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
@with_arguments(EncoderDecoderArguments)
def bart(arguments: EncoderDecoderArguments) -> Model:
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
    return arguments.build(learned_positions=True, embedding_norm=True)
