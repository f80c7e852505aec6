"""M2M-100: "Beyond English-Centric Multilingual Machine Translation" (arXiv:2010.11125); NLLB."""

from keras_tfm.layers.types import Arguments
from keras_tfm.models.encoder_decoders.encoder_decoder import EncoderDecoderArguments
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import with_arguments

# "418m", "1.2b": the configurations released in github.com/facebookresearch/fairseq,
# examples/m2m_100, of 100 languages: m2m_100(128112, **SIZES["418m"]). "nllb...": those of "No
# Language Left Behind" (arXiv:2207.04672), table 31 and section 8.6, of 200 languages:
# m2m_100(256206, **SIZES["nllb-600m"]).
SIZES: dict[str, Arguments] = {
    "418m": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
    "1.2b": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 8192},
    "nllb-600m": {"dim": 1024, "num_layers": 12, "num_heads": 16, "intermediate_dim": 4096},
    "nllb-1.3b": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 8192},
    "nllb-3.3b": {"dim": 2048, "num_layers": 24, "num_heads": 16, "intermediate_dim": 8192},
}


@builder
@with_arguments(
    EncoderDecoderArguments, activation="relu", scale_embedding=True, attention_dropout=0.1,
    output_bias=False, forced_last_id=None, name="m2m_100",
)  # fmt: skip
def m2m_100(arguments: EncoderDecoderArguments) -> Model:
    """M2M-100 and NLLB, translation models of 100 and 200 languages, from token ids to logits.

    Pre-norm blocks and one more normalisation after each stack, as in `mbart`; but sinusoidal
    positions, sines first, whose longest wavelength is exactly 10000 * 2 pi, and whose first token
    has position `pad_id` + 1. Padding of the source must be on the right. A source starts with its
    language and ends with the end token (in older files of NLLB, it ends with both); a target
    starts with `start_id` and its language, which `generate` takes as a prompt.

    Args:
        output_bias: bool, whether a bias is added to the logits. The original model has none.
        forced_first_id: int, the language of generated texts. Default: none, to be given to
            `generate`.

    `start_id`, `end_id` and the forced tokens do not change the model. They are kept in
    `model.arguments`, loaded and saved with a checkpoint.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, `dim` is odd, or the heads do not divide it.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import m2m_100
    >>> model = m2m_100(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> english, german = 9, 10
    >>> inputs = {"source": [[english, 4, 5, 2]], "target": [[2, german]]}
    >>> generate(model, inputs, max_length=5, end_id=2).tokens.shape
    (1, 5)
    """
    dim = arguments.dim
    if dim < 4 or dim % 2:
        raise ValueError(f"dim must be even and at least 4, as sines and cosines are, got {dim}")
    # w^(-2i/D) = 10000^(-i/(D/2 - 1)): the last pair has the wavelength 10000 * 2 pi.
    sinusoids = {"max_wavelength": 10000.0 ** (dim / (dim - 2)), "offset": arguments.pad_id + 1}
    return arguments.build(normalize_first=True, sinusoids=sinusoids)
