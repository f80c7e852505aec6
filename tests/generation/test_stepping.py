"""`check_stepping`: what may be stepped, what may not, and which layer the error names."""

import keras
import numpy as np
import pytest
from blocks import decoder_block, encoder_block
from compare import assert_best
from keras import layers, ops
from mixers import HEADS, MIXERS, OwnConvolution, decoder, head, ids, refusal, translator
from small_models import (
    BLOCK,
    DIM,
    TARGET_SIZE,
    AddToLogit,
    brute_force,
    decoder_only,
    encoder_decoder,
    randomize,
)

from keras_tfm.generation import Generator, check_stepping
from keras_tfm.layers import (
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    TokenEmbedding,
)
from keras_tfm.models import transformer

# Accepted


@pytest.mark.parametrize("normalize_first", [False, True])
def test_blocks_may_be_stepped(normalize_first):
    check_stepping(encoder_decoder(normalize_first))
    check_stepping(decoder_only(normalize_first))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: layers.Dense(DIM)(x),
        lambda x: layers.LayerNormalization()(x),
        lambda x: layers.BatchNormalization()(x),
        lambda x: layers.Dropout(0.5)(x),
        lambda x: layers.GaussianNoise(0.5)(x),
        lambda x: layers.Activation("gelu")(x),
        lambda x: layers.Add()([x, layers.Dense(DIM)(x)]),
        lambda x: layers.Multiply()([x, layers.Dense(DIM, activation="sigmoid")(x)]),
        lambda x: layers.Concatenate()([x, layers.Dense(3)(x)]),
        lambda x: layers.Conv1D(DIM, 1)(x),
        lambda x: ops.sin(x) + 2.0 * x,
    ],
    ids=[
        "dense",
        "norm",
        "batch_norm",
        "dropout",
        "noise",
        "activation",
        "add",
        "multiply",
        "concatenate",
        "conv_1",
        "operations",
    ],
)
def test_what_leaves_positions_alone_may_be_stepped(mix):
    check_stepping(decoder(mix))


def test_two_embeddings_of_the_target_may_be_stepped():
    target = ids()
    x = layers.Add()([layers.Embedding(TARGET_SIZE, DIM)(target) for _ in range(2)])
    x = MultiHeadSelfAttention(**HEADS, causal=True)(x)
    check_stepping(randomize(keras.Model(target, head(x)), 0))


def test_a_layer_called_twice_may_be_stepped():
    block = decoder_block(cross_attention=False, **BLOCK)
    check_stepping(decoder(lambda x: block(block(x))))


def nested(layer, name="inner"):
    features = keras.Input((None, DIM))
    return keras.Model(features, layer(features), name=name)


def test_a_nested_model_may_be_stepped():
    inner = nested(MultiHeadSelfAttention(**HEADS, causal=True))
    check_stepping(decoder(lambda x: inner(inner(x))))


@pytest.mark.parametrize("structure", [dict, lambda x: list(x.values()), lambda x: {**x}])
def test_any_structure_of_inputs_may_be_stepped(structure):
    check_stepping(encoder_decoder(structure=structure))


@pytest.mark.parametrize(
    "dtype",
    [
        "mixed_bfloat16",
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ("float64", "mixed_float16", "bfloat16")
        ),
    ],
)
def test_any_precision_may_be_stepped(dtype):
    model, source = encoder_decoder(dtype=dtype), np.array([[3, 4]])
    tokens = Generator(model, 5, 1)(source).tokens
    # bfloat16 keeps 8 bits, and a step sums in another order.
    assert_best(model({"source": source, "target": tokens[:, :-1]}), tokens[:, 1:], 2.0**-5)


def test_a_global_policy_may_be_stepped():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        check_stepping(transformer(TARGET_SIZE, dim=6, num_layers=2, num_heads=2))
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_vocabulary_of_two_may_be_stepped():
    model = transformer(2, dim=6, num_layers=1, num_heads=2, intermediate_dim=17)
    randomize(model, 1)
    source = np.array([[1, 1]])
    tokens = Generator(model, 5, 0)(source).tokens
    assert_best(model({"source": source, "target": tokens[:, :-1]}), tokens[:, 1:], 1e-5)


def test_a_pooled_source_may_be_stepped():
    """It mixes positions of the source, which is whole at every step."""

    def mix(x, context):
        pooled = layers.GlobalAveragePooling1D()(context)
        return layers.Add()([x, layers.Reshape((1, DIM))(pooled)])

    check_stepping(translator(mix))


def test_a_causal_encoder_is_stepped_or_refused():
    """Its length is the source's, which is more than a cache of `max_length` holds."""
    model = translator(encode=MultiHeadSelfAttention(**HEADS, causal=True, name="causal_encoder"))
    source = [3, 4, 5, 6, 7]
    try:
        tokens = Generator(model, 3, 1)(np.array([source])).tokens.tolist()
    except ValueError as error:
        assert str(error).startswith("model cannot be stepped")
        assert "\n" not in str(error)
    else:
        assert tokens == [brute_force(model, source, [1], 3)[0]]


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_a_forbidden_token_may_be_stepped(value):
    check_stepping(decoder(lambda x: x))
    check_stepping(encoder_decoder(head=lambda x: AddToLogit(0, value)(head(x))))


def test_weights_are_left_as_they_are():
    model = encoder_decoder()
    model.get_layer("head").bias.assign(np.zeros(TARGET_SIZE))  # random in the check
    before = [np.array(w) for w in model.get_weights()]
    check_stepping(model)
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


# Refused


@pytest.mark.parametrize(
    ("mixer", "positions"),
    [
        pytest.param(
            mixer,
            positions,
            id=f"{mixer}-{'positions' if positions else 'no_positions'}",
            marks=[pytest.mark.slow] * (positions == bool(i % 2)),
        )
        for i, mixer in enumerate(MIXERS)
        for positions in (False, True)
    ],
)
def test_mixers_of_positions_are_named(mixer, positions):
    layer = MIXERS[mixer]()
    assert refusal(decoder(layer, positions)) == "mixer"


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in ("conv_causal", "lstm", "both_ways")))
        for x in MIXERS
    ],
)
def test_mixers_of_positions_are_named_in_a_translator(mixer):
    layer = MIXERS[mixer]()
    model = translator(lambda x, context: layer(x))
    assert refusal(model) == "mixer"


class Gate(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(DIM,))

    def call(self, x):
        return self.scale * x


@pytest.mark.parametrize("scale", [0.0, 1e-5], ids=["re_zero", "layer_scale"])
def test_a_mixer_that_a_gate_hides_until_training_is_named(scale):
    mixer, gate = MIXERS["conv_same"](), Gate()
    model = decoder(lambda x: layers.Add()([x, gate(mixer(x))]))
    gate.scale.assign(np.full(DIM, scale))
    assert refusal(model) == "mixer"


def test_a_mixer_of_zeros_is_named():
    mixer = MIXERS["conv_same"]()
    model = decoder(lambda x: layers.Add()([x, mixer(x)]))
    mixer.set_weights([np.zeros(x.shape) for x in mixer.weights])
    mixer.trainable = False
    check_stepping(model)  # of frozen zeros nothing follows
    mixer.trainable = True
    assert refusal(model) == "mixer"


def padded(between):
    """A convolution after zeros that the rule of `ZeroPadding1D` does not cover."""
    convolution = layers.Conv1D(DIM, 3, name="mixer")
    return lambda x: convolution(between(layers.ZeroPadding1D((1, 0))(x)))


@pytest.mark.parametrize(
    ("mix", "name"),
    [
        (padded(lambda x: layers.ReLU(name="relu")(layers.ZeroPadding1D((1, 0))(x))), "relu"),
        (padded(layers.ZeroPadding1D((1, 0))), "mixer"),
        (lambda x: layers.Cropping1D((0, 1), name="crop")(layers.ZeroPadding1D((1, 0))(x)), "crop"),
    ],
    ids=["relu", "two_paddings", "cropping"],
)
def test_a_layer_that_fails_on_one_token_is_named(mix, name):
    assert refusal(decoder(mix)) == name


class Mean(layers.Layer):
    """Adds a share of the mean of all tokens."""

    def __init__(self, share, **options):
        super().__init__(**options)
        self.share = share

    def call(self, x):
        return x + self.share * ops.mean(x, axis=1, keepdims=True)


class RunningMean(Mean):
    """Adds a share of the mean of all tokens so far: causal, but without a cache."""

    def call(self, x):
        mean = ops.cumsum(x, axis=1) / ops.cumsum(ops.ones_like(x), axis=1)
        return x + self.share * mean


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(
    ("layer", "share"), [(Mean, 0.1), (Mean, 0.02), (Mean, 0.005), (RunningMean, 0.02)]
)
def test_half_precision_hides_no_mixer(policy, layer, share):
    """Its rounding is 0.004, that of all layers up to 0.05; later tokens change no causal output.

    A running mean is told from rounding by its size alone: 0.02 is five times the rounding.
    """
    keras.config.set_dtype_policy(policy)
    try:
        assert refusal(decoder(layer(share, name="mixer"))) == "mixer"
        check_stepping(decoder(lambda x: x))
    finally:
        keras.config.set_dtype_policy("float32")


def test_an_operation_that_mixes_in_half_precision_is_refused():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert refusal(decoder(lambda x: x + 0.02 * ops.mean(x, axis=1, keepdims=True)))
        # Its outputs have no axis of tokens second; those after it are equal.
        check_stepping(decoder(lambda x: ops.transpose(ops.transpose(x, (1, 0, 2)), (1, 0, 2))))
    finally:
        keras.config.set_dtype_policy("float32")


def test_pooling_over_the_target_is_named():
    def mix(x):
        pooled = layers.GlobalAveragePooling1D(keepdims=True, name="mixer")(x)
        return layers.Add(name="add")([x, pooled])

    assert refusal(decoder(mix)) in {"mixer", "add"}


def test_keras_attention_is_named():
    attention = layers.MultiHeadAttention(2, 3, name="mixer")
    assert refusal(decoder(lambda x: attention(x, x))) == "mixer"


def test_attention_to_the_target_as_a_context_is_named():
    """Cross-attention keeps its first context, here the first token alone."""
    cross = MultiHeadCrossAttention(**HEADS, name="mixer")
    assert refusal(decoder(lambda x: cross(x, x))) == "mixer"


def test_swapped_arguments_are_named():
    """Queries from the source, keys from the target: some notes have it so."""
    cross = MultiHeadCrossAttention(**HEADS, name="mixer")
    source, target = ids("source"), ids()
    x = TokenEmbedding(TARGET_SIZE, DIM)(target)
    context = cross(TokenEmbedding(TARGET_SIZE, DIM)(source), x)
    x = decoder_block(**BLOCK, name="block")(x, context)
    model = keras.Model({"source": source, "target": target}, head(x), name="model")
    assert refusal(randomize(model, 0)) in {"mixer", "block"}


def test_a_roll_over_positions_is_refused():
    """It is an operation, no layer: the error may name the first layer after it."""
    assert refusal(decoder(lambda x: ops.roll(x, 1, axis=1)))[:4] in {"roll", "bloc"}


@pytest.mark.parametrize("rate", [4, 6])
def test_a_convolution_that_reaches_far_back_is_refused(rate):
    """It looks one token and `rate` tokens back: over a few tokens alone it seems harmless."""
    model = decoder(OwnConvolution(DIM, 2, padding="causal", dilation_rate=rate, name="mixer"))
    with pytest.raises(ValueError, match="layer 'mixer'"):
        Generator(model, 9, 1)


@keras.saving.register_keras_serializable("test_stepping")
class Tells(keras.layers.Layer):
    """Adds to all positions of a row in which an id occurs."""

    def __init__(self, separator_id, **kwargs):
        super().__init__(**kwargs)
        self.separator_id = separator_id

    def call(self, x, ids):
        found = ops.any(ops.equal(ids, self.separator_id), axis=1)
        return x + ops.cast(found, x.dtype)[:, None, None]

    def compute_output_shape(self, x_shape, ids_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "separator_id": self.separator_id}


@pytest.mark.parametrize("number", [1, 700, 998, 999])
@pytest.mark.parametrize("kind", ["operation", "layer"])
def test_a_mixer_that_one_id_turns_on_is_refused(kind, number):
    target = ids()
    x = layers.Embedding(1000, DIM)(target)
    if kind == "layer":
        x = Tells(number, name="tells")(x, target)
    else:
        found = ops.any(ops.equal(target, number), axis=1, keepdims=True)
        x = x + ops.cast(found, "float32")[..., None]
    x = MultiHeadSelfAttention(**HEADS, causal=True)(x)
    with pytest.raises(ValueError, match="mixes positions of the target"):
        check_stepping(randomize(keras.Model(target, layers.Dense(1000)(x)), 0))


@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask:UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["linear", "sum", "each", "nested"])
def test_probabilities_that_no_last_layer_tells_of_are_refused(kind, dtype):
    target = ids()
    x = layers.Embedding(TARGET_SIZE, DIM, mask_zero=True)(target)
    x = MultiHeadSelfAttention(**HEADS, causal=True, dtype=dtype)(x)
    if kind == "each":
        y = layers.TimeDistributed(layers.Dense(TARGET_SIZE, activation="softmax"))(x)
    elif kind == "nested":
        inner = keras.Input((None, DIM))
        softmax = layers.Dense(TARGET_SIZE, activation="softmax")(inner)
        y = keras.Model(inner, softmax, name="inner")(x)
    else:
        y = ops.softmax(layers.Dense(TARGET_SIZE, dtype=dtype)(x))
        y = layers.Activation("linear", dtype="float32")(y) if kind == "linear" else y + 1e-9
    with pytest.raises(ValueError, match="needs a model that returns logits, got probabilities"):
        check_stepping(randomize(keras.Model(target, y), 0))


def test_a_forbidden_token_hides_nothing():
    """One logit of -1e9 is no measure of the others."""
    mixer = MIXERS["bidirectional"]()
    target = ids()
    x = PositionalEncoding()(TokenEmbedding(TARGET_SIZE, DIM)(target))
    model = keras.Model(target, AddToLogit(0, -1e9)(head(mixer(x))), name="model")
    assert refusal(randomize(model, 0)) == "mixer"


def test_a_mixer_called_on_the_source_first_is_named():
    mixer = MIXERS["conv_same"]()
    assert refusal(translator(lambda x, context: mixer(x), encode=mixer)) == "mixer"


def test_a_mixer_used_in_another_model_is_named():
    mixer = MIXERS["conv_same"]()
    nested(mixer)
    assert refusal(decoder(mixer)) == "mixer"


def test_a_mixer_in_a_nested_model_is_named():
    inner = nested(MIXERS["conv_same"]())
    assert refusal(decoder(inner)) in {"inner", "mixer"}


def test_the_first_of_two_mixers_is_named():
    first = layers.Conv1D(DIM, 3, padding="same", name="first")
    second = layers.LSTM(DIM, return_sequences=True, name="second")
    assert refusal(decoder(lambda x: second(first(x)))) == "first"


def test_a_mixer_on_the_source_is_not_named():
    mixer = MIXERS["bidirectional"]()
    model = translator(lambda x, context: mixer(x), encode=encoder_block(**BLOCK))
    assert refusal(model) == "mixer"


def test_a_fixed_length_is_refused():
    target = keras.Input((5,), dtype="int32", name="target")
    model = keras.Model(target, head(TokenEmbedding(TARGET_SIZE, DIM)(target)), name="model")
    message = r"model cannot be stepped: its input 'target' has a fixed length, 5; .*\(None,\)"
    with pytest.raises(ValueError, match=message):
        check_stepping(model)


def test_a_flattened_target_is_refused():
    """Flatten leaves no axis of time, so that its input has a fixed length."""
    target = keras.Input((5,), dtype="int32", name="target")
    x = layers.Flatten()(TokenEmbedding(TARGET_SIZE, DIM)(target))
    model = keras.Model(target, layers.Reshape((5, TARGET_SIZE))(layers.Dense(5 * TARGET_SIZE)(x)))
    with pytest.raises(ValueError, match="fixed length, 5"):
        check_stepping(model)


def test_logits_without_an_axis_of_time_are_refused():
    target = ids()
    x = layers.GlobalMaxPooling1D(name="mixer")(TokenEmbedding(TARGET_SIZE, DIM)(target))
    assert refusal(keras.Model(target, head(x), name="model")) in {"mixer", "head"}


def test_inputs_that_must_have_one_length_are_refused():
    """A tagger, which adds the source to the target: a step has one target and a whole source."""
    source, target = ids("source"), ids()
    x = layers.Add()([TokenEmbedding(TARGET_SIZE, DIM)(x) for x in (source, target)])
    model = keras.Model({"source": source, "target": target}, head(x), name="model")
    with pytest.raises(ValueError, match="model cannot be stepped") as caught:
        check_stepping(model)
    assert "\n" not in str(caught.value)


def test_stepping_the_source_is_refused():
    with pytest.raises(ValueError, match="small cannot be stepped"):
        check_stepping(encoder_decoder(), target="source")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda x, y: [y, x], "the logits, or with draft heads besides; got 2"),
        (
            lambda x, y: {"logits": y, "features": x},
            "the logits, or with draft heads besides; got 2",
        ),
    ],
)
def test_several_outputs_do_not_generate(outputs, message):
    target = ids()
    x = MultiHeadSelfAttention(**HEADS, causal=True)(TokenEmbedding(TARGET_SIZE, DIM)(target))
    with pytest.raises(ValueError, match=message):
        Generator(keras.Model(target, outputs(x, head(x))), 5, 1)


@pytest.mark.parametrize("outputs", [lambda y: [y], lambda y: {"logits": y}], ids=["list", "dict"])
def test_one_output_generates_in_any_structure(outputs):
    target = ids()
    x = MultiHeadSelfAttention(**HEADS, causal=True)(TokenEmbedding(TARGET_SIZE, DIM)(target))
    plain = randomize(keras.Model(target, head(x)), 0)
    model = keras.Model(target, outputs(plain.output))
    prompt = np.array([[3]])
    expected = Generator(plain, 5)(prompt).tokens.tolist()
    assert Generator(model, 5)(prompt).tokens.tolist() == expected


def test_weights_that_are_not_numbers_are_refused_as_such():
    """A diverged training is no layer that mixes positions."""
    model = encoder_decoder()
    model.get_layer("head").bias.assign(np.full(TARGET_SIZE, np.nan))
    with pytest.raises(ValueError, match=r"NaN|nan|finite"):
        check_stepping(model)
