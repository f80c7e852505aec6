"""wav2vec 2.0 and HuBERT checkpoints: tensor names, configuration, heads and labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoder_decoders.moonshine import save_preprocessor
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import EXTRACTORS, read_settings
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.transforms import ConvolutionKernel, Shape, Transform
from keras_tfm.models.encoders.wav2vec2 import SAMPLE_RATE

_VOCABULARY, _TOKENIZER = "vocab.json", "tokenizer_config.json"
_DIMS, _KERNELS, _STRIDES = (512,) * 7, (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)


@dataclass(frozen=True)
class WeightNormalized(Transform):
    """A convolution's kernel of a length and a direction for each position, g v / |v|.

    "Weight Normalization" (arXiv:1602.07868), with `dim=2` in torch.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.encoders.wav2vec2 import WeightNormalized
    >>> lengths, directions = np.array([[[10.0]]]), np.array([[[3.0]], [[4.0]]])
    >>> WeightNormalized().load([lengths, directions]).tolist()
    [[[6.0, 8.0]]]
    """

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of lengths and directions for a kernel of `shape`."""
        return ((1, 1, shape[0]), *ConvolutionKernel().shapes(shape))

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Multiplies the directions by the lengths."""
        lengths, directions = (x.astype(np.result_type(x.dtype, "float32")) for x in arrays)
        factors = lengths / _lengths(directions)
        return ConvolutionKernel().load([directions * factors])

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """The lengths, and the kernel itself as directions."""
        (directions,) = ConvolutionKernel().save(value)
        lengths = _lengths(directions)
        # A direction of length 0 would be divided by 0.
        return lengths, np.where(lengths == 0, np.ones_like(directions), directions)


def _lengths(directions: np.ndarray) -> np.ndarray:
    """(out, in, K) -> (1, 1, K)."""
    # In one order, so that a kernel is divided by just the lengths that were saved.
    squares = np.square(np.ascontiguousarray(directions))
    return np.sqrt(np.sum(squares, axis=(0, 1), keepdims=True))


_LAYER = "encoder.layers.{i}"
_CONVOLUTION = "feature_extractor.conv_layers.{i}"
_POSITIONS = "encoder.pos_conv_embed.conv"
_WEIGHT_NORM = f"{_POSITIONS}.parametrizations.weight.original"
TABLE = (
    *convolution("features/convolution_{i}", f"{_CONVOLUTION}.conv"),
    *norm("features/norm_{i}", f"{_CONVOLUTION}.layer_norm"),
    *norm("features", "feature_extractor.conv_layers.0.layer_norm"),
    *norm("feature_norm", "feature_projection.layer_norm"),
    *dense("feature_projection", "feature_projection.projection"),
    Row("positions/kernel", (f"{_WEIGHT_NORM}0", f"{_WEIGHT_NORM}1"), WeightNormalized()),
    Row("positions/bias", (f"{_POSITIONS}.bias",)),
    *norm("encoder_norm", "encoder.layer_norm"),
    *dense(
        "encoder_{i}/self_attention/query_key_value",
        *(f"{_LAYER}.attention.{x}_proj" for x in "qkv"),
    ),
    *dense("encoder_{i}/self_attention/output_projection", f"{_LAYER}.attention.out_proj"),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_LAYER}.layer_norm"),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.feed_forward.intermediate_dense"),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.feed_forward.output_dense"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.final_layer_norm"),
    *dense("ctc", "lm_head", head=True),
    *dense("projector", "projector", head=True),
    *dense("classifier", "classifier", head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        add_adapter=False, use_weighted_layer_sum=False, feat_proj_layer_norm=True,
        conv_pos_batch_norm=False,
    )  # fmt: skip
    if config.fields.get("adapter_attn_dim") is not None:
        expected = "null: adapters for languages, as in MMS, are not supported"
        config.refuse("adapter_attn_dim", config.fields["adapter_attn_dim"], expected)
    dims = config.integers("conv_dim", _DIMS)
    kernels = config.integers("conv_kernel", _KERNELS)
    strides = config.integers("conv_stride", _STRIDES)
    for name, sizes in (("conv_kernel", kernels), ("conv_stride", strides)):
        if len(sizes) != len(dims):
            config.refuse(name, list(sizes), f"as many as conv_dim, {len(dims)}")
    feature_norm = config.text("feat_extract_norm", "group")
    if feature_norm not in ("group", "layer"):
        config.refuse("feat_extract_norm", feature_norm, "'group' or 'layer'")
    dim, groups = (
        config.integer("hidden_size", 768),
        config.integer("num_conv_pos_embedding_groups", 16),
    )
    if dim % groups:
        expected = f"a divisor of hidden_size ({dim})"
        config.refuse("num_conv_pos_embedding_groups", groups, expected)
    return {
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "dropout": config.number("hidden_dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", 0.1, 1),
        "activation_dropout": config.number("activation_dropout", 0.1, 1),
        "feature_dropout": config.number("feat_proj_dropout", 0.0, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        "normalize_first": config.flag("do_stable_layer_norm", False),
        "feature_dims": dims,
        "feature_kernels": kernels,
        "feature_strides": strides,
        "feature_norm": feature_norm,
        "feature_bias": config.flag("conv_bias", False),
        "feature_activation": config.activation("feat_extract_activation", "gelu"),
        "position_kernel": config.integer("num_conv_pos_embeddings", 128),
        "position_groups": groups,
        "normalize_audio": _normalizes_audio(config),
        "classifier_dim": config.integer("classifier_proj_size", 256),
        "hubert": config.text("model_type", None) == "hubert",
    }


def _normalizes_audio(config: Config) -> bool:
    """Whether the folder's feature extractor normalises the samples; it must do nothing else."""
    file, fields = read_settings(config.file.parent, *EXTRACTORS)
    extractor = Config.of(file, fields)
    extractor.only(
        feature_size=1, sampling_rate=SAMPLE_RATE, padding_value=0.0, padding_side="right"
    )
    return extractor.flag("do_normalize", True)


def _preprocessor(model: models.Model) -> Fields:
    given = model.arguments
    return {
        **save_preprocessor(model),
        "do_normalize": given["normalize_audio"],
        "return_attention_mask": given["feature_norm"] == "layer",
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    dropout = given["dropout"]
    fields = {
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_dropout": dropout,
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "activation_dropout": given["activation_dropout"],
        "feat_proj_dropout": given["feature_dropout"],
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
        "do_stable_layer_norm": given["normalize_first"],
        "conv_dim": list(given["feature_dims"]),
        "conv_kernel": list(given["feature_kernels"]),
        "conv_stride": list(given["feature_strides"]),
        "num_feat_extract_layers": len(given["feature_dims"]),
        "feat_extract_norm": given["feature_norm"],
        "feat_extract_activation": activation_name(given["feature_activation"]),
        "conv_bias": given["feature_bias"],
        "num_conv_pos_embeddings": given["position_kernel"],
        "num_conv_pos_embedding_groups": given["position_groups"],
        "classifier_proj_size": given["classifier_dim"],
        # Without SpecAugment in training there is no vector for masked features.
        "mask_time_prob": 0.0,
        "mask_feature_prob": 0.0,
    }
    if model.head is None:
        return fields
    arguments = model.head.arguments
    if model.head.kind == "ctc_classifier":
        rate = dropout if arguments["dropout"] is None else arguments["dropout"]
        names = arguments["labels"]
        return {
            **fields,
            **({} if names is None or " " in names else label_fields(model)),
            "vocab_size": arguments["num_classes"],
            "pad_token_id": arguments["blank_id"],
            "final_dropout": rate,
        }
    return {**fields, **label_fields(model)}


def read_labels(config: Config, size: int) -> list[str] | None:
    """The labels of a recogniser, from the files of its `Wav2Vec2CTCTokenizer`; None without them.

    The blank, which is the padding token, is "", and the delimiter of words a space. Tokenizers of
    other classes, such as those of phonemes, and those without a delimiter are left out.

    Args:
        config: of the folder.
        size: int, number of classes.

    Raises:
        ValueError: a file is damaged, or has several vocabularies.
    """
    folder = config.file.parent
    if not (folder / _VOCABULARY).is_file():
        return None
    names = (_TOKENIZER, "special_tokens_map.json", "added_tokens.json")
    settings, special, added = (
        read_json(folder / x) if (folder / x).is_file() else {} for x in names
    )
    if settings.get("tokenizer_class") not in (None, "Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer"):
        return None
    vocabulary = read_json(folder / _VOCABULARY)
    if not all(type(i) is int for i in vocabulary.values()):
        raise ValueError(
            f"{folder / _VOCABULARY}: expected a dictionary from tokens to ids, as of one language"
        )
    later = settings.get("added_tokens_decoder") or {}
    added |= {x["content"]: int(i) for i, x in later.items() if i.isdecimal() and "content" in x}
    tokens = {i: token for token, i in {**added, **vocabulary}.items()}

    def special_token(name: str, default: str | None) -> str | None:
        token = settings.get(f"{name}_token", special.get(f"{name}_token", default))
        return token["content"] if isinstance(token, dict) else token

    blank, delimiter = special_token("pad", "<pad>"), special_token("word_delimiter", "|")
    space = settings.get("replace_word_delimiter_char", " ")
    unknown = special_token("unk", "<unk>") or ""
    labels = [tokens.get(i, unknown) for i in range(size)]
    if labels.count(blank) != 1 or delimiter not in labels or space != " ":
        return None
    written = {blank: "", delimiter: " "}
    labels = [written.get(x, x) for x in labels]
    return [x.lower() for x in labels] if settings.get("do_lower_case") else labels


def _save_labels(model: models.Model) -> dict[str, Fields]:
    """The files of a `Wav2Vec2CTCTokenizer`, of a recogniser with labels.

    Without a space there is no such tokenizer with the same text: `config.json` has the labels.
    """
    head = model.head
    labels = head.arguments.get("labels") if head and head.kind == "ctc_classifier" else None
    if labels is None or " " not in labels:
        return {}
    tokens = [{"": "<pad>", " ": "|"}.get(x, x) for x in labels]
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"{model.name}: the labels must differ to be saved, got {labels}")
    settings = {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "pad_token": "<pad>",
        "word_delimiter_token": "|",
        "do_lower_case": False,
    }
    return {_VOCABULARY: {token: i for i, token in enumerate(tokens)}, _TOKENIZER: settings}


def _recogniser(model: models.Model, config: Config) -> models.Model:
    size = config.integer("vocab_size", 32)
    labels, names = read_labels(config, size), config.labels
    if labels is None and names is not None and len(names) == size and names.count("") == 1:
        labels = names
    return models.ctc_classifier(
        model,
        size,
        config.number("final_dropout", 0.1, 1),
        labels=labels,
        blank_id=(
            config.integer("pad_token_id", 0, minimum=0, maximum=size - 1)
            if labels is None
            else labels.index("")
        ),
    )


def _architectures(name: str) -> dict[str, Architecture]:
    """The classes that wav2vec 2.0 and HuBERT both have; `name` is the first part of theirs."""
    return {
        f"{name}ForCTC": Architecture(_recogniser, "ctc_classifier", prefixes=("lm_head.",)),
        f"{name}Model": Architecture(),
        f"{name}ForSequenceClassification": heads.sequence_classifier(
            "mean", "projector.", "classifier."
        ),
    }


WAV2VEC2 = Family(
    model_type="wav2vec2",
    builder=models.wav2vec2,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures={
        **_architectures("Wav2Vec2"),
        "Wav2Vec2ForAudioFrameClassification": heads.token_classifier("classifier."),
    },
    is_of=lambda model: not model.arguments["hubert"],
    names=Names(
        prefix="wav2vec2.",
        # The vector of masked features in training, and parts of the class for pretraining.
        ignored=(r"masked_spec_embed", r"(quantizer|project_q|project_hid)\..*"),
        renamed={
            rf"{_POSITIONS}\.weight_g": f"{_WEIGHT_NORM}0",
            rf"{_POSITIONS}\.weight_v": f"{_WEIGHT_NORM}1",
        },
    ),
    preprocessor=_preprocessor,
    tokenizer=_save_labels,
)
HUBERT = replace(
    WAV2VEC2,
    model_type="hubert",
    architectures=_architectures("Hubert"),
    is_of=lambda model: model.arguments["hubert"],
    names=replace(WAV2VEC2.names, prefix="hubert."),
)
