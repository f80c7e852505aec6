"""What the arguments mean that builders share: the docstrings of builders say only the others.

`builder` completes a docstring, so `help(models.llama)` and the reference list every argument.

Example:

>>> from keras_tfm.models.argument_texts import with_shared_arguments
>>> print(with_shared_arguments("A model.\\n\\nReturns:\\n    It.\\n", ["dim", "name"]))
A model.
<BLANKLINE>
Args:
    dim: int, width of the model (D).
    name: str, the model's name.
<BLANKLINE>
Returns:
    It.
"""

import inspect
import re
import textwrap
from collections.abc import Sequence

# Of most models.
TEXTS = {
    "activation": "str or function, activation of the feed-forward networks.",
    "activation_dropout": "float, dropout rate inside the feed-forward networks.",
    "attention_bias": (
        "bool, whether the attention's projections add a bias, or a list of those that do: "
        'any of "query", "key", "value" and "output".'
    ),
    "attention_dropout": "float, dropout rate of the attention weights. Default: `dropout`.",
    "causal": (
        "bool, whether a token sees only itself and earlier tokens. False: later ones too, for "
        "embeddings and classifiers; such a model needs a `pad_id` and cannot generate."
    ),
    "code_dim": "int, width of the codes' vectors.",
    "dim": "int, width of the model (D).",
    "dropout": "float, dropout rate after each sublayer and after the embeddings.",
    "dtype": "dtype or dtype policy of every layer. Default: the global policy.",
    "embedding_dim": (
        "int, width of the embeddings, which a dense layer projects to `dim` if it is "
        "another. Default: `dim`."
    ),
    "embedding_dropout": "float, dropout rate of the embeddings' sum. Default: `dropout`.",
    "experts": (
        "`Experts`, mixtures of experts in place of the feed-forward networks. "
        "Default: there are none."
    ),
    "feed_forward_bias": "bool, whether the feed-forward networks' layers add a bias.",
    "head_dim": "int, width of a head. Default: D / H.",
    "image_mean, image_std": (
        "list of float, mean and standard deviation of each channel, for values from 0 to 1. "
        "Their length is the number of channels (C)."
    ),
    "image_size": "int or (height, width) of the images, in pixels. None: images of any size.",
    "intermediate_dim": "int, inner width of the feed-forward networks (F).",
    "layer_norm_epsilon": "float, epsilon of every normalisation.",
    "max_length": "int, number of positions in training. Stored, not enforced.",
    "name": "str, the model's name.",
    "normalize_first": "bool, pre-norm blocks (True) or post-norm blocks (False).",
    "num_heads": "int, number of attention heads (H). Must divide `dim`.",
    "num_key_value_heads": "int, number of key and value heads. Must divide H. Default: H.",
    "num_layers": "int, number of blocks.",
    "num_segments": "int, number of segments (token types).",
    "pad_id": (
        "int, id of padding tokens, which attention and pooling skip; -1 if it is no id of "
        "the vocabulary. Default: no padding."
    ),
    "patch_size": "int or (height, width) of a patch, in pixels.",
    "pooler": 'bool, whether the model has the output "pooled".',
    "pooler_activation": (
        "str or function, activation of the dense layer that `sequence_classifier` puts on "
        "the first token."
    ),
    "projection_dim": "int, width of the embedding (E). None: no projection.",
    "region_dim": "int, width of the features of a region (C).",
    "region_mask": "bool, whether the model has the input `region_mask`.",
    "rms_norm_epsilon": "float, epsilon of every normalisation.",
    "rope_scaling": (
        "`layers.LinearScaling`, `Llama3Scaling` or `YaRNScaling`. Default: no scaling."
    ),
    "rope_theta": "float, longest wavelength of the rotary positions divided by 2 pi.",
    "scale_scores": "bool, whether attention scores are divided by sqrt(K).",
    "scale_scores_by_layer": "bool, whether scores of block i (from 0) are also divided by i + 1.",
    "segments": "bool, whether the model has the input `segments`.",
    "tie_output": "bool, whether the output layer shares the table of the token embedding.",
    "vocabulary_size": "int, number of token ids (V).",
    "windows": (
        "int, attend only to positions less than that far away; or a list with an int or None "
        "for each block. Default: no windows."
    ),
}
# Of models with rotary positions and gated networks.
_ROTARY = {
    "activation": "str or function, activation of the feed-forward networks' gate.",
    "attention_dropout": "float, dropout rate of the attention weights.",
    "num_heads": "int, number of attention heads (H).",
}
# Of BERT and its successors.
_ENCODERS = {
    "max_length": "int, maximum number of tokens.",
    "pad_id": "int, id of padding tokens.",
}
# Of models with the state spaces of Mamba-2.
_STATE_SPACES = {
    "activation": (
        "str or function, activation of the feed-forward networks and the convolutions."
    ),
    "convolution_bias": "bool, whether its convolution adds a bias.",
    "kernel_size": "int, number of tokens that its convolution reads.",
    "mamba_heads, mamba_head_dim": "int, number of heads of a state space, and their width.",
    "num_groups": "int, number of groups of its heads that share keys and queries.",
    "state_dim": "int, width of the keys and queries of a state space.",
    "time_step_limit": (
        "tuple of two floats, the least and the largest time step of a state space. Default: no "
        "limits."
    ),
}
# Of models with an encoder and a decoder.
_TWO_STACKS = {
    "attention_dropout": "float, dropout rate of the attention weights.",
    "decoder_intermediate_dim": (
        "int, inner width of the decoder's feed-forward networks. Default: `intermediate_dim`."
    ),
    "end_id": "int or list of int, the token at which a text ends.",
    "forced_first_id": "int, the first token after `start_id` in generated texts. Default: none.",
    "forced_last_id": (
        "int or list of int, the last token of generated texts of the maximum length. None: "
        "any token."
    ),
    "intermediate_dim": "int, inner width of the encoder's feed-forward networks (F).",
    "max_length": "int, maximum number of tokens of source and target.",
    "num_decoder_heads": "int, attention heads of the decoder. Default: `num_heads`.",
    "num_decoder_layers": "int, number of decoder blocks. Default: `num_layers`.",
    "num_heads": "int, number of attention heads of the encoder (H). Must divide `dim`.",
    "num_layers": "int, number of encoder blocks.",
    "output_bias": "bool, whether logits have a bias. It is not trained.",
    "pad_id": "int, id of padding tokens.",
    "scale_embedding": "bool, whether embedded tokens are multiplied by sqrt(D).",
    "start_id": "int, the token with which a target starts.",
}
_T5GEMMA = {
    **_TWO_STACKS,
    "activation": "str or function, activation of the feed-forward networks' gate.",
    "decoder_dim, decoder_num_layers, decoder_num_heads": (
        "int, sizes of the decoder. Default: those of the encoder."
    ),
    "decoder_intermediate_dim, decoder_num_key_value_heads": "int, likewise.",
    "dropout": (
        "float, dropout rate of embeddings, of the output of sublayers and stacks, and inside the "
        "feed-forward networks."
    ),
    "end_id": "int or sequence of int, the tokens at which a text ends.",
    "final_logit_soft_cap": "float, c in c tanh(logit / c). Default: no cap.",
    "head_dim": "int, width of a head (K).",
    "intermediate_dim": "int, inner width of the feed-forward networks (F).",
    "max_length": TEXTS["max_length"],
    "num_heads": "int, number of attention heads of the encoder (H).",
    "num_layers": "int, number of blocks of the encoder.",
    "query_pre_attention_scalar": ("float, scores are divided by its square root. Default: K."),
}
# The argument that a kind of builder has, and the texts that differ there.
_KINDS = {
    "rope_theta": _ROTARY,
    "pooler": _ENCODERS,
    "pooler_activation": _ENCODERS,
    "mamba_heads": _STATE_SPACES,
    "num_decoder_layers": _TWO_STACKS,
    "decoder_num_layers": _T5GEMMA,
}
# The errors of a builder whose docstring does not say others.
_RAISES = "Raises:\n    TypeError, ValueError: an argument of the wrong type or out of range.\n"
# From the second column of a docstring, whose lines end at column 100.
_WIDTH = 96
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): .*(?:\n {8}.*)*", re.M)


def with_shared_arguments(docstring: str, names: Sequence[str]) -> str:
    """A docstring in which `Args:` lists all arguments in order, with `Raises:`.

    Args:
        docstring: str, the docstring, in which some arguments may be described.
        names: the names of all arguments.

    Raises:
        ValueError: an argument is described neither there nor here.
    """
    text = inspect.cleandoc(docstring) + "\n"
    section = re.search(r"^Args:\n((?: .*\n)+)", text, re.M)
    own: dict[str, str] = {}
    for entry in _ENTRY.finditer(section[1] if section else ""):
        own |= dict.fromkeys(entry[1].split(", "), entry[0])
    shared: dict[str, str] = {}
    for texts in (TEXTS, *(x for name, x in _KINDS.items() if name in names)):
        for together, meaning in texts.items():
            known = [x for x in together.split(", ") if x in names]
            shared |= dict.fromkeys(known, _entry(", ".join(known), meaning))
    missing = [x for x in names if x not in own and x not in shared]
    if missing:
        raise ValueError(f"expected a description of the arguments {missing} in {text[:50]!r}...")
    entries = dict.fromkeys(own.get(x) or shared[x] for x in names)
    completed = "Args:\n" + "\n".join(entries) + "\n"
    if "\nRaises:\n" not in text:
        text = text.replace("\nExample:\n", f"\n{_RAISES}\nExample:\n")
    if section:
        return text.replace(section[0], completed).rstrip("\n")
    begin = re.search(r"^(?:Returns|Raises|Example):", text, re.M)
    if begin is None:
        return f"{text}\n{completed}".rstrip("\n")
    return f"{text[: begin.start()]}{completed}\n{text[begin.start() :]}".rstrip("\n")


def _entry(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name}: {text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
