"""What every public layer promises, layer by layer."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from blocks import OPTIONS, decoder_block, encoder_block, head_norms, parts
from compare import assert_close, to_numpy
from execution import execute, saving, tensorflow_only
from keras_weights import randomize

import keras_tfm.layers
from keras_tfm.layers import (
    ALiBi,
    AttentionPooling,
    AttentionPosition,
    BottleneckEncoderBlock,
    CodebookEmbedding,
    ColumnMask,
    ConcatenateNeighbors,
    ConcatenatePrefix,
    ConvolutionMask,
    DisentangledPositionEmbedding,
    Dropout,
    ElementwiseAffine,
    EndTokenPooling,
    FeedForward,
    GatedDeltaNet,
    GridMask,
    GridPositionEmbedding,
    GumbelSoftmax,
    ImageDenormalization,
    ImageNormalization,
    LayerNormalization,
    LogMelSpectrogram,
    Mamba2,
    MixtureOfExperts,
    MSABlock,
    MSAColumnAttention,
    MSAGlobalAttention,
    MSARowAttention,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    NGramEncoding,
    OuterProductMean,
    OutputBias,
    PairBlock,
    PairEmbedding,
    PatchEmbedding,
    PixelShuffle,
    PositionalEncoding,
    PositionalEncoding2D,
    PositionEmbedding,
    PositionEmbedding2D,
    PrefixTokens,
    RandomResizedCrop,
    RegionEmbedding,
    RelativePositionBias,
    RelativePositionEmbedding,
    RelativePositionTable,
    RemovePrefix,
    ReplacePlaceholders,
    Residual,
    RMSNormalization,
    RotaryEmbedding,
    RotaryEmbedding2D,
    Routing,
    RowMask,
    SegmentEmbedding,
    SequencePooling,
    ShortConvolution,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    TriangleAttention,
    TriangleMultiplication,
    YaRNScaling,
)
from keras_tfm.layers.arguments import serialize_part

B, T, S, D, C, F, V = 2, 5, 7, 6, 11, 13, 17
rng = np.random.default_rng(23)
X = rng.normal(size=(B, T, D)).astype("float32")
CONTEXT = rng.normal(size=(B, S, C)).astype("float32")
PREFIX = np.random.default_rng(29).normal(size=(B, 3, D)).astype("float32")
PIXELS = rng.integers(0, 256, size=(B, 7, 5, 3)).astype("float32")
IDS = rng.integers(1, V, size=(B, T)).astype("int32")
# Three placeholders a row, as many as `PREFIX` has features.
MARKED = np.where([[True, False, True, True, False], [False, True, True, True, False]], V - 1, 2)
MARKED = MARKED.astype("int32")
MASK = np.array([[True, True, False, True, True], [False, True, True, False, False]])
CONTEXT_MASK = np.array([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
PAIRS = rng.random((B, T, T)) < 0.7
# An alignment of S sequences and T residues, pairs of its residues.
ALIGNMENT = rng.normal(size=(B, S, T, D)).astype("float32")
RESIDUES = rng.normal(size=(B, T, T, F)).astype("float32")
PRESENT = np.broadcast_to(MASK[:, None], (B, S, T)).copy()
GLOROT = keras.initializers.GlorotNormal(seed=3)
BIAS = keras.initializers.Constant(0.25)
PROJECTIONS = {"kernel_initializer": GLOROT, "bias_initializer": BIAS}
HEADS = {"num_heads": 4, "head_dim": 3, "value_dim": 5, "num_key_value_heads": 2}


# Their options are those of their parts.
BLOCKS = {TransformerEncoderBlock: encoder_block, TransformerDecoderBlock: decoder_block}


@dataclasses.dataclass
class Case:
    """A layer, arguments that are not the defaults, and what it is called with."""

    layer: type[keras.layers.Layer]
    options: dict[str, Any]
    inputs: tuple[np.ndarray, ...]
    keywords: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # What is no array: a function.
    functions: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Whether the inputs are one argument, a list.
    listed: bool = False

    def make(self, **options):
        """A layer with random weights, the same each time."""
        layer = self.new(**options)
        self.call(layer)
        return randomize(layer)

    def new(self, **options):
        """A layer that is not built."""
        given = {
            name: {**x, "config": {**x["config"], "dtype": options["dtype"]}}
            if name.endswith("_norm") and isinstance(x, dict) and "dtype" in options
            else x
            for name, x in self.options.items()
        }
        return BLOCKS.get(self.layer, self.layer)(**{**given, **options})

    def call(self, layer, **arguments):
        return layer(*self.positional(self.inputs), **self.keywords, **self.functions, **arguments)

    def positional(self, inputs):
        """The positional arguments of a call."""
        return ([*inputs],) if self.listed else tuple(inputs)

    def model(self, layer):
        """A functional model of the layer, its arrays in the order of its inputs, masks last."""
        inputs = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in self.inputs]
        keywords = {
            name: keras.Input(x.shape[1:], dtype=str(x.dtype)) for name, x in self.keywords.items()
        }
        return keras.Model(
            [*inputs, *keywords.values()],
            layer(*self.positional(inputs), **keywords, **self.functions),
        )

    @property
    def arrays(self):
        return [*self.inputs, *self.keywords.values()]


@keras.saving.register_keras_serializable("tests")
def sine(x):
    return keras.ops.sin(x)


BLOCK = {
    "intermediate_dim": F, "dropout": 0.3, "attention_dropout": 0.2, "activation": "gelu",
    "layer_norm_epsilon": 1e-3, "normalize_first": True, **HEADS, **PROJECTIONS,
}  # fmt: skip
# As configurations, so that each layer gets a part of its own.
POSITIONS = {
    type(part).__name__: keras.saving.serialize_keras_object(part)
    for part in (
        RotaryEmbedding2D(width=2, prefix=1, max_wavelength=50.0),
        RotaryEmbedding(
            50.0, rotary_dim=2, interleaved=True, scaling=YaRNScaling(2.0, 3), query_beta=0.7
        ),
        RelativePositionBias(8, 16, initializer=GLOROT),
        RelativePositionEmbedding(3, initializer=GLOROT),
        ALiBi(),
        DisentangledPositionEmbedding(RelativePositionTable(D, 4, initializer=GLOROT)),
        RowMask(1, (2, 2)),
        ColumnMask(1, (2, 2)),
        ConvolutionMask(0, (2, 3), 1),
    )
}
CASES = {
    **{
        f"MultiHeadSelfAttention, {name}": Case(
            MultiHeadSelfAttention,
            # A rotation in two dimensions needs heads of a multiple of 4.
            {"position": part, "window": 3, **HEADS, "head_dim": 4 if "2D" in name else 3},
            (X,),
        )
        for name, part in POSITIONS.items()
    },
    "PositionEmbedding": Case(
        PositionEmbedding, {"max_length": T, "initializer": GLOROT, "dropout": 0.3}, (X,)
    ),
    "PositionEmbedding2D": Case(
        PositionEmbedding2D,
        {"grid": (2, 2), "prefix": 1, "initializer": GLOROT, "dropout": 0.3, "antialias": True},
        (X,),
    ),
    "ElementwiseAffine": Case(
        ElementwiseAffine, {"gamma_initializer": BIAS, "beta_initializer": BIAS}, (X,)
    ),
    "ConcatenateNeighbors": Case(ConcatenateNeighbors, {}, (X,)),
    "BottleneckEncoderBlock": Case(
        BottleneckEncoderBlock,
        {
            "intermediate_dim": F,
            "num_heads": 2,
            "bottleneck_dim": 8,
            "num_feed_forward": 3,
            "dropout": 0.3,
            "activation": "gelu",
            **PROJECTIONS,
        },
        (X,),
        {"mask": MASK},
    ),
    "BottleneckEncoderBlock, queries of the bottleneck": Case(
        BottleneckEncoderBlock,
        {
            "intermediate_dim": F,
            "num_heads": 2,
            "bottleneck_dim": 8,
            "query_key_bottleneck": False,
            "num_feed_forward": 2,
        },
        (X,),
    ),
    "BottleneckEncoderBlock, no bottleneck": Case(
        BottleneckEncoderBlock,
        {"intermediate_dim": F, "num_heads": 2, "num_feed_forward": 2},
        (X,),
        {"mask": MASK},
    ),
    "ConcatenatePrefix": Case(ConcatenatePrefix, {}, (PREFIX, X), listed=True),
    "RemovePrefix": Case(RemovePrefix, {}, (PREFIX, X), listed=True),
    "ReplacePlaceholders": Case(ReplacePlaceholders, {"token_id": V - 1}, (X, MARKED, PREFIX)),
    "GridPositionEmbedding": Case(
        GridPositionEmbedding,
        {"text_length": 1, "grid": (2, 2), "initializer": GLOROT, "dropout": 0.3},
        (X,),
    ),
    "CodebookEmbedding": Case(
        CodebookEmbedding,
        {"vocabulary_size": D, "dim": F, "embeddings_initializer": GLOROT},
        (X,),
    ),
    "GumbelSoftmax": Case(
        GumbelSoftmax, {"temperature": 0.7, "straight_through": True, "seed": 5}, (X,)
    ),
    "ImageDenormalization": Case(
        ImageDenormalization,
        {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "scale": 1 / 256},
        (PIXELS / 255,),
    ),
    "PrefixTokens": Case(PrefixTokens, {"count": 2, "index": 1, "initializer": GLOROT}, (X,)),
    "PixelShuffle": Case(PixelShuffle, {"factor": 2}, (X[:, :4],)),
    "PatchEmbedding": Case(
        PatchEmbedding,
        {
            "dim": D,
            "patch_size": (3, 2),
            "stride": (2, 2),
            "padding": "same",
            "use_bias": False,
            **PROJECTIONS,
        },
        (PIXELS / 255,),
    ),
    "PositionalEncoding2D": Case(
        PositionalEncoding2D, {"dim": 8, "max_wavelength": 50.0, "scale": 3.0}, (PIXELS,)
    ),
    "RandomResizedCrop": Case(
        RandomResizedCrop,
        {"size": (4, 3), "scale": (0.2, 0.9), "aspect_ratio": (0.5, 1.5), "seed": 5},
        (PIXELS,),
    ),
    "ImageNormalization": Case(
        ImageNormalization,
        {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "scale": 1 / 256},
        (PIXELS,),
    ),
    "LogMelSpectrogram": Case(
        LogMelSpectrogram,
        {"num_mels": 5, "length": 50, "sample_rate": 8000, "window": 14, "hop": 8},
        (X.reshape(B, T * D),),
    ),
    "TransformerEncoderBlock, modern": Case(
        TransformerEncoderBlock,
        {
            "intermediate_dim": F,
            "activation": "silu",
            "gated": True,
            "norm": "rms_norm",
            "normalize_first": True,
            "sandwich_norm": True,
            **head_norms(),
            "rotate_first": True,
            "soft_cap": 5.0,
            "attention_scale": 0.3,
            "residual_scale": 1.5,
            "layer_scale": 0.5,
            "position": POSITIONS["RotaryEmbedding"],
            "drop_path": 0.2,
            **HEADS,
        },
        (X,),
    ),
    "TokenEmbedding": Case(
        TokenEmbedding,
        {
            "vocabulary_size": V,
            "dim": D,
            "scale": True,
            "mask_zero": True,
            "embeddings_initializer": GLOROT,
        },
        (IDS,),
    ),
    "LayerNormalization": Case(
        LayerNormalization, {"epsilon": 1e-2, "beta_initializer": BIAS}, (X,)
    ),
    "RMSNormalization": Case(RMSNormalization, {"epsilon": 1e-2}, (X,)),
    "NGramEncoding": Case(
        NGramEncoding,
        {"kernel_size": 3, "dropout": 0.3, "activation": "gelu"},
        (X, np.flip(X, 1).copy()),
        {"mask": MASK},
    ),
    "OutputBias": Case(OutputBias, {"initializer": BIAS}, (X,)),
    "SegmentEmbedding": Case(
        SegmentEmbedding, {"num_segments": 3, "initializer": GLOROT}, (X, IDS % 3)
    ),
    "SegmentEmbedding, one": Case(SegmentEmbedding, {"num_segments": 3}, (X,)),
    **{
        f"RegionEmbedding, {kind}": Case(
            RegionEmbedding,
            {"dim": F, "dropout": 0.3, "epsilon": 1e-3, **PROJECTIONS, "separate_norms": separate},
            (CONTEXT, CONTEXT[..., :4].copy()),
        )
        for kind, separate in (("one norm", False), ("two norms", True))
    },
    "SequencePooling": Case(SequencePooling, {"mode": "weighted_mean"}, (X,)),
    "AttentionPooling": Case(
        AttentionPooling,
        {
            "num_heads": 3,
            "intermediate_dim": 7,
            "activation": "silu",
            "dropout": 0.3,
            "layer_norm_epsilon": 1e-3,
            **PROJECTIONS,
        },
        (X,),
    ),
    "EndTokenPooling": Case(EndTokenPooling, {"end_id": int(IDS[0, 2])}, (X, IDS)),
    "MSARowAttention": Case(
        MSARowAttention,
        {"num_heads": 2, "head_dim": 5, "epsilon": 1e-3},
        (ALIGNMENT, RESIDUES),
        {"mask": PRESENT},
    ),
    "MSAColumnAttention": Case(
        MSAColumnAttention, {"num_heads": 3, "epsilon": 1e-3}, (ALIGNMENT,), {"mask": PRESENT}
    ),
    "MSAGlobalAttention": Case(
        MSAGlobalAttention, {"num_heads": 2, "head_dim": 5}, (ALIGNMENT,), {"mask": PRESENT}
    ),
    "OuterProductMean": Case(
        OuterProductMean, {"dim": C, "hidden_dim": 3}, (ALIGNMENT,), {"mask": PRESENT}
    ),
    "TriangleMultiplication": Case(
        TriangleMultiplication, {"hidden_dim": 3, "incoming": True}, (RESIDUES,), {"mask": PAIRS}
    ),
    "TriangleAttention": Case(
        TriangleAttention,
        {"num_heads": 2, "head_dim": 3, "ending": True},
        (RESIDUES,),
        {"mask": PAIRS},
    ),
    "MSABlock": Case(
        MSABlock,
        {"num_heads": 2, "transition_factor": 3, "dropout": 0.3, "epsilon": 1e-3},
        (ALIGNMENT, RESIDUES),
        {"mask": PRESENT},
    ),
    "PairBlock": Case(
        PairBlock,
        {
            "num_heads": 2,
            "head_dim": 3,
            "outer_dim": 3,
            "hidden_dim": 5,
            "transition_factor": 2,
            "dropout": 0.3,
            "epsilon": 1e-3,
        },
        (RESIDUES, ALIGNMENT),
        {"mask": PRESENT},
    ),
    "PairEmbedding": Case(
        PairEmbedding,
        {"vocabulary_size": V, "dim": D, "max_distance": 3, "initializer": GLOROT},
        (IDS, IDS * 2),
    ),
    "Dropout": Case(Dropout, {"rate": 0.3, "seed": 5}, (X,)),
    "PositionalEncoding": Case(PositionalEncoding, {"max_wavelength": 50.0, "dropout": 0.3}, (X,)),
    "FeedForward": Case(
        FeedForward,
        {"intermediate_dim": F, "activation": "gelu", "dropout": 0.3, **PROJECTIONS},
        (X,),
    ),
    # Both experts: of one that no token chose, the gradients are zeros.
    "MixtureOfExperts": Case(
        MixtureOfExperts,
        {
            "expert": serialize_part(FeedForward(F, "gelu", gated=True, **PROJECTIONS)),
            "routing": keras.saving.serialize_keras_object(
                Routing(2, 2, "sigmoid", False, 1.5, selection_bias=True, balance=0.1)
            ),
            "shared": serialize_part(FeedForward(5, **PROJECTIONS)),
            "shared_gate": True,
            "kernel_initializer": GLOROT,
        },
        (X,),
    ),
    "ShortConvolution": Case(
        ShortConvolution, {"kernel_size": 4, "use_bias": True, **PROJECTIONS}, (X,), {"mask": MASK}
    ),
    "GatedDeltaNet": Case(
        GatedDeltaNet,
        {
            "num_heads": 4,
            "head_dim": 3,
            "value_dim": 5,
            "num_key_heads": 2,
            "kernel_size": 3,
            "activation": "gelu",
            "epsilon": 1e-3,
            **PROJECTIONS,
        },
        (X,),
        {"mask": MASK},
    ),
    "Mamba2": Case(
        Mamba2,
        {
            "num_heads": 4,
            "head_dim": 3,
            "state_dim": 5,
            "num_groups": 2,
            "kernel_size": 3,
            "activation": "gelu",
            "epsilon": 1e-3,
            "use_bias": True,
            "convolution_bias": False,
            "time_step_limit": [0.1, 2.0],
            **PROJECTIONS,
        },
        (X,),
        {"mask": MASK},
    ),
    "MultiHeadSelfAttention": Case(
        MultiHeadSelfAttention, {"causal": True, "dropout": 0.3, **HEADS, **PROJECTIONS}, (X,)
    ),
    "MultiHeadSelfAttention, gated queries": Case(
        MultiHeadSelfAttention,
        {
            "causal": True,
            "gate": "query",
            "num_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "position": POSITIONS["RotaryEmbedding"],
            **PROJECTIONS,
        },
        (X,),
    ),
    "MultiHeadSelfAttention, gated heads": Case(
        MultiHeadSelfAttention,
        {
            "causal": True,
            "gate": "head",
            "num_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "value_dim": 3,
            "window": 3,
            "position": POSITIONS["RotaryEmbedding"],
            **PROJECTIONS,
        },
        (X,),
        {"mask": MASK},
    ),
    "MultiHeadSelfAttention, merged": Case(
        MultiHeadSelfAttention,
        {"causal": True, "merged": True, "dropout": 0.3, **HEADS},
        (X,),
        {"memory": 2.0 * X[:, 1:], "memory_mask": CONTEXT_MASK[:, : T - 1]},
    ),
    "MultiHeadSelfAttention, masked": Case(
        MultiHeadSelfAttention,
        {"num_heads": 3, "use_bias": False},
        (X,),
        {"mask": MASK, "attention_mask": PAIRS},
    ),
    "MultiHeadCrossAttention": Case(
        MultiHeadCrossAttention,
        {"dropout": 0.3, **HEADS, **PROJECTIONS},
        (X, CONTEXT),
        {"context_mask": CONTEXT_MASK},
    ),
    "MultiHeadCrossAttention, fused": Case(
        MultiHeadCrossAttention,
        {"num_heads": 3, "fused_key_value": True, "value_dim": 2},
        (X, CONTEXT),
        {"context_mask": CONTEXT_MASK},
    ),
    "Residual": Case(
        Residual,
        {
            "input_norm": serialize_part(RMSNormalization(epsilon=1e-3, name="norm")),
            "output_norm": serialize_part(RMSNormalization(epsilon=1e-3, name="output_norm")),
            "sum_norm": serialize_part(LayerNormalization(epsilon=1e-3, name="sum_norm")),
            "dropout": 0.3,
            "drop_path": 0.2,
            "residual_scale": 1.5,
            "layer_scale": 0.5,
            "output_scale": 0.7,
        },
        (X,),
        functions={"sublayer": sine},
    ),
    "TransformerEncoderBlock": Case(TransformerEncoderBlock, BLOCK, (X,), {"mask": MASK}),
    "TransformerEncoderBlock, defaults": Case(
        TransformerEncoderBlock, {"intermediate_dim": F, "num_heads": 2}, (X,)
    ),
    "TransformerDecoderBlock": Case(
        TransformerDecoderBlock,
        BLOCK,
        (X, CONTEXT),
        {"mask": MASK, "context_mask": CONTEXT_MASK, "attention_mask": PAIRS},
    ),
    "TransformerDecoderBlock, cross-attention only": Case(
        TransformerDecoderBlock,
        {
            "intermediate_dim": None,
            "num_heads": 3,
            "self_attention": False,
            "feed_forward": False,
            "causal": False,
        },
        (X, CONTEXT),
        {"context_mask": CONTEXT_MASK},
    ),
    "TransformerDecoderBlock, decoder only": Case(
        TransformerDecoderBlock,
        {"intermediate_dim": F, "num_heads": 3, "cross_attention": False, "use_bias": False},
        (X,),
    ),
    "TransformerDecoderBlock, parallel": Case(
        TransformerDecoderBlock,
        {
            "intermediate_dim": F,
            "num_heads": 3,
            "cross_attention": False,
            "normalize_first": True,
            "parallel": True,
        },
        (X,),
        {"mask": MASK},
    ),
    "TransformerDecoderBlock, parallel in one residual connection": Case(
        TransformerDecoderBlock,
        {
            "intermediate_dim": F,
            "num_heads": 3,
            "cross_attention": False,
            "normalize_first": True,
            "parallel": "one_residual",
        },
        (X,),
        {"mask": MASK},
    ),
}

LEARNING = {
    name: case
    for name, case in CASES.items()
    if case.layer
    not in (
        *(PositionalEncoding, PositionalEncoding2D, Dropout, SequencePooling, EndTokenPooling),
        *(ImageNormalization, ImageDenormalization, RandomResizedCrop, LogMelSpectrogram),
        *(ConcatenatePrefix, RemovePrefix, ReplacePlaceholders, GumbelSoftmax, PixelShuffle),
        ConcatenateNeighbors,
    )
}
# Under any policy: what they read is cast after them.
IN_FLOAT32 = (ImageNormalization, ImageDenormalization, LogMelSpectrogram)
INITIALIZED = {
    name: case for name, case in CASES.items() if any("initializer" in key for key in case.options)
}
every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_public_layer_has_a_case():
    public = {
        name
        for name in keras_tfm.layers.__all__
        if isinstance(getattr(keras_tfm.layers, name), type)
        and issubclass(getattr(keras_tfm.layers, name), keras.layers.Layer)
    }
    covered = {case.layer.__name__ for case in CASES.values()} | set(POSITIONS)
    # Two base classes, and a part of DisentangledPositionEmbedding.
    others = {x.__name__ for x in (AttentionPosition, GridMask, RelativePositionTable)}
    assert public - others == covered


# Configuration and files


def without_policies(config):
    """A configuration without dtype policies, at any depth."""
    if not isinstance(config, dict):
        return config
    return {key: without_policies(x) for key, x in config.items() if key != "dtype"}


@pytest.mark.default
@every_layer
def test_the_configuration_makes_the_layer_again(case):
    layer = case.make(name="here", dtype="mixed_bfloat16", trainable=False)
    config = layer.get_config()
    if case.layer in BLOCKS and OPTIONS & set(case.options):
        for name, part in parts(case.layer, **case.options).items():
            if isinstance(part, keras.layers.Layer):
                wanted = without_policies(part.get_config())
                found = without_policies(config[name]["config"])
                assert {key: found[key] for key in wanted} == {**wanted, "name": found["name"]}
    else:
        wanted = {name: case.options[name] for name in case.options if "initializer" not in name}
        found = {name: config[name] for name in wanted}
        assert without_policies(found) == without_policies(wanted)
    for again in (
        case.layer.from_config(config),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer)),
    ):
        assert type(again) is case.layer
        assert again.get_config() == config
        assert (again.name, again.trainable) == ("here", False)
        case.call(again)
        again.set_weights(layer.get_weights())
        assert_close(case.call(again), case.call(layer), 0.0)


@every_layer
def test_every_argument_is_in_the_configuration(case):
    """Also those of which the case gives no value."""
    import inspect

    arguments = set()
    for cls in case.layer.__mro__:
        if cls is keras.layers.Layer:
            break
        if "__init__" in vars(cls):
            parameters = inspect.signature(cls.__init__).parameters.values()
            arguments |= {x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD}
    assert arguments - {"self"} <= set(case.make().get_config())


@saving
@every_layer
def test_a_keras_file_holds_the_layer(case, tmp_path):
    model = case.model(case.make())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")  # safe_mode, as is the default
    assert_close(loaded(case.arrays), model(case.arrays), 0.0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = case.model(randomize(case.make(), seed=1))
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(other(case.arrays), model(case.arrays), 0.0)


# The ways to run it


@pytest.mark.default
@every_layer
def test_symbolic_equals_eager(case):
    layer = case.make()
    y = case.call(layer)
    model = case.model(layer)
    # That encoding is the same for all images.
    batch = 1 if case.layer is PositionalEncoding2D else None
    assert model.output.shape == (batch, *y.shape[1:])
    assert model.output.dtype == keras.backend.standardize_dtype(y.dtype)
    assert_close(model(case.arrays), y, 0.0)
    shapes = [x.shape for x in case.inputs]
    assert tuple(layer.compute_output_shape(*case.positional(shapes))) == tuple(y.shape)


@pytest.mark.default
@every_layer
def test_lengths_may_be_unknown(case):
    layer = case.make()
    inputs = [keras.Input((None, *x.shape[2:]), dtype=str(x.dtype)) for x in case.inputs]
    if case.layer is PixelShuffle:  # it needs the side of the square
        with pytest.raises(ValueError, match="with N and D known"):
            layer(*inputs)
        return
    required = {name: x for name, x in case.keywords.items() if name == "memory"}
    given = {name: keras.Input((None, *x.shape[2:])) for name, x in required.items()}
    y = layer(*case.positional(inputs), **given, **case.functions)
    model = keras.Model([*inputs, *given.values()], y)
    expected = layer(*case.positional(case.inputs), **required, **case.functions)
    batch = 1 if case.layer is PositionalEncoding2D else None
    if case.layer in (OuterProductMean, PairEmbedding):  # both axes of pairs are one of the input
        wanted = tuple(layer.compute_output_shape(*(x.shape for x in inputs)))
        assert y.shape == wanted
        assert_close(model.predict(list(case.inputs), verbose=0), expected, 1e-5)
        return
    fixed = case.layer in (RandomResizedCrop, LogMelSpectrogram)
    length = expected.shape[1] if fixed else None
    assert y.shape == (
        (None, D)
        if case.layer in (AttentionPooling, SequencePooling, EndTokenPooling)
        else (batch, length, *expected.shape[2:])
    )
    # As the same sums in another order.
    arrays = [*case.inputs, *required.values()]
    assert_close(model.predict(arrays, verbose=0), expected, 1e-5)


# What other layers consist of is compiled inside a block, and by tests of its own.
IN_BLOCKS = {
    x
    for x in CASES
    if not x.endswith("Block") and ("Attention" not in x or x.startswith(("MSA", "Triangle")))
}


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(
            case,
            mode,
            id=f"{mode}-{name}",
            marks=[tensorflow_only] + [pytest.mark.slow] * (mode == "xla" and name in IN_BLOCKS),
        )
        for mode in ("graph", "xla")
        for name, case in CASES.items()
    ],
)
def test_graph_and_xla_equal_eager(case, mode):
    layer = case.make()
    count = len(case.inputs)

    def run(*arrays):
        keywords = dict(zip(case.keywords, arrays[count:], strict=True))
        return layer(*case.positional(arrays[:count]), **keywords, **case.functions)

    actual = execute(mode, run, *case.arrays)
    # XLA fuses and reorders: some roundings of 6e-8 through three sublayers.
    assert_close(actual, case.call(layer), 1e-5 if mode == "xla" else 1e-6)


@pytest.mark.default
@every_layer
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [
        # Some ten roundings of values of both signs, each of 4e-3 in bfloat16 and 5e-4 in float16.
        ("mixed_bfloat16", 2e-2),
        ("mixed_float16", 4e-3),
    ],
)
def test_mixed_precision_gives_the_values_of_float32(case, policy, tolerance):
    layer = case.make(dtype=policy)
    y = case.call(layer)
    dtype = "float32" if case.layer in IN_FLOAT32 else policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(y.dtype) == dtype
    assert all(weight.dtype == "float32" for weight in layer.weights)
    assert_close(y, case.call(case.make()), tolerance)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="JAX has float64 in a mode of its own; under PyTorch Keras multiplies in float32",
)
@pytest.mark.parametrize("case", [case for case in CASES.values() if case.layer not in IN_FLOAT32])
def test_float64_is_not_worse_than_float32(case):
    layer = case.make(dtype="float64")
    y = case.call(layer)
    assert keras.backend.standardize_dtype(y.dtype) == "float64"
    # float32's roundings of 6e-8, and positions and the softmax in float32 in both.
    assert_close(y, case.call(case.make()), 1e-5)


@pytest.mark.default
@every_layer
def test_training_is_random_where_there_is_dropout_and_inference_is_not(case):
    layer = case.make()
    still = [to_numpy(case.call(layer)) for _ in range(2)]
    np.testing.assert_array_equal(*still)
    if case.options.get("dropout"):
        moved = [to_numpy(case.call(layer, training=True)) for _ in range(2)]
        assert np.any(moved[0] != moved[1])
        assert np.any(moved[0] != still[0])


# Masks


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.keywords.get("mask") is MASK],
    ids=lambda case: case.layer.__name__,
)
def test_an_explicit_mask_goes_on_to_the_next_layer(case, implicit):
    """Whether or not the input carries another one."""
    x, *others = case.inputs
    if implicit:
        x = keras.layers.Masking(99.0)(np.where(np.arange(T)[:, None] == 3, 99.0, x))
        np.testing.assert_array_equal(x._keras_mask, np.arange(T) + np.zeros((B, 1)) != 3)
    y = case.make()(x, *others, **case.keywords)
    np.testing.assert_array_equal(y._keras_mask, MASK)


# Weights


def shapes_of(layer):
    """The shape of every weight by its path within the layer."""
    return {weight.path.split("/", 1)[1]: tuple(weight.shape) for weight in layer.weights}


def test_widths_by_hand():
    """H = 4, K = 3, V = 5, G = 2: queries 12 wide, keys 6, values 10, what they make 20."""
    fused, output = {"kernel": (D, 12 + 6 + 10), "bias": (28,)}, {"kernel": (20, D), "bias": (D,)}
    attend = {
        **{f"query_key_value/{name}": shape for name, shape in fused.items()},
        **{f"output_projection/{name}": shape for name, shape in output.items()},
    }
    cross = {
        "query/kernel": (D, 12), "query/bias": (12,),
        "key/kernel": (C, 6), "key/bias": (6,),
        "value/kernel": (C, 10), "value/bias": (10,),
        **{f"output_projection/{name}": shape for name, shape in output.items()},
    }  # fmt: skip
    feed = {
        "inner/kernel": (D, F), "inner/bias": (F,), "outer/kernel": (F, D), "outer/bias": (D,)
    }  # fmt: skip
    norm = {"norm/gamma": (D,), "norm/beta": (D,)}

    def within(**parts):
        return {f"{part}/{name}": s for part, names in parts.items() for name, s in names.items()}

    encoder = within(
        self_attention=attend,
        self_attention_residual=norm,
        feed_forward=feed,
        feed_forward_residual=norm,
    )
    decoder = encoder | within(cross_attention=cross, cross_attention_residual=norm)
    for name, expected in (
        ("MultiHeadSelfAttention", attend),
        ("MultiHeadCrossAttention", cross),
        ("FeedForward", feed),
        ("TransformerEncoderBlock", encoder),
        ("TransformerDecoderBlock", decoder),
        ("TokenEmbedding", {"embeddings": (V, D)}),
        ("PositionalEncoding", {}),
    ):
        assert shapes_of(CASES[name].make()) == expected


@pytest.mark.parametrize(
    "name",
    [
        "FeedForward",
        "MultiHeadSelfAttention",
        "MultiHeadCrossAttention",
        "TransformerEncoderBlock",
        "TransformerDecoderBlock",
    ],
)
def test_without_biases_there_are_none(name):
    """But for those of the norms, which are called beta."""
    case = CASES[name]
    assert any("bias" in path for path in shapes_of(case.make(use_bias=True)))
    assert not any("bias" in path for path in shapes_of(case.make(use_bias=False)))


@pytest.mark.parametrize("case", INITIALIZED.values(), ids=INITIALIZED)
def test_the_initializers_are_used(case):
    layer = case.new()
    case.call(layer)
    for weight in layer.weights:
        kind = weight.path.rsplit("/", 1)[-1]
        if kind == "bias":
            np.testing.assert_array_equal(weight, 0.25)
        elif kind in ("kernel", "embeddings"):
            np.testing.assert_array_equal(weight, GLOROT.clone()(weight.shape))


@pytest.mark.default
@pytest.mark.parametrize("case", LEARNING.values(), ids=LEARNING)
def test_a_fit_step_changes_every_weight(case):
    keras.utils.set_random_seed(3)  # another might drop a whole path for both rows
    layer = case.make()
    model = case.model(layer)
    target = rng.normal(size=to_numpy(case.call(layer)).shape)
    before = {weight.path: to_numpy(weight) for weight in layer.trainable_weights}
    # Eagerly, sooner than a graph for each; that graphs do the same, the test of FAULTS 3 has.
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    history = model.fit(case.arrays, target, epochs=1, batch_size=B, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    for weight in layer.trainable_weights:
        if weight.path.endswith(("/key/bias", "/pair_norm/beta")):
            continue  # adds the same to all scores of a query: the softmax takes it away again
        changed = to_numpy(weight) != before[weight.path]
        # Of a table, the rows of the ids; of a fused bias, all but the keys'; and dropout.
        assert np.mean(changed) > 0.2, weight.path


@pytest.mark.default
@every_layer
def test_paths_of_weights_are_unique_and_stable(case):
    """However the layer is built: outright, when it is called, or by a functional model."""
    built = case.new(name="layer")
    built.build(*case.positional([x.shape for x in case.inputs]))
    called = case.new(name="layer")
    case.call(called)
    symbolic = case.new(name="layer")
    case.model(symbolic)
    paths = [[weight.path for weight in layer.weights] for layer in (built, called, symbolic)]
    assert len(set(paths[0])) == len(paths[0])
    assert paths[0] == paths[1] == paths[2]
    assert all(path.startswith("layer/") for path in paths[0])


@pytest.mark.default
@every_layer
def test_names_do_not_matter(case):
    """Two layers side by side in one model keep their weights apart."""
    first, second = case.make(), randomize(case.make(), seed=1)
    assert_close(case.call(first), case.call(case.make()), 0.0)
    if first.trainable_weights:
        assert np.any(to_numpy(case.call(first)) != to_numpy(case.call(second)))
