"""Writes the matrix of layers, docs/matrix.md: which can be stepped, and which can be exported.

pip install -e ".[edge]"
python docs/matrix.py                       # 15 minutes on two cores
python docs/matrix.py --only LSTM Conv1D    # prints the rows whose names contain one of the words

Each row is a small model with random weights and one layer under test:
`TokenEmbedding -> layer -> Dense`. A `Generator` is made of it, which compares stepping with a full
pass, and it is exported as `predict` and, if it can be stepped, as `generate`. Every export is
compared with the model. The page is committed, and tests/test_matrix.py compares rows with
a fresh run.
"""

import argparse
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_tfm import export, generation, layers

PAGE = Path(__file__).parent / "matrix.md"
# The rows between these two comments are the script's.
ENTRY = re.compile(r"^<!-- (?P<group>\w+) -->\n.*?^<!-- end -->$", re.M | re.S)
# Wide enough that LiteRT quantizes the matrices: those below 1,024 elements stay in float32.
VOCABULARY, DIM, HEADS, LENGTH = 41, 64, 2, 8
COLUMNS = {
    "stepped": None,
    "`predict` float32": ("predict", "float32"),
    "`predict` int8": ("predict", "int8"),
    "`generate` float32": ("generate", "float32"),
    "`generate` int8": ("generate", "int8"),
}
K, L = keras.layers, layers


def attention(**options):
    return L.MultiHeadSelfAttention(HEADS, causal=True, **options)


def at(position):
    """Causal self-attention with a position part."""
    return attention(position=position)


def block(**options):
    residual = L.Residual(**options)
    return L.TransformerDecoderBlock(128, HEADS, cross_attention=False, residual=residual)


# Name of a row -> what is done with features (B, T, D).
KERAS: dict[str, Callable] = {
    "`Dense`": lambda x: K.Dense(DIM)(x),
    "`EinsumDense`": lambda x: K.EinsumDense("btd,df->btf", (None, DIM))(x),
    "`TimeDistributed(Dense)`": lambda x: K.TimeDistributed(K.Dense(DIM))(x),
    "`Activation`, `LeakyReLU`": lambda x: K.LeakyReLU()(K.Activation("gelu")(x)),
    "`PReLU(shared_axes=[1])`": lambda x: K.PReLU(shared_axes=[1])(x),
    "`LayerNormalization`": lambda x: K.LayerNormalization()(x),
    "`RMSNormalization`": lambda x: K.RMSNormalization()(x),
    "`UnitNormalization`": lambda x: K.UnitNormalization()(x),
    "`BatchNormalization`": lambda x: K.BatchNormalization()(x),
    "`GroupNormalization`": lambda x: K.GroupNormalization(2)(x),
    "`Dropout`, `SpatialDropout1D`": lambda x: K.SpatialDropout1D(0.1)(K.Dropout(0.1)(x)),
    "`GaussianNoise`, `GaussianDropout`": lambda x: K.GaussianDropout(0.1)(K.GaussianNoise(1)(x)),
    "`Add`, `Subtract`, `Multiply`, `Average`": lambda x: K.Average()(
        [K.Add()([x, x]), K.Subtract()([x, K.Multiply()([x, x])])]
    ),
    "`Concatenate`": lambda x: K.Concatenate()([x, x]),
    "`Rescaling`": lambda x: K.Rescaling(0.5)(x),
    "`Reshape`, of each token": lambda x: K.Reshape((-1, DIM))(
        K.Reshape((-1, HEADS, DIM // HEADS))(x)
    ),
    "`Conv1D`, kernel size 1": lambda x: K.Conv1D(DIM, 1)(x),
    '`Conv1D`, `padding="causal"`': lambda x: K.Conv1D(DIM, 3, padding="causal")(x),
    '`Conv1D`, `padding="same"`': lambda x: K.Conv1D(DIM, 3, padding="same")(x),
    "`DepthwiseConv1D`, `SeparableConv1D`, after `ZeroPadding1D((2, 0))`": lambda x: (
        K.SeparableConv1D(DIM, 3)(
            K.ZeroPadding1D((2, 0))(K.DepthwiseConv1D(3)(K.ZeroPadding1D((2, 0))(x)))
        )
    ),
    '`SeparableConv1D`, `padding="same"`': lambda x: K.SeparableConv1D(DIM, 3, padding="same")(x),
    "`MaxPooling1D`, `AveragePooling1D`, after `ZeroPadding1D((1, 0))`": lambda x: (
        K.AveragePooling1D(2, strides=1)(
            K.ZeroPadding1D((1, 0))(K.MaxPooling1D(2, strides=1)(K.ZeroPadding1D((1, 0))(x)))
        )
    ),
    '`MaxPooling1D`, `AveragePooling1D`, `padding="same"`': lambda x: K.AveragePooling1D(1)(
        K.MaxPooling1D(2, strides=1, padding="same")(x)
    ),
    "`GlobalAveragePooling1D`": lambda x: K.GlobalAveragePooling1D()(x),
    "`GlobalMaxPooling1D`": lambda x: K.GlobalMaxPooling1D()(x),
    "`LSTM`": lambda x: K.LSTM(DIM, return_sequences=True)(x),
    "`LSTM(unroll=True)`": lambda x: K.LSTM(DIM, return_sequences=True, unroll=True)(x),
    "`GRU`": lambda x: K.GRU(DIM, return_sequences=True)(x),
    "`SimpleRNN`": lambda x: K.SimpleRNN(DIM, return_sequences=True)(x),
    "`RNN([LSTMCell, GRUCell])`": lambda x: K.RNN(
        [K.LSTMCell(DIM), K.GRUCell(DIM)], return_sequences=True
    )(x),
    "`Bidirectional(LSTM)`": lambda x: K.Bidirectional(K.LSTM(DIM, return_sequences=True))(x),
    "`MultiHeadAttention`, causal": lambda x: K.MultiHeadAttention(HEADS, 32)(
        x, x, use_causal_mask=True
    ),
    "`MultiHeadAttention`": lambda x: K.MultiHeadAttention(HEADS, 32)(x, x),
    "`GroupQueryAttention`, causal": lambda x: K.GroupQueryAttention(16, 4, 2)(
        x, x, use_causal_mask=True
    ),
    "`Attention`, causal": lambda x: K.Attention()([x, x], use_causal_mask=True),
    "the operation `keras.ops.cumsum`": lambda x: keras.ops.cumsum(x, axis=1),
    "`AdditiveAttention`, causal": lambda x: K.AdditiveAttention()([x, x], use_causal_mask=True),
}
OURS: dict[str, Callable] = {
    "`PositionalEncoding`": lambda x: L.PositionalEncoding()(x),
    "`PositionEmbedding`": lambda x: L.PositionEmbedding(LENGTH)(x),
    "`LayerNormalization`": lambda x: L.LayerNormalization()(x),
    "`RMSNormalization`": lambda x: L.RMSNormalization()(x),
    "`FeedForward`": lambda x: L.FeedForward(128)(x),
    "`FeedForward(gated=True)`": lambda x: L.FeedForward(128, activation="silu", gated=True)(x),
    "`MixtureOfExperts`": lambda x: L.MixtureOfExperts(L.FeedForward(128), L.Routing(5, 2))(x),
    "`Dropout`": lambda x: L.Dropout(0.1)(x),
    "`AttentionPooling`": lambda x: L.AttentionPooling(HEADS, 32)(x),
    '`SequencePooling("mean")`': lambda x: L.SequencePooling()(x),
    '`SequencePooling("first")`': lambda x: L.SequencePooling("first")(x),
    '`SequencePooling("last")`': lambda x: L.SequencePooling("last")(x),
    "`MultiHeadSelfAttention(causal=True)`": lambda x: attention()(x),
    "`MultiHeadSelfAttention()`": lambda x: L.MultiHeadSelfAttention(HEADS)(x),
    "the same with `num_key_value_heads=1`": lambda x: attention(num_key_value_heads=1)(x),
    "with `window=3`": lambda x: attention(window=3)(x),
    "with `soft_cap=5.0`": lambda x: attention(soft_cap=5.0)(x),
    "with `query_norm=` and `key_norm=`": lambda x: attention(
        query_norm=L.RMSNormalization(), key_norm=L.RMSNormalization()
    )(x),
    "with `gate=True`": lambda x: attention(gate=True)(x),
    'with `gate="head"`': lambda x: attention(gate="head")(x),
    'with `gate="query"`': lambda x: attention(gate="query")(x),
    "with `RotaryEmbedding()`": lambda x: at(L.RotaryEmbedding())(x),
    "with `RotaryEmbedding(scaling=LinearScaling(...))`": lambda x: at(
        L.RotaryEmbedding(scaling=L.LinearScaling(2.0))
    )(x),
    "with `RotaryEmbedding(scaling=NTKScaling(...))`": lambda x: at(
        L.RotaryEmbedding(scaling=L.NTKScaling(2.0))
    )(x),
    "with `RotaryEmbedding(scaling=Llama3Scaling(...))`": lambda x: at(
        L.RotaryEmbedding(scaling=L.Llama3Scaling(2.0, original_length=8))
    )(x),
    "with `RotaryEmbedding(scaling=YaRNScaling(...))`": lambda x: at(
        L.RotaryEmbedding(scaling=L.YaRNScaling(2.0, original_length=8))
    )(x),
    "with `RelativePositionBias()` (T5)": lambda x: at(L.RelativePositionBias())(x),
    "with `RelativePositionEmbedding(...)` (Shaw)": lambda x: at(L.RelativePositionEmbedding(3))(x),
    "with `DisentangledPositionEmbedding(RelativePositionTable(...))` (DeBERTa)": lambda x: at(
        L.DisentangledPositionEmbedding(L.RelativePositionTable(DIM, max_distance=LENGTH))
    )(x),
    "with `ALiBi()`": lambda x: at(L.ALiBi())(x),
    "`ShortConvolution`": lambda x: L.ShortConvolution()(x),
    "`GatedDeltaNet`": lambda x: L.GatedDeltaNet(HEADS, 32)(x),
    "`Mamba2`": lambda x: L.Mamba2(HEADS, 32, 16)(x),
    "`NGramEncoding`": lambda x: L.NGramEncoding(kernel_size=3)(x, x),
    "`ConcatenateNeighbors`": lambda x: L.ConcatenateNeighbors()(x),
    "`ElementwiseAffine`": lambda x: L.ElementwiseAffine()(x),
    "`BottleneckEncoderBlock`": lambda x: L.BottleneckEncoderBlock(
        128, HEADS, bottleneck_dim=64, num_feed_forward=2
    )(x),
    "`TransformerEncoderBlock`": lambda x: L.TransformerEncoderBlock(128, HEADS)(x),
    "`TransformerDecoderBlock(cross_attention=False)`": lambda x: L.TransformerDecoderBlock(
        128, HEADS, cross_attention=False
    )(x),
    "the same with `Residual(input_norm=RMSNormalization())`": lambda x: block(
        input_norm=L.RMSNormalization()
    )(x),
    "with `input_norm=` and `output_norm=`": lambda x: block(
        input_norm=L.LayerNormalization(), output_norm=L.LayerNormalization()
    )(x),
    "with `Residual(layer_scale=0.1, drop_path=0.1)`": lambda x: block(
        input_norm=L.LayerNormalization(), layer_scale=0.1, drop_path=0.1
    )(x),
}


def with_package(name: str) -> str:
    """The name of a row of Keras's layers: "`Dense`" -> "`keras.layers.Dense`"."""
    return re.sub(r"`([A-Z])", r"`keras.layers.\1", name) if name in KERAS else name


# In the encoder of an encoder-decoder model: name of a row -> what is done with the source's
# features (B, S, D), whose result cross-attention reads.
ENCODER = {
    name: KERAS.get(name) or OURS[name]
    for name in (
        '`Conv1D`, `padding="same"`',
        "`Bidirectional(LSTM)`",
        "`MultiHeadAttention`",
        "`GroupNormalization`",
        "`MultiHeadSelfAttention()`",
        "`TransformerEncoderBlock`",
    )
}


def decoder_only(layer: Callable) -> keras.Model:
    """tokens (B, T) -> TokenEmbedding -> layer -> logits (B, T, V)."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = L.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)(tokens)
    return keras.Model(tokens, K.Dense(VOCABULARY)(layer(x)))


def encoder_decoder(layer: Callable) -> keras.Model:
    """The layer between the source's embedding and a decoder block with cross-attention."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = L.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    x = L.TransformerDecoderBlock(128, HEADS)(embedding(target), layer(embedding(source)))
    return keras.Model({"source": source, "target": target}, K.Dense(VOCABULARY)(x))


def with_segments() -> keras.Model:
    """An encoder-decoder whose source consists of segments, as in BERT."""
    names = ("source", "segments", "target")
    ids = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    embedding = L.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    context = L.SegmentEmbedding()(embedding(ids["source"]), ids["segments"])
    x = L.TransformerDecoderBlock(128, HEADS)(embedding(ids["target"]), context)
    return keras.Model(ids, K.Dense(VOCABULARY)(x))


def tied(embedding: keras.layers.Layer) -> keras.Model:
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    return keras.Model(tokens, L.OutputBias()(embedding(embedding(tokens), reverse=True)))


def embedded(embedding: keras.layers.Layer) -> keras.Model:
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    return keras.Model(tokens, K.Dense(VOCABULARY)(embedding(tokens)))


def cross_attention() -> keras.Model:
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = L.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    x = L.MultiHeadCrossAttention(HEADS)(embedding(target), embedding(source))
    return keras.Model({"source": source, "target": target}, K.Dense(VOCABULARY)(x))


# Name of a row -> the whole model.
WHOLE: dict[str, Callable[[], keras.Model]] = {
    "`keras.layers.Embedding`": lambda: embedded(K.Embedding(VOCABULARY, DIM)),
    "`keras.layers.Embedding(mask_zero=True)`": lambda: embedded(
        K.Embedding(VOCABULARY, DIM, mask_zero=True)
    ),
    "`TokenEmbedding`": lambda: embedded(L.TokenEmbedding(VOCABULARY, DIM)),
    "`TokenEmbedding`, tied output, `OutputBias`": lambda: tied(L.TokenEmbedding(VOCABULARY, DIM)),
    "`TransformerDecoderBlock`, cross-attention": lambda: encoder_decoder(lambda x: x),
    "`SegmentEmbedding`, of a source": with_segments,
    "`MultiHeadCrossAttention`": cross_attention,
}


# Heading -> name of a row -> a function that makes its model.
GROUPS: dict[str, dict[str, Callable[[], keras.Model]]] = {
    "keras": {
        with_package(name): (lambda layer=layer: decoder_only(layer))
        for name, layer in KERAS.items()
    },
    "ours": {name: (lambda layer=layer: decoder_only(layer)) for name, layer in OURS.items()},
    "models": WHOLE,
    "encoder": {
        with_package(name): (lambda layer=layer: encoder_decoder(layer))
        for name, layer in ENCODER.items()
    },
}


def made(build: Callable[[], keras.Model]) -> keras.Model:
    """A model whose weights are away from their initial zeros and ones."""
    keras.utils.set_random_seed(0)
    model = build()
    rng = np.random.default_rng(0)
    for weight in model.weights:
        # Away from zero; positive, since some are variances.
        if "seed" not in weight.path:
            weight.assign(weight + rng.uniform(0.05, 0.2, weight.shape))
    return model


def row(build: Callable[[], keras.Model]) -> tuple[list[str], list[str]]:
    """The cells of a row, "yes" or "no", and the messages of its errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers that drop the mask
        return tried(made(build))


def tried(model: keras.Model) -> tuple[list[str], list[str]]:
    encoder = "source" in model.input if isinstance(model.input, dict) else False
    cells, messages, sizes = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, column in COLUMNS.items():
            try:
                if column is None:
                    start = {"start_id": 1} if encoder else {}
                    generation.Generator(model, max_length=LENGTH, end_id=None, **start)
                elif column[0] == "generate" and cells[0] == "no":
                    cells.append("no")
                    continue
                else:
                    sizes[column] = exported(model, Path(folder, "x.tflite"), encoder, *column)
                cells.append("yes")
            except (ValueError, export.VerificationError) as error:
                cells.append("no")
                messages.append(f"{name}: {error}")
    for (signature, quantization), size in sizes.items():
        whole = sizes.get((signature, "float32"))
        if quantization == "int8" and whole and size > 0.9 * whole:
            raise RuntimeError(f"{signature} in int8 is as large as in float32: nothing quantized")
    return cells, messages


def exported(
    model: keras.Model, path: Path, encoder: bool, signature: str, quantization: str
) -> int:
    """The bytes of the exported file, which was compared with the model."""
    options = {"source_length": LENGTH} if encoder or signature == "predict" else {}
    if signature == "generate":
        options |= {"max_length": LENGTH, "start_id": 1} if encoder else {}
        options |= {} if encoder else {"max_length": LENGTH, "prompt_length": 4}
    report = export.export_tflite(model, path, [signature], quantization=quantization, **options)
    return report.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="print rows, write nothing")
    words = parser.parse_args().only
    tables = {}
    for group, rows in GROUPS.items():
        lines = [f"| layer | {' | '.join(COLUMNS)} |", "|---|" + ":-:|" * len(COLUMNS)]
        for name, build in rows.items():
            if words and not any(word in name for word in words):
                continue
            cells, messages = row(build)
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], *messages, sep="\n    ", flush=True)
        tables[group] = "\n".join(lines)
    if not words:
        PAGE.write_text(filled(PAGE.read_text(), tables))
        print(PAGE)


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with these tables between its comments."""

    def table(match: re.Match[str]) -> str:
        group = match["group"]
        return f"<!-- {group} -->\n\n{tables[group]}\n\n<!-- end -->"

    return ENTRY.sub(table, page)


if __name__ == "__main__":
    main()
