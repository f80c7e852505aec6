"""Features at placeholder tokens: against NumPy, in steps, in beams, and bad input."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from small_models import randomize

from keras_tfm import layers
from keras_tfm.generation import Beam, Generator, check_stepping
from keras_tfm.layers import DecodingScope, ReplacePlaceholders

B, T, N, D, V, IMAGE = 3, 9, 4, 6, 13, 7
rng = np.random.default_rng(43)
X = rng.normal(size=(B, T, D)).astype("float32")
FEATURES = rng.normal(size=(B, N, D)).astype("float32")
# In one piece, in two, and from the first token on.
TOKENS = np.array(
    [
        [1, 2, IMAGE, IMAGE, IMAGE, IMAGE, 3, 4, 5],
        [1, IMAGE, 6, IMAGE, IMAGE, 8, 9, 2, IMAGE],
        [IMAGE, IMAGE, 2, IMAGE, 10, 11, IMAGE, 12, 3],
    ],
    "int32",
)


def expected(x, tokens, features):
    """By the definition, a token at a time."""
    y = x.copy()
    for row, ids in enumerate(tokens):
        count = 0
        for t, token in enumerate(ids):
            if token == IMAGE:
                if count < features.shape[1]:
                    y[row, t] = features[row, count]
                count += 1
    return y


def decoder(window=None, mask_zero=True):
    features = keras.Input((N, D), name="features")
    ids = keras.Input((None,), dtype="int32", name="target")
    x = layers.TokenEmbedding(V, D, mask_zero=mask_zero)(ids)
    x = ReplacePlaceholders(IMAGE)(x, ids, features)
    for _ in range(2):
        attention = layers.MultiHeadSelfAttention(
            2, causal=True, position=layers.RotaryEmbedding(rotary_dim=2), window=window
        )
        x = layers.TransformerDecoderBlock(
            self_attention=attention, feed_forward=layers.FeedForward(11), cross_attention=False
        )(x)
    model = keras.Model({"features": features, "target": ids}, keras.layers.Dense(V)(x))
    return randomize(model, seed=3)


def stepped(model, tokens, cuts, padding=None, **options):
    cache, outputs, start = None, [], 0
    for end in cuts:
        with DecodingScope(
            cache, position=start, length=tokens.shape[1], padding=padding, **options
        ) as scope:
            outputs.append(to_numpy(model({"features": FEATURES, "target": tokens[:, start:end]})))
        cache, start = scope.cache, end
    return np.concatenate(outputs, axis=1)


def test_the_definition():
    y = ReplacePlaceholders(IMAGE)(X, TOKENS, FEATURES)
    assert_close(y, expected(X, TOKENS, FEATURES), 0.0)


def test_symbolic_lengths_and_surplus_placeholders():
    """In a graph, where nothing is refused: surplus placeholders keep their embeddings."""
    x, tokens, features = (
        keras.Input((None, D)), keras.Input((None,), dtype="int32"), keras.Input((None, D))
    )  # fmt: skip
    model = keras.Model(
        [x, tokens, features], ReplacePlaceholders(IMAGE)(x, tokens, features), name="only"
    )
    surplus = np.where(TOKENS == 3, IMAGE, TOKENS)
    given = [X, surplus, FEATURES]
    if keras.backend.backend() == "torch":  # which knows the values in `predict`, too
        from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders

        with any_placeholders():
            found = model.predict(given, verbose=0)
    else:
        found = model.predict(given, verbose=0)
    assert_close(found, expected(X, surplus, FEATURES), 0.0)


def test_padded_features():
    """Two of the four features of each row are padding, and the row has two placeholders."""
    tokens = np.where(np.cumsum(TOKENS == IMAGE, 1) > 2, 2, TOKENS)
    mask = np.arange(N) < np.full((B, 1), 2)
    layer = ReplacePlaceholders(IMAGE)
    wanted = expected(X, tokens, FEATURES[:, :2])
    assert_close(layer(X, tokens, FEATURES, features_mask=mask), wanted, 0.0)
    masked = keras.layers.Masking(9.0)(np.where(mask[..., None], FEATURES, 9.0).astype("float32"))
    assert_close(layer(X, tokens, masked), wanted, 0.0)
    with pytest.raises(ValueError, match=r"as it has features \(2\), or never; row 0 has it 4 "):
        layer(X, TOKENS, FEATURES, features_mask=mask)


def test_the_mask_is_that_of_the_embeddings():
    ids = np.where(np.arange(T) > 6, 0, [[1, IMAGE, IMAGE, IMAGE, IMAGE, 2, 3, 4, 5]] * B)
    x = layers.TokenEmbedding(V, D, mask_zero=True)(ids)
    y = ReplacePlaceholders(IMAGE)(x, ids, FEATURES)
    np.testing.assert_array_equal(to_numpy(y._keras_mask), ids != 0)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6, 7, 8, 9), (3, 4, 9), (9,), (8, 9)], ids=str)
@pytest.mark.parametrize("options", [{}, {"xla": True}, {"write_first": True}], ids=str)
def test_steps_equal_the_full_pass(cuts, options):
    model = decoder()
    whole = model({"features": FEATURES, "target": TOKENS})
    # Activations of order 1: float32 rounds each of two blocks by some 1e-7.
    assert_close(stepped(model, TOKENS, cuts, **options), whole, 1e-5)


def test_steps_with_left_padding_and_a_window():
    model = decoder(window=3)
    padding = np.array([0, 2, 1], "int32")
    padded = np.stack(
        [np.roll(np.append(x[: T - n], [0] * n), n) for x, n in zip(TOKENS, padding, strict=True)]
    )
    padded = padded.astype("int32")
    found = stepped(model, padded, (5, 6, 9), padding=padding)
    from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders

    for row, n in enumerate(padding):
        alone = {"features": FEATURES[row : row + 1], "target": padded[row : row + 1, n:]}
        with any_placeholders():
            assert_close(found[row, n:], to_numpy(model(alone))[0], 1e-5)


def test_caches_in_int8_count_exactly():
    """Features of order 10 replace embeddings of order 1: a wrong count would show."""
    model = decoder()
    exact = stepped(model, TOKENS, (3, 5, 6, 9))
    rounded = stepped(model, TOKENS, (3, 5, 6, 9), int8=True)
    # Keys and values are rounded to 1/254 of the largest of each head.
    assert np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("strategy", [None, Beam(3)], ids=["greedy", "beam"])
def test_generation_equals_full_passes(strategy):
    """Prompts of different lengths, and an image token that is generated is only a token."""
    model = decoder()
    check_stepping(model)
    prompts = [TOKENS[0, :6].tolist(), TOKENS[1].tolist(), TOKENS[2, :8].tolist()]
    options = {} if strategy is None else {"strategy": strategy}
    generator = Generator(model, 14, target="target", jit_compile=False, **options)
    found = generator({"features": FEATURES, "target": prompts}).tokens
    alone = [
        generator({"features": FEATURES[i : i + 1], "target": [prompt]}).tokens[0]
        for i, prompt in enumerate(prompts)
    ]
    np.testing.assert_array_equal(found, alone)
    if strategy is None:
        from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders

        for i, prompt in enumerate(prompts):
            tokens = list(prompt)
            while len(tokens) < 14:
                given = {"features": FEATURES[i : i + 1], "target": np.array([tokens])}
                with any_placeholders():
                    tokens.append(int(to_numpy(model(given))[0, -1].argmax()))
            assert found[i].tolist() == tokens


def test_gradients_reach_the_features_that_are_used():
    x, features = keras.Input((T, D)), keras.Input((N, D))
    tokens = keras.Input((T,), dtype="int32")
    trained = keras.layers.Dense(D, use_bias=False, name="projection")
    y = ReplacePlaceholders(IMAGE)(x, tokens, trained(features))
    model = keras.Model([x, tokens, features], y)
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    before = to_numpy(trained.kernel)
    target = rng.normal(size=(B, T, D)).astype("float32")
    model.fit([X, TOKENS, FEATURES], target, batch_size=B, epochs=1, verbose=0)
    # d mse / dW = 2 / (B T D) sum over placeholders of f_i (f_i W - target)^T
    gradient = np.zeros((D, D))
    for row, ids in enumerate(TOKENS):
        for i, t in enumerate(np.flatnonzero(ids == IMAGE)):
            f = FEATURES[row, i].astype("float64")
            gradient += np.outer(f, f @ before - target[row, t]) * 2 / (B * T * D)
    assert_close(to_numpy(trained.kernel), before - gradient, 1e-6)


@pytest.mark.parametrize("name", ["fewer", "more"])
def test_numbers_that_differ_are_refused(name):
    tokens = TOKENS.copy()
    tokens[1, 4 if name == "fewer" else 5] = 2 if name == "fewer" else IMAGE
    found = 3 if name == "fewer" else 5
    with pytest.raises(ValueError, match=rf"features \(4\), or never; row 1 has it {found} times"):
        ReplacePlaceholders(IMAGE)(X, tokens, FEATURES)
    model = decoder()
    with pytest.raises(ValueError, match=rf"features \(4\), or never; row 1 has it {found} times"):
        Generator(model, 14)({"features": FEATURES, "target": tokens})


def test_a_row_without_placeholders_is_text():
    tokens = np.where(TOKENS == IMAGE, 2, TOKENS)
    assert_close(ReplacePlaceholders(IMAGE)(X, tokens, FEATURES), X, 0.0)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(B, T, D), (B, T), (B, N, 5)],
            r"have the width of the embeddings \(6\), got 5: p",
        ),
        ([(B, T, D), (B, T), (B, D)], r"expected x \(B, T, D\), tokens \(B, T\) and features"),
        ([(B, T, D), (B, T + 1), (B, N, D)], r"expected x \(B, T, D\), tokens \(B, T\) and feat"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    x, tokens, features = (np.zeros(shape, "float32") for shape in shapes)
    with pytest.raises(ValueError, match=message):
        ReplacePlaceholders(IMAGE)(x, tokens.astype("int32"), features)


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="token_id must be at least 0, got -1"):
        ReplacePlaceholders(-1)
    with pytest.raises(TypeError, match="tokens must be integers, got float32"):
        ReplacePlaceholders(IMAGE)(X, TOKENS.astype("float32"), FEATURES)
