"""`encode`, `prefill` and `decode`: names, what they take and give, what is refused."""

import functools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from blocks import decoder_block
from keras import layers, ops
from small_exports import small
from small_models import (
    BLOCK,
    DIM,
    SOURCES,
    START,
    TARGET_SIZE,
    AddStyle,
    decoder_only,
    embed,
    encoder_decoder,
    logits_of,
    randomize,
)

from keras_tfm.export.signatures import make
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.generation import Contrastive, Sample
from keras_tfm.layers import MultiHeadSelfAttention, TokenEmbedding

STEPS = ["encode", "prefill", "decode"]
DEFAULTS = {
    "roles": STEPS,
    "batch_size": 1,
    "source_length": 5,
    "prompt_length": 3,
    "max_length": 9,
    "start_id": START,
}
# Two heads, keys of three numbers, values of five.
SELF, CROSS = "cache_000_self_attention", "cache_001_cross_attention"


def made(model=None, **options):
    """The signatures by name; that the model can be stepped is tested elsewhere."""
    request = Request(small() if model is None else model, **{**DEFAULTS, **options})
    with mock.patch.object(make, "check_stepping"):
        return {signature.name: signature for signature in make_signatures(request)}


@functools.cache
def usual(batch_size):
    return made(batch_size=batch_size, source_length=[5, 7], prompt_length=[2, 5])


def inputs(signature):
    return {name: tuple(x.spec.shape) for name, x in signature.inputs.items()}


def outputs(signature):
    results = signature.traced.structured_outputs
    return {name: tuple(x.shape) for name, x in results.items()}


def caches(shapes):
    return {name: shape for name, shape in shapes.items() if name.startswith("cache_")}


# Names


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["encode_5", "prefill_3", "decode"]),
        ({"source_length": [4, 6]}, ["encode_4", "encode_6", "prefill_3", "decode"]),
        ({"source_length": [6, 4]}, ["encode_4", "encode_6", "prefill_3", "decode"]),
        ({"prompt_length": [2, 5]}, ["encode_5", "prefill_2", "prefill_5", "decode"]),
        ({"roles": ["decode", "encode"]}, ["decode", "encode_5"]),
        (
            {"roles": ["generate", "predict"], "source_length": [4, 6], "prompt_length": None},
            ["generate_4", "generate_6", "predict_4", "predict_6"],
        ),
        (
            {"roles": ["generate"], "source_length": [4, 6], "prompt_length": [2, 3]},
            ["generate_4_2", "generate_4_3", "generate_6_2", "generate_6_3"],
        ),
    ],
)
def test_names(options, names):
    assert list(made(**options)) == names


def test_a_source_of_fixed_length_needs_no_name_for_it():
    source = keras.Input((4,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    context = embed(source, "source", 11)
    x = decoder_block(**BLOCK)(embed(target, "target", 13), context)
    model = keras.Model([source, target], layers.Dense(13)(x))
    signatures = made(model, roles=["encode", "decode"], source_length=None)
    assert list(signatures) == ["encode", "decode"]
    assert inputs(signatures["encode"]) == {"source": (1, 4)}


@pytest.mark.parametrize(
    ("max_length", "names"),
    [(192, ["decode"]), (193, ["decode_128", "decode_193"]), (129, ["decode"])],
)
def test_long_caches_have_several_capacities(max_length, names):
    signatures = made(decoder_only(num_layers=1), roles=["decode"], max_length=max_length)
    assert list(signatures) == names
    for signature, capacity in zip(
        signatures.values(), [128, max_length][-len(names) :], strict=True
    ):
        assert signature.settings["capacity"] == capacity
        assert signature.settings["max_length"] == max_length
        assert inputs(signature)[f"{SELF}_key"] == (1, 2, capacity, 3)


# What they take and give


@pytest.mark.parametrize("batch_size", [1, 3])
def test_encode_gives_what_decode_takes(batch_size):
    signatures = usual(batch_size)
    encode, decode = signatures["encode_7"], signatures["decode"]
    assert inputs(encode) == {"source": (batch_size, 7)}
    context = {
        f"{CROSS}_key": (batch_size, 2, 7, 3),
        f"{CROSS}_value": (batch_size, 2, 7, 5),
        f"{CROSS}_mask": (batch_size, 7),
    }
    assert outputs(encode) == context
    assert inputs(decode) == {
        "target": (batch_size, 1),
        "position": (1,),
        **context,
        f"{SELF}_key": (batch_size, 2, 9, 3),
        f"{SELF}_value": (batch_size, 2, 9, 5),
        f"{SELF}_mask": (batch_size, 9),
    }


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_step_gives_logits_and_one_position_of_each_cache(batch_size):
    decode = usual(batch_size)["decode"]
    assert outputs(decode) == {
        "logits": (batch_size, TARGET_SIZE),
        f"{SELF}_key": (batch_size, 2, 1, 3),
        f"{SELF}_value": (batch_size, 2, 1, 5),
        f"{SELF}_mask": (batch_size, 1),
    }


def test_prefill_takes_a_position_and_caches_and_gives_the_positions_of_its_tokens():
    for name, length in (("prefill_2", 2), ("prefill_5", 5)):
        prefill = usual(3)[name]
        assert inputs(prefill)["target"] == (3, length)
        of_decode = {**inputs(usual(3)["decode"]), "target": (3, length)}
        assert inputs(prefill) == of_decode
        assert outputs(prefill) == {
            f"{SELF}_key": (3, 2, length, 3),
            f"{SELF}_value": (3, 2, length, 5),
            f"{SELF}_mask": (3, length),
        }


def test_each_layer_has_its_own_and_one_mask_serves_all():
    signatures = made(small(num_layers=2))
    assert sorted(outputs(signatures["encode_5"])) == [
        f"{CROSS}_key",
        f"{CROSS}_mask",
        f"{CROSS}_value",
        "cache_003_cross_attention_key",
        "cache_003_cross_attention_value",
    ]
    assert sorted(caches(outputs(signatures["decode"]))) == [
        f"{SELF}_key",
        f"{SELF}_mask",
        f"{SELF}_value",
        "cache_002_self_attention_key",
        "cache_002_self_attention_value",
    ]


def test_of_several_sources_all_contexts_have_the_longest_shape():
    signatures = usual(3)
    assert inputs(signatures["encode_5"]) == {"source": (3, 5)}
    assert outputs(signatures["encode_5"]) == outputs(signatures["encode_7"])
    assert outputs(signatures["encode_5"])[f"{CROSS}_value"] == (3, 2, 7, 5)
    padded = signatures["encode_5"].function({"source": tf.constant(SOURCES[:3])})
    assert padded[f"{CROSS}_mask"].numpy()[1].tolist() == [1, 1, 1, 0, 0, 0, 0]


def test_masks_are_integers():
    """LiteRT.js passes no booleans."""
    for signature in usual(3).values():
        assert {x.spec.dtype.name for x in signature.inputs.values()} <= {"int32", "float32"}


def test_a_decoder_alone_has_nothing_but_its_own_caches():
    signatures = made(decoder_only(), roles=["prefill", "decode"], source_length=None)
    names = [f"cache_{i:03d}_self_attention_{part}" for i in (0, 1) for part in ("key", "value")]
    assert sorted(inputs(signatures["decode"])) == sorted(
        [f"{SELF}_mask", *names, "position", "tokens"]
    )
    assert list(inputs(signatures["prefill_3"])) == list(inputs(signatures["decode"]))


def run(signature, given):
    results = signature.function({name: tf.constant(x) for name, x in given.items()})
    return {name: x.numpy() for name, x in results.items()}


def test_a_prefill_that_leaves_nothing_is_refused():
    target = keras.Input((None,), dtype="int32", name="target")
    x = TokenEmbedding(TARGET_SIZE, DIM)(target)
    model = keras.Model(target, layers.Dense(TARGET_SIZE)(x), name="bigrams")
    with pytest.raises(ValueError, match=r"bigrams has no KV cache .* without 'prefill'"):
        made(model, roles=["prefill", "decode"], source_length=None)
    alone = made(model, roles=["decode"], source_length=None, prompt_length=None)
    assert outputs(alone["decode"]) == {"logits": (1, TARGET_SIZE)}


def stepped(signatures, given, tokens, encode="encode_5", prefill=None):
    """Logits (B, T, V) of tokens (B, T), by hand: NumPy's caches, a slice written a step."""
    decode = signatures["decode"]
    known = {name: np.zeros(x.spec.shape, x.spec.dtype.name) for name, x in decode.inputs.items()}
    if encode:
        known.update(run(signatures[encode], given))
    known.update({name: x for name, x in given.items() if name in decode.inputs})
    (target,) = set(decode.inputs) & {"target", "tokens"}

    def write(new, position):
        for name, x in new.items():
            at = [slice(None)] * len(x.shape)
            axis = 1 if name.endswith("mask") else 2
            at[axis] = slice(position, position + x.shape[axis])
            known[name][tuple(at)] = x

    start = 0
    last = 0 if prefill is None else min(2 * prefill, tokens.shape[1] - 1)
    while prefill is not None and start + prefill <= last:  # one chunk, or two
        known[target] = tokens[:, start : start + prefill]
        known["position"] = np.array([start], "int32")
        write(run(signatures[f"prefill_{prefill}"], known), start)
        start += prefill
    logits = []
    for position in range(start, tokens.shape[1]):
        known[target] = tokens[:, position : position + 1]
        known["position"] = np.array([position], "int32")
        results = run(decode, known)
        logits.append(results.pop("logits"))
        write(results, position)
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("prefill", [None, 2, 5])
@pytest.mark.parametrize("encode", ["encode_5", "encode_7"])
def test_steps_of_a_translator_are_the_full_pass(encode, prefill):
    """With its source padded, and in the second row part of a prompt."""
    signatures = usual(3)
    source = np.pad(SOURCES[:3], ((0, 0), (0, 0 if encode == "encode_5" else 2)))
    tokens = np.random.default_rng(0).integers(1, TARGET_SIZE, (3, 8)).astype("int32")
    expected = logits_of(small(), source, tokens)
    # Float32, logits of order 1, one layer.
    actual = stepped(signatures, {"source": source}, tokens, encode, prefill)
    assert actual.shape[1] == {None: 8, 2: 4, 5: 3}[prefill]
    np.testing.assert_allclose(actual, expected[:, -actual.shape[1] :], rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("prefill", [None, 3])
def test_steps_of_a_decoder_alone_are_the_full_pass(prefill):
    model = decoder_only()
    signatures = made(model, roles=["prefill", "decode"], source_length=None)
    tokens = np.random.default_rng(0).integers(1, TARGET_SIZE, (1, 8)).astype("int32")
    actual = stepped(signatures, {}, tokens, None, prefill)
    assert actual.shape[1] == (2 if prefill else 8)
    expected = logits_of(model, tokens)[:, -actual.shape[1] :]
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


# Models of other kinds


@pytest.mark.parametrize("structure", [dict, lambda x: list(x.values())], ids=["dict", "list"])
def test_any_structure_of_inputs(structure):
    model = encoder_decoder(structure=structure)
    signatures = made(model)
    assert list(signatures) == ["encode_5", "prefill_3", "decode"]
    tokens = np.array([[1, 5, 3, 12]], "int32")
    actual = stepped(signatures, {"source": SOURCES[:1]}, tokens)
    expected = logits_of(model, SOURCES[:1], tokens)
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


class AddAverage(layers.Layer):
    """Adds the average of a masked sequence (B, S, D) to every position."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, x, context, x_mask=None, context_mask=None):
        return x_mask

    def call(self, x, context, context_mask=None):
        weights = ops.expand_dims(ops.cast(context_mask, x.dtype), -1)
        total = ops.sum(context * weights, 1, keepdims=True)
        return x + total / ops.sum(weights, 1, keepdims=True)


def styled(encoded=True):
    """A style (B, 3) is added to every target position: each step reads it."""
    style = keras.Input((3,), name="style")
    target = keras.Input((None,), dtype="int32", name="target")
    x = embed(target, "target", TARGET_SIZE)
    x = x + ops.expand_dims(layers.Dense(DIM, name="of_style")(style), 1)
    given = {"style": style, "target": target}
    if encoded:
        given["source"] = keras.Input((None,), dtype="int32", name="source")
        x = decoder_block(**BLOCK)(x, embed(given["source"], "source", 11))
    else:
        x = decoder_block(**BLOCK, cross_attention=False)(x)
    return randomize(keras.Model(given, layers.Dense(TARGET_SIZE)(x), name="styled"), 3)


def stepped_logits(model, signatures, given, tokens, encode):
    """Logits of the full pass and of steps, after no prefill and after one of 3 tokens."""
    expected = np.asarray(model({**given, "target": tokens}))
    for prefill in (None, 3):
        actual = stepped(signatures, given, tokens, encode, prefill)
        yield actual, expected[:, -actual.shape[1] :]


@pytest.mark.parametrize("encoded", [True, False], ids=["translator", "decoder"])
def test_encode_returns_what_every_step_reads(encoded):
    model = styled(encoded)
    signatures = made(model, source_length=5 if encoded else None)
    encode = "encode_5" if encoded else "encode"
    assert outputs(signatures[encode])["encoded_0"] == (1, 1, DIM)
    for name in ("prefill_3", "decode"):
        assert inputs(signatures[name])["encoded_0"] == (1, 1, DIM)
        assert not {"source", "style"} & set(inputs(signatures[name]))
    given = {"style": np.array([[0.3, -1.0, 2.0]], "float32")}
    if encoded:
        given["source"] = SOURCES[1:2]
    tokens = np.array([[1, 5, 3, 12, 4]], "int32")
    for actual, expected in stepped_logits(model, signatures, given, tokens, encode):
        np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


def test_a_step_does_not_contain_the_layers_of_encode():
    model = styled(encoded=False)
    signatures = made(model, source_length=None)
    kernel = model.get_layer("of_style").kernel.value

    def reads_kernel(signature):
        traced = signature.traced
        return any(x is kernel for x in traced.variables)

    assert reads_kernel(signatures["encode"])
    assert not reads_kernel(signatures["decode"])
    assert not reads_kernel(signatures["prefill_3"])


@pytest.mark.parametrize("mask_id", [0, 7])
def test_an_encoded_sequence_is_as_long_as_the_longest_source(mask_id):
    """A step adds the average of the source, which it reads whole, with its mask."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    encoded = TokenEmbedding(11, DIM, mask_id=mask_id)(source)
    x = embed(target, "target", TARGET_SIZE)
    x = AddAverage()(x, encoded)
    x = decoder_block(**BLOCK, cross_attention=False)(x)
    model = randomize(keras.Model([source, target], layers.Dense(TARGET_SIZE)(x)), 3)
    signatures = made(model, source_length=[5, 7])
    for length in (5, 7):
        assert outputs(signatures[f"encode_{length}"]) == {
            "encoded_0": (1, 7, DIM),
            "encoded_1": (1, 7),
        }
    tokens = np.array([[1, 5, 3, 12, 4]], "int32")
    given = {"source": np.array([[3, 9, 4, mask_id, mask_id]], "int32")}
    for actual, expected in stepped_logits(model, signatures, given, tokens, "encode_5"):
        np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


def test_a_step_without_encode_takes_the_inputs_that_it_reads():
    style = keras.Input((DIM,), name="style")
    target = keras.Input((None,), dtype="int32", name="target")
    x = embed(target, "target", TARGET_SIZE)
    x = AddStyle()(x, style)
    x = decoder_block(**BLOCK, cross_attention=False)(x)
    model = randomize(keras.Model([style, target], layers.Dense(TARGET_SIZE)(x)), 3)
    signatures = made(model, roles=["prefill", "decode"], source_length=None)
    for name in ("prefill_3", "decode"):
        assert inputs(signatures[name])["style"] == (1, DIM)
    given = {"style": np.random.default_rng(0).normal(size=(1, DIM)).astype("float32")}
    tokens = np.array([[1, 5, 3, 12, 4]], "int32")
    for actual, expected in stepped_logits(model, signatures, given, tokens, None):
        np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": ["encode"]}, r"'encode' computes caches for 'decode': export .*\['encode'\]"),
        ({"roles": ["prefill", "generate"]}, r"signature 'prefill' computes caches for 'decode'"),
        (
            {"roles": ["prefill", "decode"]},
            r"'decode' of small takes the results of 'encode': export",
        ),
        ({"roles": ["decode", "decode"]}, r"signatures must be among .*got \['decode', 'decode'\]"),
        ({"roles": ["decoder"]}, r"among \['predict', .*, 'stream'\], got \['decoder'\]"),
        ({"prompt_length": None}, "a prefill signature needs a prompt_length"),
        ({"prompt_length": 9}, r"prompt_length must be less than max_length \(9\), got 9"),
        ({"prompt_length": [2, 11]}, r"less than max_length \(9\), got 11"),
        ({"prompt_length": 0}, "prompt_length must be at least 1, got 0"),
        ({"prompt_length": []}, r"prompt_length must be one length or several .*, got \[\]"),
        ({"source_length": [4, 4]}, r"source_length must be .* different ones, got \[4, 4\]"),
        ({"source_length": None}, "input 'source' has shape .* give source_length"),
        ({"max_length": None}, "the signature 'encode' needs max_length, got None"),
        ({"max_length": None, "roles": ["decode"]}, "the signature 'decode' needs max_length"),
        ({"max_length": 1, "prompt_length": None, "roles": ["decode"]}, "must be at least 2"),
        ({"start_id": 13}, r"start_id must be in 0\.\.12, got 13"),
        ({"end_id": [2, 13]}, r"end_id must be in 0\.\.12, got 13"),
        ({"static": False}, r"a SavedModel has the signatures 'predict' and 'generate'"),
        ({"roles": ["generate"], "start_id": None, "prompt_length": None}, "needs a start_id or"),
        ({"roles": ["generate"], "strategy": Sample()}, "Sample draws random numbers"),
        ({"roles": ["encode", "decode"], "strategy": Sample(hypotheses=2)}, "Sample draws random"),
        ({"roles": ["generate"], "strategy": Contrastive()}, "Contrastive reads the features"),
        ({"target": "sauce"}, "no input 'sauce' to step"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        made(**options)
    assert "\n" not in str(caught.value)


def test_a_decoder_alone_has_nothing_to_encode():
    with pytest.raises(ValueError, match=r"small has no input but 'tokens': .* nothing to encode"):
        made(decoder_only())


def test_computed_values_that_a_step_reads_need_encode():
    with pytest.raises(ValueError, match=r"'decode' of styled takes the results of 'encode': exp"):
        made(styled(encoded=False), roles=["decode"], source_length=None)


def test_an_input_that_no_step_reads_is_not_encoded():
    unused = keras.Input((3,), name="unused")
    target = keras.Input((None,), dtype="int32", name="target")
    x = decoder_block(**BLOCK, cross_attention=False)(embed(target, "target", TARGET_SIZE))
    model = keras.Model([unused, target], layers.Dense(TARGET_SIZE)(x), name="alone")
    with pytest.raises(ValueError, match=r"no step of alone reads .*: there is nothing to encode"):
        made(model, source_length=None)


@pytest.mark.parametrize(
    ("mask_zero", "cause"), [(False, "it is not masked"), (True, "loses or ignores the mask")]
)
def test_several_lengths_of_a_source_that_is_not_masked(mask_zero, cause):
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    context = 2.0 * TokenEmbedding(11, DIM, mask_zero=mask_zero)(source)
    x = decoder_block(**BLOCK)(embed(target, "target", 13), context)
    model = keras.Model([source, target], layers.Dense(13)(x), name="model")
    assert "encode_5" in made(model)
    with pytest.raises(
        ValueError, match=rf"several .* of 'source' changes those of model: .*{cause}"
    ):
        made(model, source_length=[4, 6])


def test_a_model_that_cannot_be_stepped():
    def head(x):
        return layers.Dense(13)(MultiHeadSelfAttention(2, head_dim=3, name="mixer")(x))

    options = {**DEFAULTS, "roles": ["encode", "decode"]}
    request = Request(encoder_decoder(head=head), **options)
    with pytest.raises(ValueError, match=r"small cannot be stepped: .* layer 'mixer'"):
        make_signatures(request)
