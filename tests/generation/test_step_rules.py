"""Layers with a state: those of Keras, by rules, and ours."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from grids import first_of
from keras import ops

from keras_tfm import layers
from keras_tfm.generation import (
    Beam,
    Contrastive,
    Drafted,
    DraftModel,
    PromptLookup,
    Sample,
    SteppedModel,
    StepRule,
    check_stepping,
    generate,
    register_step,
)
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.layers import DecodingScope

K = keras.layers
# Float32 rounds at 6e-8; the same sums in another order.
FLOAT32 = 1e-5
V, D, T = 13, 8, 9
# Keras's own attention fails on JAX if values are wider than keys.
VALUE_DIM = 3 if keras.backend.backend() == "jax" else 5


class Custom(K.Layer):
    """Layers of Keras inside one of a user."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attend = K.MultiHeadAttention(2, 3, use_bias=False)
        self.recur = K.GRU(D, return_sequences=True)

    def build(self, shape):
        self.attend.build(shape, shape)
        self.recur.build(shape)

    def call(self, x):
        return x + self.attend(x, x, use_causal_mask=True) + self.recur(x)


def padded(layer, zeros):
    return lambda x: layer(K.ZeroPadding1D((zeros, 0))(x))


def stacked_cells():
    return K.RNN([K.LSTMCell(D), K.GRUCell(5)], return_sequences=True)


# What is done with features (B, T, D).
MIXERS = {
    "Conv1D": lambda x: K.Conv1D(D, 3, padding="causal", activation="tanh")(x),
    "Conv1D, dilated, grouped": lambda x: K.Conv1D(
        D, 2, padding="causal", dilation_rate=3, groups=2, use_bias=False
    )(x),
    "Conv1D, two paddings": lambda x: padded(K.Conv1D(D, 3), 2)(x) + padded(K.Conv1D(D, 4), 3)(x),
    "DepthwiseConv1D": lambda x: padded(K.DepthwiseConv1D(4), 3)(x),
    "SeparableConv1D": lambda x: padded(K.SeparableConv1D(D, 3, dilation_rate=2), 4)(x),
    "MaxPooling1D": lambda x: padded(K.MaxPooling1D(3, strides=1), 2)(x),
    "AveragePooling1D": lambda x: padded(K.AveragePooling1D(2, strides=1), 1)(x),
    "LSTM": lambda x: K.LSTM(D, return_sequences=True)(x),
    "LSTM, unrolled, with states": lambda x: K.LSTM(
        D, return_sequences=True, return_state=True, unroll=True
    )(x)[0],
    "GRU": lambda x: K.GRU(5, return_sequences=True)(x),
    "SimpleRNN": lambda x: K.SimpleRNN(D, return_sequences=True)(x),
    "RNN of cells": lambda x: stacked_cells()(x),
    "MultiHeadAttention": lambda x: K.MultiHeadAttention(2, 3, value_dim=VALUE_DIM)(
        x, x, use_causal_mask=True
    ),
    "MultiHeadAttention, window": lambda x: K.MultiHeadAttention(
        2, 4, sliding_window=3, use_gate=True
    )(x, x, use_causal_mask=True),
    "GroupQueryAttention": lambda x: K.GroupQueryAttention(3, 4, 2)(x, x, use_causal_mask=True),
    "cumsum": lambda x: ops.cumsum(x, axis=1),
    "custom": lambda x: Custom()(x),
    "ShortConvolution": lambda x: layers.ShortConvolution(use_bias=True)(x),
    "GatedDeltaNet": lambda x: layers.GatedDeltaNet(4, 3, 5, num_key_heads=2)(x),
    "Mamba2": lambda x: layers.Mamba2(4, 3, 5, num_groups=2)(x),
}
every_mixer = pytest.mark.parametrize("mixer", MIXERS)
some_mixers = pytest.mark.parametrize(
    "mixer",
    first_of(
        [
            "custom",
            "DepthwiseConv1D",
            "Mamba2",
            "GatedDeltaNet",
            "RNN of cells",
            "ShortConvolution",
        ],
        3,
    ),
)


def decoder(mixer, mask_zero=False, seed=0):
    """Two layers of a kind after an embedding, with noise on every weight."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(V, D, mask_zero=mask_zero)(tokens)
    for _ in range(2):
        x = K.LayerNormalization()(x)
        x = K.Dense(D)(MIXERS[mixer](x)) + x
    model = keras.Model(tokens, K.Dense(V)(x))
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        if "float" in variable.dtype:
            noise = generator.normal(scale=0.5, size=variable.shape)
            variable.assign(np.array(variable) + noise.astype("float32"))
    return model


def ids(rows=2, length=T, seed=1):
    return np.random.default_rng(seed).integers(1, V, (rows, length))


def stepped(model, tokens, sizes, **options):
    """The logits of steps of these sizes."""
    model, cache, position, parts = SteppedModel(model), None, 0, []
    for size in sizes:
        with DecodingScope(cache, position=position, length=T, **options) as scope:
            parts.append(to_numpy(model.step({}, tokens[:, position : position + size])))
        cache, position = scope.cache, position + size
    return np.concatenate(parts, axis=1)


@every_mixer
def test_stepped_equals_full(mixer):
    model, tokens = decoder(mixer), ids()
    assert_close(stepped(model, tokens, [1, 1, 3, 1, 2, 1]), to_numpy(model(tokens)), FLOAT32)
    check_stepping(model, length=T)


@pytest.mark.default  # JAX runs some of them, too
@every_mixer
def test_left_padding_changes_nothing(mixer):
    model, tokens = decoder(mixer), ids()
    padding = np.array([0, 3], "int32")
    tokens[1, :3] = 0
    actual = stepped(model, tokens, [5, 1, 2, 1], padding=padding)
    assert_close(actual[:1], to_numpy(model(tokens[:1])), FLOAT32)
    assert_close(actual[1:, 3:], to_numpy(model(tokens[1:, 3:])), FLOAT32)


@pytest.mark.parametrize("mixer", ["LSTM", "GRU", "MultiHeadAttention", "custom"])
def test_a_padding_mask_is_that_of_the_full_pass(mixer):
    model, tokens = decoder(mixer, mask_zero=True), ids()
    tokens[1, 6:] = 0
    actual, expected = stepped(model, tokens, [4, 1, 1, 2, 1]), to_numpy(model(tokens))
    assert_close(actual[:1], expected[:1], FLOAT32)
    assert_close(actual[1:, :6], expected[1:, :6], FLOAT32)


@some_mixers
def test_tokens_that_are_padding_on_the_right_do_not_change_the_state(mixer):
    model, tokens = decoder(mixer), ids()
    steps = SteppedModel(model)
    cache = None
    for position, size, count in ((0, 4, 3), (3, 4, 2), (5, 1, 1)):
        chunk = np.array(tokens[:, position : position + size])
        chunk[:, count:] = 7
        count_tensor = ops.convert_to_tensor(count, "int32")
        with DecodingScope(cache, position=position, length=T, count=count_tensor) as scope:
            logits = to_numpy(steps.step({}, chunk))
        cache = scope.cache
    assert_close(logits[:, 0], to_numpy(model(tokens[:, :6]))[:, -1], FLOAT32)


def greedy(model, prompt, length):
    """Greedy tokens by full passes."""
    rows = np.array(prompt)
    while rows.shape[1] < length:
        best = np.argmax(to_numpy(model(rows))[:, -1], axis=-1)
        rows = np.concatenate([rows, best[:, None]], axis=1)
    return rows


@some_mixers
def test_greedy_tokens_are_those_of_full_passes(mixer):
    model = decoder(mixer)
    for length in (1, 3):
        assert np.all(generate(model, ids(2, length), T).tokens == greedy(model, ids(2, length), T))


@some_mixers
def test_rows_of_different_lengths_generate_as_alone(mixer):
    model = decoder(mixer)
    rows = [[3, 4], [5, 6, 7, 8, 9], [2]]
    together = generate(model, rows, T).tokens
    for row, tokens in zip(rows, together, strict=True):
        assert np.all(tokens == generate(model, [row], T).tokens[0])


@some_mixers
def test_beams_are_those_of_a_search_by_full_passes(mixer):
    model, prompt, width = decoder(mixer), ids(1, 3), 3
    hypotheses = [(0.0, prompt[0].tolist())]
    while len(hypotheses[0][1]) < T:
        longer = []
        for score, text in hypotheses:
            logits = to_numpy(model(np.array([text])))[0, -1].astype("float64")
            logits -= np.log(np.exp(logits).sum())
            longer += [(score + x, [*text, token]) for token, x in enumerate(logits)]
        hypotheses = sorted(longer, reverse=True)[:width]
    found = generate(model, prompt, T, strategy=Beam(width, length_penalty=0.0, hypotheses=width))
    assert found.tokens[0].tolist() == [text for _, text in hypotheses]


@pytest.mark.parametrize(
    ("mixer", "rows", "length"),
    first_of(
        [
            ("custom", 3, 3),
            ("LSTM", 1, 7),
            ("DepthwiseConv1D", 1, 3),
            ("GatedDeltaNet", 3, 3),
            ("Mamba2", 2, 3),
        ],
        count=2,
    ),
)
def test_drafts_do_not_change_the_tokens(mixer, rows, length):
    """A step of 8 tokens begins before the end of a prompt of 5, in a row of 9."""
    model, prompt = decoder(mixer), ids(rows, 5)
    sample = Sample(seed=4)
    drafted = Drafted(PromptLookup(), length=length, strategy=sample)
    assert np.all(
        generate(model, prompt, T, strategy=drafted).tokens
        == generate(model, prompt, T, strategy=sample).tokens
    )


@pytest.mark.parametrize(
    ("mixer", "prompt_length"), first_of([("custom", 2), ("LSTM", 5), ("DepthwiseConv1D", 1)])
)
def test_a_recurrent_draft_model_guesses_itself(mixer, prompt_length):
    """The same model as its own draft: every draft is right, so each step yields n + 1 tokens."""
    model, prompt = decoder(mixer), ids(1, prompt_length)
    length = prompt_length + 12
    drafted = generate(model, prompt, length, strategy=Drafted(DraftModel(model), length=3))
    assert np.all(drafted.tokens == generate(model, prompt, length).tokens)
    loop = GenerationLoop(
        model, {}, "tokens", prompt, length, strategy=Drafted(DraftModel(model), length=3)
    )
    assert int(loop.run()["passes"]) == 3


def test_a_contrastive_search_steps_its_candidates():
    model = decoder("custom")
    found = generate(model, ids(1, 3), T, strategy=Contrastive(top_k=3, alpha=0.0))
    assert np.all(found.tokens == generate(model, ids(1, 3), T).tokens)


def test_a_sequence_to_sequence_model_of_keras_begins_with_the_encoders_state():
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    _, h, c = K.LSTM(D, return_state=True)(K.Embedding(V, D)(source))
    y, _, _ = K.LSTM(D, return_sequences=True, return_state=True)(
        K.Embedding(V, D)(target), initial_state=[h, c]
    )
    model = keras.Model([source, target], K.Dense(V)(y))
    for variable in model.variables:
        variable.assign(np.random.default_rng(6).normal(size=variable.shape))
    check_stepping(model)
    rows = np.array([[3, 4, 5], [6, 7, 8]])
    found = generate(model, {"source": rows}, T, start_id=1).tokens
    expected = np.ones((2, 1), int)
    while expected.shape[1] < T:
        logits = to_numpy(model([rows, expected]))
        expected = np.concatenate([expected, logits[:, -1:].argmax(-1)], axis=1)
    assert np.all(found == expected)
    beams = generate(model, {"source": rows}, T, start_id=1, strategy=Beam(3))
    assert beams.tokens.shape == (2, T)


def test_a_copy_of_a_stepped_model_computes_with_its_own_weights():
    model = decoder("LSTM")
    SteppedModel(model)
    copy = keras.models.clone_model(model)
    copy.set_weights([2 * x for x in model.get_weights()])
    tokens = ids()
    assert_close(stepped(copy, tokens, [4, 5]), to_numpy(copy(tokens)), FLOAT32)


def test_truth_values_are_counted():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    segments = ops.cumsum(ops.equal(tokens, 3), axis=1)
    x = layers.TokenEmbedding(V, D, mask_zero=True)(tokens) + K.Embedding(T + 1, D)(segments)
    model = keras.Model(tokens, K.Dense(V)(x))
    tokens = np.where(ids() < V // 2, 3, ids())
    assert_close(stepped(model, tokens, [2, 1, T - 3]), to_numpy(model(tokens)), FLOAT32)


class Mean(K.Layer):
    """The mean of the tokens so far."""

    def call(self, x):
        count = ops.reshape(ops.arange(1, ops.shape(x)[1] + 1, dtype=x.dtype), (1, -1, 1))
        return ops.cumsum(x, axis=1) / count


class MeanRule(StepRule):
    """Sum and number of the tokens so far."""

    def begin(self, layer, x, rows):
        return {"sum": ops.zeros((rows, x.shape[-1])), "count": ops.zeros((rows, 1))}

    def token(self, layer, x, state):
        state = {"sum": state["sum"] + x, "count": state["count"] + 1.0}
        return state["sum"] / state["count"], state


def mean_model(layer_class=Mean):
    tokens = keras.Input((None,), dtype="int32")
    x = layers.TokenEmbedding(V, D)(tokens)
    return keras.Model(tokens, K.Dense(V)(layer_class()(x) + x))


def test_a_rule_of_a_user():
    register_step(Mean, MeanRule())
    model, tokens = mean_model(), ids()
    assert_close(stepped(model, tokens, [4, 1, 3, 1]), to_numpy(model(tokens)), FLOAT32)
    rows = [[3, 4], [5, 6, 7, 8, 9]]
    together = generate(model, rows, T).tokens
    assert np.all(together[0] == generate(model, rows[:1], T).tokens[0])
    assert generate(model, rows, T, strategy=Beam(3)).tokens.shape == (2, T)


class Changing(Mean):
    """A layer whose rule is wrong."""


class ChangingRule(MeanRule):
    """A state whose structure changes."""

    def token(self, layer, x, state):
        y, state = super().token(layer, x, state)
        return y, [state["sum"], state["count"]]


def over_tokens(x):
    attention = K.MultiHeadAttention(2, 3, attention_axes=(1,), name="over_tokens")
    return attention(x, x, use_causal_mask=True)


class Sometimes(keras.Layer):
    """A convolution over several tokens, or over one, and a projection otherwise."""

    def __init__(self, of_one=False, **options):
        super().__init__(**options)
        self.of_one = of_one
        self.convolution, self.dense = K.Conv1D(D, 3, padding="causal"), K.Dense(D)

    def build(self, shape):
        self.convolution.build(shape)
        self.dense.build(shape)

    def call(self, x):
        return self.convolution(x) if (x.shape[1] == 1) == self.of_one else self.dense(x)

    def compute_output_shape(self, shape):
        return shape


def refused(mix, message):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = mix(layers.TokenEmbedding(V, D)(tokens))
    model = keras.Model(tokens, K.Dense(V)(x), name="model")
    with pytest.raises(ValueError, match=message) as error:
        check_stepping(model)
    assert "\n" not in str(error.value)


class Triangular(K.Layer):
    """Causal by a mask that the layer makes itself."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = K.MultiHeadAttention(2, 3)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        places = ops.arange(ops.shape(x)[1])
        return self.attention(x, x, attention_mask=(places[:, None] >= places)[None])


class Counting(K.Layer):
    """Adds positions from 0 to what it gets."""

    def build(self, shape):
        self.table = K.Embedding(T, shape[-1])
        self.table.build(())

    def call(self, x):
        return x + self.table(ops.arange(ops.shape(x)[1]))


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (
            lambda x: K.Bidirectional(K.LSTM(D, return_sequences=True), name="both")(x),
            "layer 'both' gives another result",
        ),
        (
            lambda x: K.LSTM(D, return_sequences=True, go_backwards=True, name="back")(x),
            "LSTM 'back' cannot be stepped: go_backwards=True reads later tokens first",
        ),
        (
            lambda x: x + K.RepeatVector(1)(K.GRU(D, name="last")(x)),
            "GRU 'last' cannot be stepped: return_sequences=False has one output for all tokens",
        ),
        (lambda x: K.Conv1D(D, 3, padding="same", name="same")(x), "layer 'same' gives another"),
        (
            lambda x: K.MultiHeadAttention(2, 3, name="all")(x, x),
            "layer 'all' gives another result .* use_causal_mask=True, not with an att",
        ),
        (
            Triangular(name="block"),
            "layer 'block' gives another result .* use_causal_mask=True, not with an att",
        ),
        (
            Counting(name="places"),
            "'places' gives another .* keras_tfm.layers.PositionEmbedding",
        ),
        (
            lambda x: K.Attention(name="dots")([x, x], use_causal_mask=True),
            "layer 'dots' gives another result",
        ),
        (
            lambda x: K.Reshape((-1, D))(over_tokens(K.Reshape((-1, D // 2, 2))(x))),
            "'over_tokens' cannot be stepped: .* needs inputs of 3 axes, .* got 4 axes",
        ),
        (
            lambda x: K.Reshape((-1, D))(
                K.TimeDistributed(
                    layers.MultiHeadSelfAttention(1, causal=True, name="inner"), name="slots"
                )(K.Reshape((-1, D // 2, 2))(x))
            ),
            "layer 'slots' does not call the layers inside it as in the step before, .* no entry "
            "'001_inner'$",
        ),
        (Sometimes(name="often"), "layer 'often' (does not call|gives another result)"),
        (Sometimes(True, name="seldom"), "layer 'seldom' (does not call|gives another result)"),
        (lambda x: ops.flip(ops.cumsum(x, axis=1), 1), "gives another result"),
        (
            lambda x: padded(K.MaxPooling1D(2, strides=1, padding="same", name="pool"), 1)(x)[
                :, 1:
            ],
            "cannot be stepped",
        ),
    ],
)
def test_what_cannot_be_stepped_is_refused_in_one_line(mix, message):
    refused(mix, message)


def test_a_stateful_layer_is_refused():
    tokens = keras.Input((None,), batch_size=2, dtype="int32")
    x = K.LSTM(D, return_sequences=True, stateful=True, name="own")(
        layers.TokenEmbedding(V, D)(tokens)
    )
    model = keras.Model(tokens, K.Dense(V)(x))
    with pytest.raises(ValueError, match="LSTM 'own' cannot be stepped: stateful=True"):
        check_stepping(model)


def test_a_rule_whose_state_changes_is_refused():
    register_step(Changing, ChangingRule())
    refused(lambda x: Changing(name="mean")(x), "mean: a step must return a state like the one")


def test_registered_are_only_rules_of_layers():
    with pytest.raises(TypeError, match=r"layer_class must be a class of .*, got 3"):
        register_step(3, MeanRule())
    with pytest.raises(TypeError, match=r"rule must be a StepRule, got 'rule'"):
        register_step(Mean, "rule")
