"""What verification refuses: files of another model, in every preset; and that it keeps good ones.

    python benchmarks/verification.py                # both tables
    python benchmarks/verification.py --good 0       # mutations alone
    python benchmarks/verification.py --mutations 0  # good exports alone

A model is exported once in each preset, and its file is compared with a mutated copy of the model:
12 mutations, of weights and of the graph. Then good exports, of other seeds, with random and with
trained weights, are compared with their own models. Minutes: some 30 on two cores.
"""

import argparse
import os
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import ops

from keras_tfm import models
from keras_tfm.export import VerificationError, export_tflite, verify
from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import (
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionEmbedding,
    Residual,
    RMSNormalization,
    TokenEmbedding,
    TransformerDecoderBlock,
)

VOCABULARY, LENGTH, HEADS = 97, 12, 4
SIZES = {"dim": 64, "num_layers": 2, "num_heads": HEADS, "intermediate_dim": 128}
PRESETS = ("float32", "float16", "int8", "int4", "int8_full")


def bert():
    return models.sequence_classifier(models.bert(VOCABULARY, max_length=LENGTH, **SIZES), 5)


def gpt():
    return models.gpt(VOCABULARY, max_length=LENGTH, **SIZES)


def t5():
    return models.t5(VOCABULARY, head_dim=16, **SIZES)


def composed():
    """A decoder with RMS norms after the sublayers, gated feed-forwards, and a head of its own."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = PositionEmbedding(LENGTH, name="positions")(TokenEmbedding(VOCABULARY, 64)(tokens))
    for i in range(2):
        x = TransformerDecoderBlock(
            self_attention=MultiHeadSelfAttention(HEADS, causal=True, name="self_attention"),
            cross_attention=False,
            feed_forward=FeedForward(96, activation="silu", gated=True, name="feed_forward"),
            residual=Residual(sum_norm=RMSNormalization(epsilon=1e-5, name="norm")),
            name=f"decoder_{i}",
        )(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY, name="head")(x), name="composed")


MODELS = {"bert": bert, "gpt": gpt, "t5": t5, "composed": composed}
ARGUMENTS = {
    "bert": {"source_length": LENGTH},
    "gpt": {"prompt_length": 5, "max_length": LENGTH},
    "t5": {"source_length": LENGTH, "max_length": LENGTH, "start_id": 1},
    "composed": {
        "signatures": ["prefill", "decode"],
        "prompt_length": 5,
        "max_length": LENGTH,
    },
}


def made(name, seed, trained):
    """A model with random weights, of which vectors are random, too, or trained from those."""
    keras.utils.set_random_seed(seed)
    model = MODELS[name]()
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if len(weight.shape) == 1:
            weight.assign(weight + 0.2 * np.tanh(rng.normal(size=weight.shape)))
        elif name != "t5" and "query_key_value" in weight.path:  # attention that tells keys apart
            weight.assign(2.0 * weight)
        elif "embedding" in weight.path or "positions" in weight.path:
            weight.assign(0.5 * rng.normal(size=weight.shape))
    if trained:
        ids = rng.integers(1, VOCABULARY, (64, LENGTH)).astype("int32")
        inputs = {
            x: np.zeros_like(ids) if x == "segments" else ids for x in interface_of(model).names
        }
        labels = ids[:, 0] % 5 if name == "bert" else np.roll(ids, -1, axis=1)
        model.compile(
            keras.optimizers.Adam(2e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        only = next(iter(inputs.values()))
        model.fit(inputs if len(inputs) > 1 else only, labels, batch_size=16, epochs=8, verbose=0)
    return model


def exported(name, model, preset, path, **options):
    """Exports a model in the signatures that `ARGUMENTS` names; int8_full has "predict" alone."""
    arguments = {**ARGUMENTS[name], "quantization": preset}
    if preset == "int8_full":
        rng = np.random.default_rng(9)
        arguments["signatures"], arguments["source_length"] = ["predict"], LENGTH
        arguments.pop("prompt_length", None)
        if name != "t5":
            arguments.pop("max_length", None)
        arguments["representative_data"] = [
            {
                x: rng.integers(
                    0 if x == "segments" else 1, 2 if x == "segments" else VOCABULARY, (1, LENGTH)
                ).astype("int32")
                for x in interface_of(model).names
            }
            for _ in range(100)
        ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "int8_full: XNNPACK")
        return export_tflite(model, path, **arguments, **options)


# The mutations: context managers that change a model.


def layers_of(model, kind):
    return [x for x in sublayers(model) if isinstance(x, kind)]


def weight_of(model, *ends):
    """The last weight whose path ends with one of `ends`, of which the first that fits counts."""
    for end in ends:
        found = [x for x in model.weights if x.path.endswith(end)]
        if found:
            return found[-1]
    raise ValueError(f"{model.name} has no weight {ends}")


@contextmanager
def assigned(*pairs):
    """Weights with other values."""
    before = [keras.ops.convert_to_numpy(x) for x, _ in pairs]
    assert any(not np.array_equal(x, y) for x, (_, y) in zip(before, pairs, strict=True))
    for weight, value in pairs:
        weight.assign(value)
    yield
    for (weight, _), value in zip(pairs, before, strict=True):
        weight.assign(value)


def value(weight):
    return keras.ops.convert_to_numpy(weight)


def attention_zeroed(model):
    attention = layers_of(model, MultiHeadSelfAttention)[-1]
    return assigned(*((x, 0 * value(x)) for x in attention.output_projection.weights))


def feed_forward_shuffled(model):
    kernel = layers_of(model, FeedForward)[-1].outer.kernel
    return assigned((kernel, np.random.default_rng(0).permutation(value(kernel))))


def blocks_swapped(model):
    kind = type(model.get_layer("encoder_0" if model.name.startswith("bert") else "decoder_0"))
    first, second = (
        {x.path.split("/", 1)[1]: x for x in block.weights} for block in layers_of(model, kind)[-2:]
    )
    both = [(first[path], second[path]) for path in first.keys() & second.keys()]
    return assigned(*((x, value(y)) for x, y in both), *((y, value(x)) for x, y in both))


def half_vocabulary_zeroed(model):
    table = layers_of(model, TokenEmbedding)[0].embeddings
    return assigned((table, np.where(np.arange(VOCABULARY)[:, None] < 49, value(table), 0)))


def norm_scale_dropped(model):
    scale = weight_of(model, "feed_forward_residual/norm/gamma", "feed_forward_residual/norm/scale")
    return assigned((scale, np.ones(scale.shape)))


def bias_dropped(model):
    """Of the head; else of a feed-forward network; else (T5) of the relative positions."""
    bias = weight_of(model, "classifier/bias", "head/bias", "outer/bias", "table")
    return assigned((bias, 0 * value(bias)))


def positions_shifted(model):
    table = weight_of(model, "positions/positions", "table")
    return assigned((table, np.roll(value(table), 1, axis=0)))


def head_zeroed(model):
    kernel = layers_of(model, MultiHeadSelfAttention)[-1].output_projection.kernel
    rows = np.arange(kernel.shape[0])[:, None]
    return assigned((kernel, np.where(rows < kernel.shape[0] // HEADS, 0, value(kernel))))


def sign_flipped(model):
    kernel = layers_of(model, FeedForward)[-1].inner.kernel
    return assigned((kernel, -value(kernel)))


@contextmanager
def with_masks(model, changed):
    """Attention whose arguments `changed` rewrites."""
    with ExitStack() as stack:
        for layer in layers_of(model, (MultiHeadSelfAttention, MultiHeadCrossAttention)):
            call = layer.call

            def changed_call(*arguments, call=call, layer=layer, **named):
                return call(*arguments, **changed(layer, arguments[0], named))

            stack.enter_context(mock.patch.object(layer, "call", changed_call))
        yield


def mask_ignored(model):
    """The padding mask; of decoders the causal one."""
    if is_padded(model):
        return with_masks(
            model,
            lambda layer, x, named: {
                key: None if key in ("mask", "x_mask", "context_mask") else y
                for key, y in named.items()
            },
        )
    return causal(model, None)


def mask_off_by_one(model):
    """One key more: of padding in BERT, of the future elsewhere."""
    if not model.name.startswith("bert"):
        return causal(model, lambda b, n: np.tril(np.ones((b, n, n), bool), 1))

    def longer(layer, x, named):
        mask = named.get("mask", named.get("x_mask"))
        return {**named, "mask": ops.concatenate([mask[:, :1], mask[:, :-1]], axis=1)}

    return with_masks(model, longer)


@contextmanager
def causal(model, mask):
    """Causal attention with another mask (b, n, n)."""
    layers = [x for x in layers_of(model, MultiHeadSelfAttention) if x.causal]

    def changed(layer, x, named):
        return (
            {**named, "attention_mask": mask(*x.shape[:2])} if layer in layers and mask else named
        )

    with with_masks(model, changed):
        for layer in layers:
            layer.causal = False
        yield
        for layer in layers:
            layer.causal = True


def is_padded(model):
    return any(x.mask_id is not None for x in layers_of(model, TokenEmbedding))


@contextmanager
def wrong_activation(model):
    layer = layers_of(model, FeedForward)[-1]
    before = layer.activation
    layer.activation = keras.activations.tanh
    yield
    layer.activation = before


MUTATIONS = (
    attention_zeroed,
    feed_forward_shuffled,
    blocks_swapped,
    half_vocabulary_zeroed,
    norm_scale_dropped,
    bias_dropped,
    positions_shifted,
    head_zeroed,
    sign_flipped,
    mask_ignored,
    mask_off_by_one,
    wrong_activation,
)


def refused(model, path):
    """The reason why verification refuses the file; None if it accepts it."""
    try:
        verify(model, path)
    except VerificationError as error:
        return str(error)
    return None


def mutated(name, preset, folder, mutations=MUTATIONS, seed=1, trained=True):
    """Of each mutation whether verification refuses it, after a check that it keeps the file."""
    model = made(name, seed, trained)
    path = Path(folder) / "model.tflite"
    exported(name, model, preset, path)
    result = {}
    for mutation in mutations:
        with mutation(model):
            result[mutation.__name__] = refused(model, path) is not None
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=len(MUTATIONS))
    parser.add_argument("--good", type=int, default=100)
    parser.add_argument("--seed", type=int, default=100, help="of the first good model")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    arguments = parser.parse_args()
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.mutations:
            mutations = MUTATIONS[: arguments.mutations]
            print(
                "| model | preset |",
                " | ".join(x.__name__.replace("_", " ") for x in mutations),
                "|",
            )
            print("|---|---|" + "---|" * len(mutations))
            caught = total = 0
            for name in arguments.models:
                for preset in arguments.presets:
                    found = mutated(name, preset, folder, mutations)
                    cells = ("refused" if x else "**kept**" for x in found.values())
                    print(f"| {name} | {preset} |", " | ".join(cells), "|", flush=True)
                    caught, total = caught + sum(found.values()), total + len(found)
            print(f"\n{caught} of {total} mutations refused, {time.time() - start:.0f} s\n")
        good(arguments, folder)


def good(arguments, folder):
    """Exports that must be kept."""
    start, bad = time.time(), 0
    cases = [(x, y) for x in arguments.models for y in arguments.presets]
    largest = {}
    seconds = 0.0
    for number in range(arguments.good):
        name, preset = cases[number % len(cases)]
        seed = arguments.seed + number // len(cases)
        model = made(name, seed, trained=bool(seed % 2))
        path = Path(folder) / "good.tflite"
        exported(name, model, preset, path, verify=False)
        begun = time.time()
        try:
            checks = verify(model, path).checks
        except VerificationError as error:
            bad += 1
            checks = error.verification.checks
            print(f"refused: {name}, {preset}, seed {seed}: {error}", flush=True)
        seconds += time.time() - begun
        for x in checks:
            before = largest.get(preset, (0.0, 0.0))
            here = (x.relative_error / x.tolerance, x.graph_error / x.graph_tolerance)
            largest[preset] = tuple(map(max, before, here))
    if arguments.good:
        print("| preset | error / tolerance, at most | graph error / tolerance, at most |")
        print("|---|---:|---:|")
        for preset, (error, graph) in largest.items():
            print(f"| {preset} | {error:.2f} | {graph:.2f} |")
        print(
            f"\n{bad} of {arguments.good} good exports refused, {time.time() - start:.0f} s, "
            f"of which verification {seconds:.0f} s"
        )


if __name__ == "__main__":
    main()
