"""DeBERTa: any length, its convolution, its file, and that it learns."""

import itertools

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.layers import NGramEncoding

SMALL = {
    "dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 24, "max_length": 8,
    "num_buckets": 6,
}  # fmt: skip
OPTIONS = {
    "v3": {},
    "v2": {"kernel_size": 3, "num_segments": 2, "embedding_dim": 10, "absolute_positions": True},
    "own projections": {"position_projections": True, "num_buckets": None},
}
# Float32 rounds at 6e-8; two blocks.
FLOAT32 = 1e-5


def test_sequences_may_be_longer_than_max_length():
    """Without absolute positions; further tokens share the last buckets."""
    model = randomize(models.deberta(13, **SMALL))
    tokens = np.random.default_rng(0).integers(1, 13, (2, 21), "int32")
    assert model({"tokens": tokens}).shape == (2, 21, 16)
    model = randomize(models.deberta(13, **SMALL, absolute_positions=True))
    with pytest.raises(ValueError, match=r"positions: got 21 positions, .* max_length=8"):
        model({"tokens": tokens})


def test_every_order_of_tokens_has_other_features():
    model = randomize(models.deberta(13, **SMALL, dropout=0.0))
    a, b = (to_numpy(model({"tokens": np.array([ids])})) for ids in ([3, 4, 5, 6], [3, 5, 4, 6]))
    assert np.abs(a[:, 0] - b[:, 0]).max() > 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_heads": 3}, r"num_heads \(3\) must divide dim \(16\)"),
        ({"kernel_size": 2}, "kernel_size must be odd, got 2"),
        ({"num_buckets": 1}, "num_buckets must be at least 2, got 1"),
        ({"max_distance": 4}, "max_distance must be more than 4 with num_buckets=6"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        models.deberta(13, **{**SMALL, **options})


# The convolution


def test_ngram_encoding_by_hand():
    """Width 2, a window of 3 tokens, the sum of both channels of all of them, and no norm's effect:
    what is normalised is (a, -a), which gives (1, -1) times the sign.

    Token 2 is padding: the window of token 1 holds tokens 0 and 1.
    """
    layer = NGramEncoding(kernel_size=3, activation="linear", layer_norm_epsilon=0.0)
    embedded = np.array([[[1.0, 0.0], [2.0, 0.0], [50.0, 50.0]]], "float32")
    layer.build(embedded.shape, embedded.shape)
    kernel = np.zeros((3, 2, 2))
    kernel[:, 0] = [1.0, 0.0]
    layer.convolution.set_weights([kernel, np.zeros(2)])
    # The first channel gets 3 = 1 + 2 of both tokens, and with x 3 - 3.5 and 3 - 2.5.
    x = np.array([[[-3.5, 0.0], [-2.5, 0.0], [0.0, 0.0]]], "float32")
    y = to_numpy(layer(x, embedded, mask=np.array([[True, True, False]])))
    assert_close(y[:, :2], [[[-1.0, 1.0], [1.0, -1.0]]], FLOAT32)


def test_the_kernel_of_the_ngram_encoding_starts_as_its_initializer_says():
    layer = NGramEncoding(kernel_size=3, kernel_initializer=keras.initializers.Constant(0.25))
    layer.build((2, 5, 4), (2, 5, 4))
    np.testing.assert_array_equal(layer.convolution.kernel, np.full((3, 4, 4), 0.25, "float32"))


@pytest.mark.parametrize("kernel_size", [3, 5])
def test_embeddings_of_padding_do_not_reach_the_convolution(kernel_size):
    model = randomize(models.deberta(13, **SMALL, kernel_size=kernel_size, dropout=0.0))
    tokens = np.array([[3, 4, 5, 0, 0, 0]])
    before = to_numpy(model({"tokens": tokens}))[:, :3]
    table = to_numpy(model.embedding.embeddings)
    table[0] = 9.0
    model.embedding.embeddings.assign(table)
    assert_close(to_numpy(model({"tokens": tokens}))[:, :3], before, 0.0)
    assert_close(to_numpy(model({"tokens": tokens[:, :3]})), before, FLOAT32)


# Its file


@pytest.mark.default
@tensorflow_only
@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("v2", "int8"),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in itertools.product(OPTIONS, ("float32", "int8"))
            if x != ("v2", "int8")
        ),
    ],
)
def test_its_file_is_verified_and_one_partition(name, quantization, tmp_path):
    """Rows of 13 tokens: longer than `max_distance`."""
    from keras_tfm.export import export_tflite

    options = {**SMALL, **OPTIONS[name], "max_distance": 8, "max_length": 16}
    model = randomize(models.deberta(29, **options))
    path = tmp_path / "x.tflite"
    report = export_tflite(model, path, ["predict"], quantization, source_length=13)
    assert [graph.partitions for graph in report.subgraphs] == [1]
    # Outside: lookups of embeddings, the padding mask, and two for tokens with the padding id.
    (graph,) = report.subgraphs
    assert "GATHER" not in graph.operators or name == "v2"  # of segments
    assert graph.nodes - graph.delegated <= 10
    (check,) = report.verification.checks
    assert check.relative_error < (1e-5 if quantization == "float32" else 0.05)


# Learning


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "v3")) for x in OPTIONS]
)
def test_it_learns_the_token_before_each_one(name):
    """Tokens are in every order, so that only positions tell."""
    keras.utils.set_random_seed(2)
    tokens = np.random.default_rng(0).permuted(np.tile(np.arange(1, 8), (300, 1)), axis=1)
    options = {**SMALL, **OPTIONS[name], "dropout": 0.05}
    model = models.token_classifier(models.deberta(8, **options), 8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    inputs = {x.name: tokens if x.name == "tokens" else 0 * tokens for x in model.inputs}
    history = model.fit(inputs, np.roll(tokens, 1, axis=1), batch_size=30, epochs=9, verbose=0)
    assert history.history["accuracy"][-1] > 0.9  # 1/7 by chance
