"""Evoformer as a whole beside NumPy float64: stacks, recycling, heads; padding; memory."""

import keras
import numpy as np
import pytest
import reference_evoformer as reference
from compare import assert_close, to_numpy
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.models.gallery.evoformer import SIZES
from keras_tfm.training import MaskedAccuracy

# Float32 rounds at 6e-8; three runs of five blocks, sums of up to 64 terms.
FLOAT32 = 3e-5
B, S, R, N = 2, 5, 3, 7
SMALL = {
    "dim": 10, "pair_dim": 6, "num_layers": 2, "num_heads": 2, "num_pair_heads": 3, "outer_dim": 3,
    "hidden_dim": 5, "transition_factor": 2, "single_dim": 11, "max_distance": 3,
}  # fmt: skip
WHOLE = {
    **SMALL, "num_extra_layers": 1, "extra_dim": 8, "num_extra_heads": 4, "feature_dim": 4,
    "extra_feature_dim": 2, "residue_index": True, "num_recycles": 2,
}  # fmt: skip
RNG = np.random.default_rng(5)
TOKENS = RNG.integers(1, 24, (B, S, N)).astype("int32")
TOKENS[1, :, 5:], TOKENS[1, 4:], TOKENS[0, 2, :3] = 0, 0, 0
EXTRA = RNG.integers(1, 24, (B, R, N)).astype("int32")
EXTRA[1, :, 5:], EXTRA[0, 2] = 0, 0
INPUTS = {
    "tokens": TOKENS,
    "alignment_features": RNG.normal(size=(B, S, N, 4)).astype("float32"),
    "residue_index": np.cumsum(RNG.integers(1, 3, (B, N)), axis=1).astype("int32"),
    "extra_tokens": EXTRA,
    "extra_features": RNG.normal(size=(B, R, N, 2)).astype("float32"),
}


def weights_of(model):
    """The weights of each layer by the rest of their paths."""
    return {
        layer.name: {x.path.split(f"{layer.name}/", 1)[1]: to_numpy(x) for x in layer.weights}
        for layer in model.layers
    }


def expected_of(inputs, w, given, b):
    """Algorithms 3, 4, 6, 18 and 32 for one example, without the structure module."""
    tokens, extra_tokens = inputs["tokens"][b], inputs["extra_tokens"][b]
    mask, extra_mask = tokens != 0, extra_tokens != 0

    def embedded(name, tokens, features):
        dense = reference.dense(features.astype("float64"), w[f"{name}_features"], "x")
        return w[name]["embeddings"][tokens] + dense

    for name in ("embedding", "extra_embedding"):  # a Dense layer's own names
        layer = w[f"{name}_features"]
        layer |= {f"x/{key}": value for key, value in list(layer.items())}
    x0 = embedded("embedding", tokens, inputs["alignment_features"][b])
    x0 = x0 + w["target_embedding"]["embeddings"][tokens[0]]
    y0 = embedded("extra_embedding", extra_tokens, inputs["extra_features"][b])
    table, index = w["pair_embedding"], inputs["residue_index"][b]
    far = given["max_distance"]
    bins = np.clip(index[:, None] - index[None], -far, far) + far
    z0 = table["positions"][bins] + table["left/embeddings"][tokens[0]][:, None]
    z0 = z0 + table["right/embeddings"][tokens[0]][None]
    row, z = np.zeros_like(x0[0]), np.zeros_like(z0)
    for _ in range(given["num_recycles"] + 1):
        x, y = x0.copy(), y0
        x[0] += reference.layer_norm(row, *w["recycled_alignment"].values(), 1e-5)
        z = z0 + reference.layer_norm(z, *w["recycled_pairs_norm"].values(), 1e-5)
        for i in range(given["num_extra_layers"]):
            block, pairs = w[f"extra_{i}_alignment"], w[f"extra_{i}_pairs"]
            y = reference.msa_block(y, z, block, given["num_extra_heads"], extra_mask, extra=True)
            z = reference.pair_block(z, y, pairs, given["num_pair_heads"], extra_mask)
        for i in range(given["num_layers"]):
            block, pairs = w[f"block_{i}_alignment"], w[f"block_{i}_pairs"]
            x = reference.msa_block(x, z, block, given["num_heads"], mask)
            z = reference.pair_block(z, x, pairs, given["num_pair_heads"], mask)
        row = x[0]
    return {
        "alignment": x,
        "pairs": z,
        "features": reference.dense(x[0], w["target_features"], "projection"),
    }


@pytest.mark.default
def test_equals_the_float64_reference():
    model = randomize(models.evoformer(**WHOLE))
    w, found = weights_of(model), model(INPUTS)
    for b in range(B):
        real = TOKENS[b] != 0
        # Where a whole row or column is padding, the target's mask decides about pairs.
        expected = expected_of(INPUTS, w, model.arguments, b)
        seen = {
            "alignment": real,
            "pairs": real[0][:, None] & real[0][None],
            "features": real[0],
        }
        for name, x in expected.items():
            part = to_numpy(found[name])[b][seen[name]]
            assert_close(part, x[seen[name]], FLOAT32)


def test_heads_by_hand():
    model = randomize(models.evoformer(**SMALL))
    masked = randomize(models.masked_msa(model), seed=1)
    pairs = randomize(models.pair_classifier(model, 3), seed=2)
    features = keras.Model(model.input, model.output)({"tokens": TOKENS})
    alignment, z = to_numpy(features["alignment"]), to_numpy(features["pairs"])
    for head, x in ((masked, alignment), (pairs, z)):
        name = "masked_msa" if head is masked else "pair_classifier"
        kernel, bias = (to_numpy(x) for x in head.get_layer(name).weights)
        logits = x @ kernel + bias
        if head is pairs:
            logits = logits + np.swapaxes(logits, 1, 2)
        assert_close(head({"tokens": TOKENS}), logits, FLOAT32)
    assert models.describe(pairs)["head"]["kind"] == "pair_classifier"
    classifier = models.token_classifier(model, 3)  # of each residue of the target
    assert classifier({"tokens": TOKENS}).shape == (B, N, 3)


def test_one_sequence_and_more_padding():
    """An alignment of the target alone; rows and columns of padding change nothing."""
    model = randomize(models.evoformer(**SMALL))
    expected = model({"tokens": TOKENS[:1, :1]})
    wide = np.pad(TOKENS[:1, :1], [(0, 0), (0, 3), (0, 2)])
    found = model({"tokens": wide})
    assert_close(found["alignment"][:, :1, :N], expected["alignment"], FLOAT32)
    assert_close(found["pairs"][:, :N, :N], expected["pairs"], FLOAT32)
    assert_close(found["features"][:, :N], expected["features"], FLOAT32)


def test_the_order_of_sequences_does_not_matter():
    model = randomize(models.evoformer(**SMALL, num_recycles=1))
    order = np.array([0, 4, 2, 1, 3])
    found, expected = model({"tokens": TOKENS[:, order]}), model({"tokens": TOKENS})
    assert_close(found["alignment"], to_numpy(expected["alignment"])[:, order], FLOAT32)
    assert_close(found["pairs"], expected["pairs"], FLOAT32)


def test_recycling_restarts_at_a_uniform_run():
    """With resets at rates 1/2, 1/3 and 1/4, the last reset is each run with probability 1/4."""
    model = models.evoformer(**{**SMALL, "num_layers": 1}, num_recycles=3)
    rates = [model.get_layer(f"restart_{run}").rate for run in (1, 2, 3)]
    last = [np.prod([1 - x for x in rates])]
    last += [rates[i] * np.prod([1 - x for x in rates[i + 1 :]]) for i in range(3)]
    np.testing.assert_allclose(last, 0.25, rtol=1e-12)


@tensorflow_only
def test_recycling_has_no_gradient_through_earlier_runs():
    """The gradient is that of the last run, whose inputs are the earlier run's results."""
    import tensorflow as tf

    given = {**SMALL, "num_layers": 1}
    twice = models.evoformer(**given, num_recycles=1)
    randomize(twice)
    inputs = {"tokens": TOKENS}
    block = twice.get_layer("block_0_pairs")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(twice(inputs)["pairs"]))
    found = tape.gradient(loss, block.weights[0].value)
    # By hand: the first run's results as constants.
    layers = {layer.name: layer for layer in twice.layers}
    mask = TOKENS != 0

    def run(row, z):
        x = layers["embedding"](TOKENS) + layers["target_embedding"](TOKENS[:, 0])[:, None]
        z0 = layers["pair_embedding"](TOKENS[:, 0])
        z = z0 + layers["recycled_pairs_norm"](tf.zeros_like(z0) if z is None else z)
        x = layers["recycled_alignment"](x, tf.zeros_like(x[:, 0]) if row is None else row)
        x = layers["block_0_alignment"](x, z, mask=mask)
        return x, block(z, x, mask=mask)

    x, z = run(None, None)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(run(x[:, 0], z)[1]))
    assert_close(found, tape.gradient(loss, block.weights[0].value), FLOAT32)


@pytest.mark.slow
@tensorflow_only
def test_rematerialization_keeps_values_and_gradients():
    """In a graph, with the recycling and the extra stack; less is kept for the backward pass."""
    import tensorflow as tf

    given = {**SMALL, "num_layers": 1, "num_sequences": S, "num_residues": N}
    plain = randomize(models.evoformer(**given))
    saved = models.evoformer(**given, rematerialize=True)
    saved.set_weights(plain.get_weights())
    gradients, products = [], []
    for model in (plain, saved):

        @tf.function
        def step(tokens, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.sin(model({"tokens": tokens}, training=False)["pairs"]))
            variables = [x.value for x in model.trainable_weights]
            return tape.gradient(loss, variables, unconnected_gradients="zero")

        gradients.append(step(TOKENS))
        operations = step.get_concrete_function(tf.TensorSpec(TOKENS.shape, "int32")).graph
        products.append(sum(x.type == "Softmax" for x in operations.get_operations()))
    for a, b in zip(*gradients, strict=True):
        assert_close(b, a, FLOAT32)
    assert products[1] == 2 * products[0]  # computed again


@pytest.mark.slow
@tensorflow_only
def test_it_learns_to_fill_in_an_alignment():
    """Column i of each alignment has the letter of its number: the profile knows it, too."""
    keras.utils.set_random_seed(1)
    model = models.masked_msa(models.evoformer(**{**SMALL, "num_layers": 1}, num_residues=N))
    tokens = np.tile(1 + np.arange(N), (8, 4, 1)) + np.arange(8)[:, None, None]
    hidden = np.where(np.random.default_rng(0).random(tokens.shape) < 0.2, 23, tokens)
    weights = (hidden == 23).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = MaskedAccuracy(ignore_class=0)
    model.compile(keras.optimizers.Adam(0.02), loss, weighted_metrics=[accuracy], jit_compile=False)
    model.fit({"tokens": hidden}, tokens, sample_weight=weights, epochs=60, batch_size=8, verbose=0)
    found = to_numpy(model({"tokens": hidden})).argmax(-1)
    # Chance is 1 in 20; other rows of the column show the letter.
    assert (found == tokens)[weights > 0].mean() > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, r"num_heads \(3\) must divide dim \(10\)"),
        ({"num_pair_heads": 4}, r"num_pair_heads \(4\) must divide pair_dim \(6\)"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_recycles": -1}, "num_recycles must be at least 0, got -1"),
        ({"extra_feature_dim": 2}, "extra_feature_dim needs num_extra_layers of at least 1"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        models.evoformer(**{**SMALL, **options})


def test_heads_need_a_model_of_alignments():
    bert = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    for head in (models.masked_msa, lambda x: models.pair_classifier(x, 2)):
        with pytest.raises(ValueError, match="needs a model of alignments, evoformer, got 'bert'"):
            head(bert)


def test_sizes_are_those_of_the_paper():
    """One block of each stack of AlphaFold 2, by hand: as 48 and 4 of them, some 88 million."""
    given = {**SIZES["alphafold2"], "num_layers": 1, "num_extra_layers": 1, "num_recycles": 0}
    model = models.evoformer(**given)

    def attention(d, width):
        return d * 3 * width + (d + 1) * width + (width + 1) * d

    def transition(d):
        return 2 * d + (d + 1) * 4 * d + (4 * d + 1) * d

    m, z, e = 256, 128, 64
    pairs = 2 * (4 * z + 5 * z * (z + 1) + z * (z + 1)) + 2 * (2 * z + 4 * z + attention(z, z))
    pairs += transition(z)

    def outer(d):
        return 2 * d + (d + 1) * 64 + (1024 + 1) * z

    rows = 2 * m + 2 * z + 8 * z + attention(m, m) + 2 * m + attention(m, m) + transition(m)
    shared = e * 64 + e * 16 + 2 * (e + 1) * e - e * 0  # query, key and value, gate and output
    extra = 2 * e + 2 * z + 8 * z + attention(e, e) + 2 * e + shared + transition(e)
    counts = {
        "block_0_alignment": rows,
        "block_0_pairs": outer(m) + pairs,
        "extra_0_alignment": extra,
        "extra_0_pairs": outer(e) + pairs,
    }
    for name, count in counts.items():
        assert model.get_layer(name).count_params() == count
