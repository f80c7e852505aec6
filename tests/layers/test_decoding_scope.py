import functools

import keras
import numpy as np
import pytest
from blocks import decoder_block
from compare import assert_close, to_numpy
from execution import MODES, compiled, tensorflow_only
from keras import ops
from keras_weights import built, randomize

from keras_tfm.layers import (
    ALiBi,
    DecodingScope,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    PositionEmbedding,
    RelativePositionBias,
    RelativePositionEmbedding,
    RotaryEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_tfm.layers.decoding.visibility import Branches

# Float32 rounds at 6e-8; the same sums in another order, through up to five blocks.
FLOAT32 = 1e-5

B, T, S, D, V = 2, 7, 5, 6, 11
# How many tokens each step is given.
STEPS = {
    "ones": [1] * 7, "twos": [2, 2, 2, 1], "threes": [3, 3, 1], "prefill": [5, 1, 1], "whole": [7]
}  # fmt: skip
# Rows that end, that begin with padding, and that have a gap.
TARGET = np.array([[3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 0, 0, 0, 0]])
LEFT = np.array([[0, 0, 3, 4, 5, 6, 7], [0, 1, 2, 0, 3, 0, 4]])
SOURCE = np.array([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]])


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(8).normal(size=(B, S, D)).astype("float32")


def stepped(function, steps, length=T, position=lambda p: p, **options):
    """The outputs of `function(start, end)`, called step by step, joined; and the last cache."""
    outputs, cache, start = [], None, 0
    for n in steps:
        start_position = position(start) if start else 0
        with DecodingScope(cache, position=start_position, length=length, **options) as scope:
            outputs.append(to_numpy(function(start, start + n)))
        cache, start = scope.cache, start + n
    return np.concatenate(outputs, axis=1), cache


@functools.cache
def decoder_only(num_layers=2, first=False, **options):
    """Ids (B, T) to logits, tied, positions and all."""
    embedding = TokenEmbedding(V, D, scale=True, mask_zero=True)
    target = keras.Input((None,), dtype="int32", name="target")
    x = PositionalEncoding()(embedding(target))
    for _ in range(num_layers):
        block = decoder_block(13, 2, cross_attention=False, normalize_first=first, **options)
        x = block(x)
    return randomize(keras.Model(target, embedding(x, reverse=True)))


@functools.cache
def encoder_decoder(first=False, num_layers=2):
    """The encoder has an embedding of its own; its norm is one of Keras's."""
    source = keras.Input((None,), dtype="int32", name="source")
    positions = PositionalEncoding()
    context = positions(TokenEmbedding(V, D, mask_zero=True)(source))
    context = TransformerEncoderBlock(13, 2, normalize_first=first)(context)
    context = keras.layers.LayerNormalization()(context)
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = TokenEmbedding(V, D, scale=True, mask_zero=True)
    x = positions(embedding(target))
    for _ in range(num_layers):
        x = TransformerDecoderBlock(13, 2, normalize_first=first)(x, context)
    return randomize(keras.Model([source, target], embedding(x, reverse=True)))


# Stepped = full pass


@tensorflow_only
@pytest.mark.parametrize(
    "position",
    [PositionEmbedding, PositionalEncoding, ALiBi, RelativePositionBias, RotaryEmbedding],
)
def test_padding_at_the_end_of_a_step_may_exceed_the_length(x, position):
    """As on a device: the position is a tensor, and the last tokens are padded to three."""
    import tensorflow as tf

    adds = position in (PositionEmbedding, PositionalEncoding)
    position = position(T) if position is PositionEmbedding else position()
    part = {} if adds else {"position": position}
    layer = MultiHeadSelfAttention(2, head_dim=4, causal=True, **part)
    positions = position if adds else keras.layers.Identity()
    layer(positions(x))
    for seed, one in enumerate((layer, positions)):
        randomize(one, seed)
    whole = layer(positions(x))

    @tf.function(autograph=False)
    def step(cache, position, tokens):
        with DecodingScope(cache, position=position, length=T, capacity=T + 2) as scope:
            y = layer(positions(tokens))
        return y, scope.cache

    with DecodingScope(length=T, capacity=T + 2) as scope:
        outputs = [layer(positions(x[:, :3]))]
    cache = scope.cache
    padded = np.concatenate([x, np.full((B, 2, D), 9.0, "float32")], axis=1)
    for start in (3, 6):  # positions 6, 7 and 8; the last is 6
        y, cache = step(cache, tf.constant(start), padded[:, start : start + 3])
        outputs.append(y)
    assert_close(ops.concatenate(outputs, axis=1)[:, :T], whole, FLOAT32)
    assert next(iter(cache.values()))["key"].shape[2] == T + 2


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 2},
        {"num_heads": 3, "head_dim": 7, "value_dim": 11},
        {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
    ],
    ids=["plain", "widths", "grouped"],
)
def test_self_attention(x, options, steps, padded):
    layer = built(MultiHeadSelfAttention(**options, causal=True), (B, T, D))
    masks = LEFT != 0 if padded else None

    def step(start, end):
        return layer(x[:, start:end], mask=None if masks is None else masks[:, start:end])

    actual, _ = stepped(step, steps)
    assert_close(actual, layer(x, mask=masks), FLOAT32)


@pytest.mark.parametrize("masks", ["none", "padding", "pairs"])
@pytest.mark.parametrize("steps", [STEPS["ones"], STEPS["threes"]], ids=["ones", "threes"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_key_value_heads": 2, "window": 3, "position": RotaryEmbedding},
        {"position": ALiBi},
        {"position": RelativePositionBias},
        {"position": functools.partial(RelativePositionEmbedding, max_distance=3)},
        {"num_key_value_heads": 1, "soft_cap": 2.0},
    ],
    ids=["rotary-window", "alibi", "bias", "shaw", "cap"],
)
def test_queries_may_read_their_own_keys_from_the_cache(x, options, steps, masks):
    """With `write_first`; the first step begins an empty cache, the others write before."""
    options = {name: part() if name == "position" else part for name, part in options.items()}
    layer = built(MultiHeadSelfAttention(4, head_dim=6, causal=True, **options), (B, T, D))
    mask = LEFT != 0 if masks == "padding" else None
    pairs = np.random.default_rng(3).random((B, T, T)) < 0.6 if masks == "pairs" else None

    def step(start, end):
        return layer(
            x[:, start:end],
            mask=None if mask is None else mask[:, start:end],
            attention_mask=None if pairs is None else pairs[:, start:end, : T if start else end],
        )

    actual, cache = stepped(step, steps, write_first=True)
    assert_close(actual, layer(x, mask=mask, attention_mask=pairs), FLOAT32)
    _, wanted = stepped(step, steps)
    for name, entry in wanted.items():
        found = {part: to_numpy(array) for part, array in cache[name].items()}
        found["value"] = found.pop("transposed_value").swapaxes(-1, -2)
        assert found.keys() == entry.keys()
        for part, array in entry.items():
            np.testing.assert_array_equal(found[part], to_numpy(array))


@pytest.mark.parametrize("target", [TARGET, LEFT], ids=["right", "left"])
def test_a_model_whose_queries_read_their_own_keys_from_the_cache(target):
    """Its layers share one padding mask, which the first of them stores."""
    model = decoder_only()
    actual, _ = stepped(
        lambda start, end: model(target[:, start:end]), STEPS["twos"], length=9, write_first=True
    )
    assert_close(actual, model(target), FLOAT32)


def test_branches_do_not_read_their_own_keys_from_the_cache():
    branches = Branches(np.ones((B, 2, 4), bool), np.zeros(4, "int32"), 0)
    with pytest.raises(ValueError, match="write_first must be False with branches, got True"):
        DecodingScope(length=T, branches=branches, write_first=True)


@pytest.mark.parametrize("groups", [None, 1, 3])
def test_as_for_xla_keys_are_stored_transposed(x, groups):
    layer = MultiHeadSelfAttention(3, causal=True, num_key_value_heads=groups)
    whole, cache, outputs = to_numpy(layer(x)), None, []
    for start in range(T):
        # A later step keeps the layout of the first.
        with DecodingScope(cache, position=start, length=T, xla=not start) as scope:
            outputs.append(to_numpy(layer(x[:, start : start + 1])))
        cache = scope.cache
    assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)
    (entry,) = cache.values()
    assert {name: tuple(x.shape[2:]) for name, x in entry.items()} == {
        "transposed_key": (D // 3, T),
        "value": (T, D // 3),
    }


@pytest.mark.parametrize("large", [False, True])
def test_as_for_xla_the_table_of_a_tied_output_is_kept_transposed(monkeypatch, large):
    if large:
        monkeypatch.setattr("keras_tfm.layers.embeddings.token_embedding.LARGE", V * D - 1)
    embedding = TokenEmbedding(V, D)
    x = np.random.default_rng(0).normal(size=(B, 1, D)).astype("float32")
    embedding(np.zeros((B, 1), "int32"))
    wanted = to_numpy(embedding(x, reverse=True))
    with DecodingScope(length=T, xla=True) as scope:
        assert_close(embedding(x, reverse=True), wanted, FLOAT32)
    kept = {name: to_numpy(entry["kept"]) for name, entry in scope.cache.items()}
    assert len(kept) == (0 if large else 1)
    for table in kept.values():
        np.testing.assert_array_equal(table, to_numpy(embedding.embeddings).T)
    with DecodingScope(scope.cache, position=1, length=T, xla=True) as after:
        assert_close(embedding(x, reverse=True), wanted, FLOAT32)
    assert not after.new


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_mask_of_pairs_spans_the_cache(x, steps):
    """On the first step, which begins an empty cache, it spans the tokens given."""
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    pairs = np.random.default_rng(3).random((B, T, T)) < 0.6

    def step(start, end):
        seen = T if start else end
        return layer(x[:, start:end], attention_mask=pairs[:, start:end, :seen])

    actual, _ = stepped(step, steps)
    assert_close(actual, layer(x, attention_mask=pairs), FLOAT32)


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("target", [TARGET, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_decoder_only(steps, target, first):
    model = decoder_only(first=first)
    actual, _ = stepped(lambda start, end: model(target[:, start:end]), steps)
    assert_close(actual, model(target), FLOAT32)


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("target", [TARGET, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_encoder_decoder(steps, target, first):
    model = encoder_decoder(first)
    actual, _ = stepped(lambda start, end: model([SOURCE, target[:, start:end]]), steps)
    assert_close(actual, model([SOURCE, target]), FLOAT32)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_layer_called_twice_has_two_entries(steps):
    embedding = TokenEmbedding(V, D, mask_zero=True)
    block = TransformerDecoderBlock(13, 2, cross_attention=False, name="shared")
    ids = keras.Input((None,), dtype="int32")
    x = block(block(block(PositionalEncoding()(embedding(ids)))))
    model = randomize(keras.Model(ids, embedding(x, reverse=True)))
    actual, cache = stepped(lambda start, end: model(TARGET[:, start:end]), steps)
    assert_close(actual, model(TARGET), FLOAT32)
    assert list(cache) == [f"{i:03d}_self_attention" for i in range(3)]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_equal_names_in_nested_models(steps):
    def part(name):
        x = keras.Input((None, D))
        y = TransformerDecoderBlock(13, 2, cross_attention=False, name="block")(x)
        return keras.Model(x, MultiHeadSelfAttention(3, causal=True, name="attend")(y), name=name)

    # Without a padding mask: of a nested model that is given one, Keras warns that it loses it.
    embedding = TokenEmbedding(V, D)
    ids = keras.Input((None,), dtype="int32")
    x = part("second")(part("first")(PositionalEncoding()(embedding(ids))))
    model = randomize(keras.Model(ids, embedding(x, reverse=True)))
    actual, cache = stepped(lambda start, end: model(TARGET[:, start:end]), steps)
    assert_close(actual, model(TARGET), FLOAT32)
    assert list(cache) == ["000_self_attention", "001_attend", "002_self_attention", "003_attend"]


@pytest.mark.parametrize("length", [T, T + 1, 64])
def test_a_cache_longer_than_the_tokens_changes_nothing(length):
    model = encoder_decoder()
    actual, cache = stepped(
        lambda start, end: model([SOURCE, TARGET[:, start:end]]), STEPS["twos"], length
    )
    assert_close(actual, model([SOURCE, TARGET]), FLOAT32)
    assert cache["000_self_attention"]["key"].shape == (B, 2, length, 3)


@pytest.mark.parametrize(
    "mode", [*MODES[:-1], pytest.param("xla", marks=[tensorflow_only, pytest.mark.slow])]
)
def test_a_position_may_be_a_tensor(mode):
    model = decoder_only(num_layers=1)
    with DecodingScope(length=T) as scope:
        outputs = [to_numpy(model(TARGET[:, :1]))]

    def step(cache, token, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            logits = model(token)
        return logits, scope.cache

    step, cache = compiled(mode, step), scope.cache
    for position in range(1, T):
        token = TARGET[:, position : position + 1].astype("int32")
        arguments = (ops.convert_to_tensor(x) for x in (token, np.int32(position)))
        logits, cache = step(cache, *arguments)
        outputs.append(to_numpy(logits))
    assert_close(np.concatenate(outputs, axis=1), model(TARGET), FLOAT32)


@tensorflow_only
def test_lengths_known_at_run_time_only():
    """One graph of unknown batch and lengths makes the first step, another every later one."""
    import tensorflow as tf

    model = encoder_decoder(num_layers=1)
    ids, scalar = tf.TensorSpec((None, None), "int32"), tf.TensorSpec((), "int32")

    @tf.function(input_signature=[ids, ids], autograph=False)
    def prefill(source, tokens):
        with DecodingScope(length=T) as scope:
            logits = model([source, tokens])
        return logits, scope.cache

    def decode(cache, source, tokens, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            logits = model([source, tokens])
        return logits, scope.cache

    decode = tf.function(decode, autograph=False)
    source, target = (tf.constant(x, "int32") for x in (SOURCE, TARGET))
    logits, cache = prefill(source, target[:, :3])
    outputs = [logits]
    specs = {
        name: {
            part: tf.TensorSpec((None, *value.shape[1:2], None, 3)[: len(value.shape)], value.dtype)
            for part, value in entry.items()
        }
        for name, entry in cache.items()
    }
    decode = decode.get_concrete_function(specs, ids, ids, scalar)
    for start, end in ((3, 5), (5, 6), (6, 7)):
        logits, cache = decode(cache, source, target[:, start:end], tf.constant(start))
        outputs.append(logits)
    assert_close(np.concatenate(outputs, axis=1), model([SOURCE, TARGET]), FLOAT32)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(x, dtype):
    block = TransformerDecoderBlock(13, 2, cross_attention=False, dtype=dtype)
    built(block, (B, T, D))
    actual, cache = stepped(lambda start, end: block(x[:, start:end]), STEPS["twos"])
    # One rounding of bfloat16 is 4e-3; the sums are the same but for zeros of the cache's rest.
    assert_close(actual, block(x), 1e-2)
    key = cache["000_self_attention"]["key"]
    assert keras.backend.standardize_dtype(key.dtype) == dtype.removeprefix("mixed_")


def test_a_causal_encoder():
    """Its source comes whole with every step, and the caches must have room for that."""
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    embedding, positions = TokenEmbedding(V, D, mask_zero=True), PositionalEncoding()
    context = positions(embedding(source))
    context = TransformerDecoderBlock(13, 2, cross_attention=False)(context)
    x = TransformerDecoderBlock(13, 2)(positions(embedding(target)), context)
    model = randomize(keras.Model([source, target], embedding(x, reverse=True)))
    actual, _ = stepped(
        lambda start, end: model([SOURCE, TARGET[:, start:end]]), STEPS["ones"], length=T + S
    )
    assert_close(actual, model([SOURCE, TARGET]), FLOAT32)


# Cross-attention


def test_cross_attention_reads_only_the_cache_after_the_first_step(x, context):
    layer = built(MultiHeadCrossAttention(2), (B, T, D), (B, S, D))
    garbage = np.full((B, S, D), np.nan, "float32")

    def step(start, end):
        first = start == 0
        return layer(
            x[:, start:end],
            context if first else garbage,
            context_mask=SOURCE != 0 if first else np.zeros((B, S), bool),
        )

    actual, _ = stepped(step, STEPS["threes"])
    assert_close(actual, layer(x, context, context_mask=SOURCE != 0), FLOAT32)


def test_the_encoder_is_not_read_after_the_first_step():
    """Other source tokens, as many: the logits are those of the first source."""
    model = encoder_decoder()
    other = np.full((B, S), 7)

    def step(start, end):
        return model([SOURCE if start == 0 else other, TARGET[:, start:end]])

    actual, _ = stepped(step, STEPS["ones"])
    assert_close(actual, model([SOURCE, TARGET]), FLOAT32)
    assert np.any(np.abs(to_numpy(model([other, TARGET])) - actual) > 1e-2)


@pytest.mark.parametrize("on", ["first", "later"])
def test_a_context_mask_on_some_steps_only_is_refused(x, context, on):
    """The context's padding would be seen from there on, or a mask be looked for that is not."""
    layer = built(MultiHeadCrossAttention(2, name="attend"), (B, T, D), (B, S, D))
    masks = {0: None, 4: None, {"first": 0, "later": 4}[on]: SOURCE != 0}
    with pytest.raises(ValueError, match="attend: a mask must come with every step or with none"):
        stepped(
            lambda start, end: layer(x[:, start:end], context, context_mask=masks[start]), [4, 3]
        )


@pytest.mark.parametrize("on", ["first", "later"])
def test_a_target_mask_on_some_steps_only_is_refused(x, on):
    """Earlier padding would be seen again, or earlier tokens be hidden."""
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), (B, T, D))
    masks = {0: np.ones((B, 4), bool), 4: np.ones((B, 3), bool)}
    masks[{"first": 4, "later": 0}[on]] = None
    with pytest.raises(ValueError, match="attend: a mask must come with every step or with none"):
        stepped(lambda start, end: layer(x[:, start:end], mask=masks[start]), [4, 3])


def test_one_mask_may_serve_target_and_context(x, context):
    """As many tokens as the context has, and one tensor as the mask of both."""
    layer = TransformerDecoderBlock(13, 2)
    built(layer, (B, S, D), (B, S, D))
    mask = ops.convert_to_tensor(SOURCE != 0)
    whole = layer(x[:, :S], context, mask=mask, context_mask=mask)
    with DecodingScope(length=S + 1):
        assert_close(layer(x[:, :S], context, mask=mask, context_mask=mask), whole, FLOAT32)


# The cache


def test_entries_are_in_the_order_of_the_calls_and_masks_are_stored_once():
    model = encoder_decoder()
    for _ in range(2):
        with DecodingScope(length=T) as scope:
            model([SOURCE, TARGET[:, :3]])
    names = [
        "000_self_attention",
        "001_cross_attention",
        "002_self_attention",
        "003_cross_attention",
    ]
    assert list(scope.cache) == list(scope.initial_cache) == names
    kinds = [sorted(entry) for entry in scope.cache.values()]
    assert kinds == [["key", "mask", "value"]] * 2 + [["key", "value"]] * 2
    np.testing.assert_array_equal(scope.cache[names[1]]["mask"], SOURCE != 0)
    target_mask = np.zeros((B, T), bool)
    target_mask[:, :3] = TARGET[:, :3] != 0
    np.testing.assert_array_equal(scope.cache[names[0]]["mask"], target_mask)
    assert [entry["key"].shape for entry in scope.cache.values()] == [
        (B, 2, T, 3), (B, 2, S, 3), (B, 2, T, 3), (B, 2, S, 3)
    ]  # fmt: skip


def test_a_step_writes_its_own_positions_only(x):
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), (B, T, D))
    caches = []
    cache = None
    for start, end in ((0, 2), (2, 5)):
        with DecodingScope(cache, position=start, length=T) as scope:
            layer(x[:, start:end])
        cache = scope.cache
        caches.append({name: to_numpy(part) for name, part in cache["000_attend"].items()})
    with DecodingScope(length=T) as scope:
        layer(x[:, :5])
    for name, whole in scope.cache["000_attend"].items():
        assert_close(caches[1][name], whole, 1e-6)  # one projection, of more rows at a time
        np.testing.assert_array_equal(caches[1][name][:, :, :2], caches[0][name][:, :, :2])
        np.testing.assert_array_equal(caches[0][name][:, :, 2:], 0.0)
        np.testing.assert_array_equal(caches[1][name][:, :, 5:], 0.0)


def test_a_cache_is_a_value():
    """A step leaves the cache that it was given as it was: two steps may start from one."""
    model = encoder_decoder()
    with DecodingScope(length=T) as scope:
        model([SOURCE, TARGET[:, :2]])
    cache = scope.cache
    before = {name: {k: to_numpy(v) for k, v in part.items()} for name, part in cache.items()}
    results = []
    for _ in range(2):
        with DecodingScope(cache, position=2, length=T):
            results.append(to_numpy(model([SOURCE, TARGET[:, 2:3]])))
    np.testing.assert_array_equal(results[0], results[1])
    for name, part in before.items():
        for key, value in part.items():
            np.testing.assert_array_equal(to_numpy(cache[name][key]), to_numpy(value))


def test_initial_cache_is_where_a_loop_starts_that_feeds_the_first_token_itself():
    model = encoder_decoder()
    with DecodingScope(length=T) as scope:
        model([SOURCE, TARGET[:, :1]])
    initial, after = scope.initial_cache, scope.cache
    for name, part in initial.items():
        for key, value in part.items():
            assert value.shape == after[name][key].shape
            wanted = to_numpy(after[name][key]) * ("cross" in name)
            np.testing.assert_array_equal(to_numpy(value), wanted)
    with DecodingScope(initial, position=0, length=T) as scope:
        actual = model([np.ones_like(SOURCE), TARGET[:, :3]])
    assert_close(actual, to_numpy(model([SOURCE, TARGET]))[:, :3], FLOAT32)


@tensorflow_only
def test_initial_cache_of_a_later_step_is_the_one_given(x):
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), (B, T, D))
    with DecodingScope(length=T) as scope:
        layer(x[:, :2])
    given = scope.cache
    with DecodingScope(given, position=2, length=T) as scope:
        layer(x[:, 2:3])
    for name in ("key", "value"):
        np.testing.assert_array_equal(
            scope.initial_cache["000_attend"][name], given["000_attend"][name]
        )


@pytest.mark.parametrize("start", [0, 2])
def test_new_is_what_a_step_adds(start):
    """Of self-attention the tokens given, of cross-attention nothing after the first step."""
    model = encoder_decoder()
    with DecodingScope(length=T) as scope:
        model([SOURCE, TARGET[:, :2]])
    if start:
        with DecodingScope(scope.cache, position=2, length=T) as scope:
            model([SOURCE, TARGET[:, 2:5]])
    end = 5 if start else 2
    names = ["000_self_attention", "002_self_attention"]
    assert [name for name, state in scope.states.items() if state.grows] == names
    assert sorted(scope.new) == (names if start else sorted(scope.cache))
    for name in names:
        assert sorted(scope.new[name]) == sorted(scope.cache[name])
        for part, new in scope.new[name].items():
            axis = 1 if part == "mask" else 2
            written = np.take(to_numpy(scope.cache[name][part]), range(start, end), axis)
            np.testing.assert_array_equal(to_numpy(new), written)


@pytest.mark.parametrize("token", [0, 5])
@pytest.mark.parametrize("mode", MODES)
def test_a_cache_written_after_a_result_is_the_same_whatever_the_result(x, mode, token):
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), (B, T, D))
    with DecodingScope(length=T) as scope:
        layer(x[:, :2])

    def step(cache, tokens, position, result):
        with DecodingScope(cache, position=position, length=T) as scope:
            layer(tokens)
        return scope.cache, scope.cache_after(result)

    result = np.full((B, 1), token, "int32")
    arguments = (ops.convert_to_tensor(a) for a in (x[:, 2:4], np.int32(2), result))
    wanted, found = compiled(mode, step)(scope.cache, *arguments)
    for part in ("key", "value"):
        assert to_numpy(wanted["000_attend"][part])[:, :, 2:4].all()
        np.testing.assert_array_equal(
            to_numpy(found["000_attend"][part]), to_numpy(wanted["000_attend"][part])
        )


def branches(batch, n, columns, shared=1):
    """That all go on from the first columns, and are to be written behind them."""
    column = np.arange(columns, dtype="int32")
    ancestors = np.broadcast_to(column < shared, (batch, n, columns)).copy()
    return Branches(ancestors, np.where(column < shared, column, 0), shared)


# Positions


@pytest.mark.parametrize(
    ("options", "positions", "count"),
    [
        ({}, [3, 4, 5, 6], 4),
        ({"padding": np.array([0, 2, 5], "int32")}, [[3, 4, 5, 6], [1, 2, 3, 4], [0, 0, 0, 1]], 4),
        ({"branches": branches(1, 4, 33)}, [3, 3, 3, 3], 1),
        (
            {"branches": branches(2, 4, 33), "padding": np.int32([2, 4])},
            [[1, 1, 1, 1], [0, 0, 0, 0]],
            1,
        ),
    ],
    ids=["plain", "padding", "branches", "both"],
)
def test_positions_by_hand(options, positions, count):
    """Of four tokens from column 3 on; branches stand side by side."""
    scope = DecodingScope({}, position=3, length=9, **options)
    assert to_numpy(scope.positions(4).tensor()).tolist() == positions
    assert scope.positions(4).count == count


# Branches


@pytest.mark.parametrize("padding", [None, [0, 2]], ids=["even", "padded"])
@pytest.mark.parametrize("shared", [3, 5])
@pytest.mark.parametrize("part", [None, RotaryEmbedding, ALiBi], ids=["plain", "rotary", "ALiBi"])
def test_branches_are_the_paths_of_a_tree(part, shared, padding):
    """Each of three tokens side by side sees the path to it, as if it were alone."""
    n, rng = 3, np.random.default_rng(0)
    model = decoder_only(1, head_dim=4, position=None if part is None else part())
    tokens = rng.integers(1, V, (B, shared))
    options, columns = {}, shared + n * (T - shared)
    with DecodingScope(length=columns) as scope:
        model(tokens)
    if padding is not None:
        options = {"padding": np.array(padding, "int32")}
        with DecodingScope(scope.initial_cache, length=columns, **options) as scope:
            model(tokens)
    cache = scope.cache
    paths = np.repeat(tokens[:, np.newaxis], n, axis=1)
    tree = branches(B, n, columns, shared)
    for position in range(shared, T):
        given = rng.integers(1, V, (B, n))
        paths = np.concatenate([paths, given[:, :, np.newaxis]], axis=2)
        with DecodingScope(cache, position=position, length=T, branches=tree, **options) as scope:
            logits = to_numpy(model(given))
        cache = scope.cache
        for row in range(B):
            first = 0 if padding is None else padding[row]
            alone = to_numpy(model(paths[row, :, first:]))[:, -1]
            assert_close(logits[row], alone, FLOAT32)
        # Each of the paths becomes a copy of its parent, with the parent's ancestors.
        own = range(tree.column, tree.column + n)
        tree.ancestors[:, range(n), own] = True
        tree.positions[own] = position
        parents = rng.integers(0, n, (B, n))[:, :, np.newaxis]
        paths = np.take_along_axis(paths, parents, 1)
        tree = Branches(np.take_along_axis(tree.ancestors, parents, 1), tree.positions, own.stop)


def test_branches_of_an_empty_cache():
    """Three first tokens side by side: each sees itself alone."""
    model, given = decoder_only(1, head_dim=4), np.array([[7, 1, 4], [9, 9, 2]])
    with DecodingScope(length=6) as scope:
        model(given[:, :1])
    tree = branches(B, 3, 6, shared=0)
    with DecodingScope(scope.initial_cache, position=0, length=T, branches=tree):
        logits = to_numpy(model(given))
    for branch in range(3):
        alone = to_numpy(model(given[:, branch : branch + 1]))[:, -1]
        assert_close(logits[:, branch], alone, FLOAT32)


def test_branches_beside_a_source():
    model, n, shared, columns = encoder_decoder(), 3, 2, 8
    with DecodingScope(length=columns) as scope:
        model([SOURCE, TARGET[:, :shared]])
    given = np.array([[7, 1, 4], [9, 9, 2]])
    tree = branches(B, n, columns, shared)
    with DecodingScope(scope.cache, position=shared, length=T, branches=tree):
        logits = to_numpy(model([SOURCE, given]))
    for branch in range(n):
        whole = np.concatenate([TARGET[:, :shared], given[:, branch : branch + 1]], axis=1)
        assert_close(logits[:, branch], to_numpy(model([SOURCE, whole]))[:, -1], FLOAT32)


@pytest.mark.parametrize(
    ("position", "column", "message"),
    [
        (T, 5, f"{T + 1} positions do not fit a DecodingScope of length {T}"),
        (T - 1, 6, "9 columns do not fit a cache of 8"),
    ],
)
def test_branches_do_not_fit_beyond_the_end(position, column, message):
    model, tree = decoder_only(num_layers=1), branches(B, 3, 8)
    with DecodingScope(length=8) as scope:
        model(TARGET[:, :1])
    with DecodingScope(scope.cache, position=T - 1, length=T, branches=tree._replace(column=5)):
        model(TARGET[:, :3])
    tree = tree._replace(column=column)
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=position, length=T, branches=tree),
    ):
        model(TARGET[:, :3])


# The scope


def test_current_is_the_innermost_and_closes_on_an_exception():
    assert DecodingScope.current() is None
    with DecodingScope(length=3) as outer:
        assert DecodingScope.current() is outer
        with pytest.raises(RuntimeError, match="within"), DecodingScope(length=5) as inner:
            assert DecodingScope.current() is inner
            raise RuntimeError("within")
        assert DecodingScope.current() is outer
    assert DecodingScope.current() is None


def test_a_failed_call_leaves_the_layer_as_it_was(x):
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    expected = to_numpy(layer(x))
    with pytest.raises(ValueError, match="do not fit"), DecodingScope(length=T - 1):
        layer(x)
    np.testing.assert_array_equal(to_numpy(layer(x)), expected)


def test_bidirectional_attention_is_left_alone(x):
    layer = built(MultiHeadSelfAttention(2), (B, T, D))
    with DecodingScope(length=3) as scope:
        actual = layer(x)
    assert scope.cache == {}
    assert_close(actual, layer(x), 0.0)


# Errors


@pytest.mark.parametrize("position", [1, -1, 2])
def test_a_position_needs_a_cache(position):
    with pytest.raises(ValueError, match=f"without a cache, position must be 0, got {position}"):
        DecodingScope(position=position, length=5)


@pytest.mark.parametrize("length", [0, -3])
def test_a_length_is_positive(length):
    with pytest.raises(ValueError, match=f"length must be at least 1, got {length}"):
        DecodingScope(length=length)


@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_a_position_may_be_one_of_numpys_integers(x, integer):
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    with DecodingScope(position=integer(0), length=T) as scope:
        layer(x[:, :3])
    with DecodingScope(scope.cache, position=integer(3), length=T) as scope:
        actual = layer(x[:, 3:])
    assert_close(actual, to_numpy(layer(x))[:, 3:], FLOAT32)
    message = "8 positions do not fit a DecodingScope of length 7"
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=integer(5), length=T),
    ):
        layer(x[:, :3])


@pytest.mark.parametrize(("position", "n"), [(2, 6), (7, 1), (9, 1)])
def test_tokens_beyond_the_length_are_refused(x, position, n):
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    with DecodingScope(length=T) as scope:
        layer(x[:, :2])
    message = f"{position + n} positions do not fit a DecodingScope of length 7"
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=position, length=T),
    ):
        layer(x[:, :n])


def test_a_negative_position_is_refused(x):
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    with DecodingScope(length=T) as scope:
        layer(x[:, :2])
    message = "position must be at least 0, got -1"
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=-1, length=T),
    ):
        layer(x[:, 2:3])


@pytest.mark.parametrize("length", [T - 2, T + 2])
def test_a_cache_of_another_length_is_refused(x, length):
    """Beyond the end of a shorter cache, writing would be clamped in silence."""
    layer = built(MultiHeadSelfAttention(2, causal=True), (B, T, D))
    with DecodingScope(length=T) as scope:
        layer(x[:, :2])
    message = rf"\b{T}\b.*\b{length}\b|\b{length}\b.*\b{T}\b"
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=2, length=length),
    ):
        layer(x[:, 2:3])


def test_the_cache_of_another_model_is_refused():
    one, two, three = (decoder_only(num_layers=n) for n in (1, 2, 3))
    with DecodingScope(length=T) as scope:
        two(TARGET[:, :1])
    message = "the cache has no entry '002_self_attention': it was made by another model"
    with (
        pytest.raises(ValueError, match=message),
        DecodingScope(scope.cache, position=1, length=T),
    ):
        three(TARGET[:, 1:2])
    with DecodingScope(scope.cache, position=1, length=T) as second:
        one(TARGET[:, 1:2])
    message = (
        r"the cache has entries \['000_self_attention', '001_self_attention'\], but the model "
        r"called inside the scope used \['000_self_attention'\]: it was made by another model"
    )
    with pytest.raises(ValueError, match=message):
        _ = second.cache


def test_a_cache_with_other_heads_is_refused():
    """Entries alike in name: what differs is the shape within."""
    plain, grouped = decoder_only(), decoder_only(num_key_value_heads=1)
    with DecodingScope(length=T) as scope:
        plain(TARGET[:, :1])
    with (
        pytest.raises(ValueError, match="it was made by another model"),
        DecodingScope(scope.cache, position=1, length=T),
    ):
        grouped(TARGET[:, 1:2])
