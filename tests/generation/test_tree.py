"""Which columns of a shared cache belong to each hypothesis, against a list of paths."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from blocks import decoder_block
from compare import to_numpy
from execution import MODES, execute, tensorflow_only
from small_models import TARGET_SIZE, randomize

from keras_tfm.generation import Beam, Contrastive
from keras_tfm.generation.gather import gather, gather_columns
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.generation.tree import Tree
from keras_tfm.layers import (
    ALiBi,
    PositionEmbedding,
    RelativePositionBias,
    RelativePositionEmbedding,
    RotaryEmbedding,
    TokenEmbedding,
)
from keras_tfm.models.features import with_features

B, N, S, FIRST = 3, 4, 40, 2


def step(tree, cache, paths, rng, ties):
    """One numbered token per hypothesis, in the cache and in the paths (B, N, T)."""
    position, column = paths.shape[2], int(tree.filled)
    new = rng.integers(1, 10**6, (B, N))
    cache[:, column : column + N] = new
    paths = np.concatenate([paths, new[:, :, np.newaxis]], axis=2)
    parents = rng.integers(0, N, (B, N)) if ties else np.tile(np.arange(N), (B, 1))
    paths = np.take_along_axis(paths, parents[:, :, np.newaxis], axis=1)
    return tree.grow(position, parents.astype("int32")), paths


def assert_paths(tree, cache, paths):
    """The columns of each hypothesis are its path, in order, at the right positions."""
    ancestors, positions = to_numpy(tree.ancestors), to_numpy(tree.positions)
    assert set(np.unique(ancestors)) <= {0.0, 1.0}
    assert not ancestors[:, :, int(tree.filled) :].any()
    for row in range(B):
        for hypothesis in range(N):
            columns = np.flatnonzero(ancestors[row, hypothesis])
            assert positions[columns].tolist() == list(range(paths.shape[2]))
            assert cache[row, columns].tolist() == paths[row, hypothesis].tolist()


def started(rng):
    cache = np.zeros((B, S), "int64")
    cache[:, :FIRST] = rng.integers(1, 10**6, (B, FIRST))
    paths = np.repeat(cache[:, np.newaxis, :FIRST], N, axis=1)
    return Tree.of_prompt(B, N, S, FIRST), cache, paths


@pytest.mark.parametrize("seed", range(5))
def test_a_pruned_tree_has_the_same_paths(seed):
    """As many columns a position as the row has that needs the most, and not one more."""
    rng = np.random.default_rng(seed)
    tree, cache, paths = started(rng)
    pruned = 0
    for _ in range(60):
        if int(tree.steps_left) < 1:
            tree, source = tree.prune()
            cache = np.take_along_axis(cache, to_numpy(source), axis=1)
            different = [
                max(len(set(paths[row, :, position])) for row in range(B))
                for position in range(paths.shape[2])
            ]
            positions = to_numpy(tree.positions)
            expected = np.repeat(np.arange(len(different)), different)
            assert int(tree.filled) == sum(different)
            np.testing.assert_array_equal(positions[: len(expected)], expected)
            assert not positions[len(expected) :].any()
            pruned += 1
            if int(tree.steps_left) < 1:
                break
        tree, paths = step(tree, cache, paths, rng, ties=True)
        assert_paths(tree, cache, paths)
    assert pruned > 1


def test_nothing_is_pruned_if_every_hypothesis_is_continued():
    rng = np.random.default_rng(0)
    tree, cache, paths = started(rng)
    while int(tree.steps_left):
        tree, paths = step(tree, cache, paths, rng, ties=False)
    after, source = tree.prune()
    np.testing.assert_array_equal(to_numpy(source)[:, : int(tree.filled)], [np.arange(38)] * B)
    for x, y in zip(after, tree, strict=True):
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


def test_a_wider_tree_has_room_for_more():
    rng = np.random.default_rng(0)
    tree, cache, paths = started(rng)
    assert int(tree.steps_left) == (S - FIRST) // N
    tree, paths = step(tree, cache, paths, rng, ties=True)
    wider = tree.wider(8)
    assert int(wider.steps_left) == int(tree.steps_left) + 2
    assert_paths(wider, np.pad(cache, [(0, 0), (0, 8)]), paths)


@pytest.mark.parametrize("mode", MODES)
def test_compiled_it_is_the_same(mode):
    rng = np.random.default_rng(1)
    tree, cache, paths = started(rng)
    for _ in range(5):
        tree, paths = step(tree, cache, paths, rng, ties=True)
    expected, source = tree.prune()
    actual, found = execute(mode, lambda *parts: Tree(*parts).prune(), *tree)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(source))
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


@pytest.mark.parametrize("batch", [1, 3])
def test_gather_is_numpys(batch):
    rng = np.random.default_rng(0)
    x, places = rng.normal(size=(batch, 5, 2, 3)), rng.integers(0, 5, (batch, 4))
    rows = [x[i, places[i]] for i in range(batch)]
    np.testing.assert_array_equal(to_numpy(gather(x, places)), rows)
    columns = places % 2
    expected = [x[i][:, columns[i]] for i in range(batch)]
    np.testing.assert_array_equal(to_numpy(gather_columns(x, columns)), expected)


# In a generation


def decoder(part, groups=None):
    """With a padding mask, a window, and a position part of one kind."""
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(TARGET_SIZE, 8, mask_zero=True)
    x = embedding(ids)
    if part == "learned":
        x = PositionEmbedding(LENGTH)(x)
    position = {
        "rotary": lambda: RotaryEmbedding(max_wavelength=20.0),
        "T5": lambda: RelativePositionBias(8, 16),
        "Shaw": lambda: RelativePositionEmbedding(3),
        "ALiBi": ALiBi,
    }.get(part, lambda: None)()
    for window in (None, 7):
        x = decoder_block(
            9,
            4,
            num_key_value_heads=groups,
            cross_attention=False,
            window=window,
            position=position,
        )(x)
        position = None if part == "Shaw" else position
    return randomize(keras.Model(ids, embedding(x, reverse=True)), seed=2)


LENGTH = 30


class Counting(GenerationLoop):
    """Counts the prunes, and notes the position at which the first capacity was used up."""

    pruned = 0
    sufficed = 0

    def _grow(self, state, capacity):
        if capacity > self._capacity:
            self.sufficed = int(state["strategy"].position)
        return super()._grow(state, capacity)

    def _prune(self, state):
        self.pruned += 1
        return super()._prune(state)


def log_probability(model, row, first):
    """Of all tokens after the first ones, by one full pass."""
    logits = to_numpy(model(row[np.newaxis])).astype("float64")[0]
    logits = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return sum(logits[i - 1, row[i]] for i in range(first, len(row)))


# Position parts, with the number of key heads.
PARTS = {"learned": None, "rotary": 2, "T5": 1, "Shaw": 2, "ALiBi": None}


WAYS = [(xla, padding) for padding in (0, 2) for xla in (False, True)]


# By default once: a part that turns keys, whose columns then move.
TREES = ("rotary",)


@pytest.mark.parametrize(
    ("part", "xla", "padding"),
    [
        pytest.param(
            part, *way, marks=[pytest.mark.slow] * (way != WAYS[i % 4] or part not in TREES)
        )
        for i, part in enumerate(PARTS)
        for way in WAYS
    ],
)
@tensorflow_only
def test_dropped_columns_change_nothing(part, xla, padding):
    """The same hypotheses and scores as without pruning; eager, so that prunes can be counted."""
    model = decoder(part, PARTS[part])
    prompt = np.random.default_rng(5).integers(1, TARGET_SIZE, (2, 3)).astype("int32")
    options = {}
    if padding:
        prompt[1, :padding] = 0
        options = {"padding": np.int32([0, padding]), "limit": np.int32([LENGTH, LENGTH])}
    strategy = Beam(3, length_penalty=0.0)
    results, loops = [], []
    for capacity in (24, 1000):
        arguments = (model, {}, interface_of(model).find_target(), prompt, LENGTH, (), strategy)
        loop = Counting(*arguments, capacity=capacity, xla=xla, **options)
        results.append({name: to_numpy(x) for name, x in loop.run().items()})
        loops.append(loop)
    assert loops[0].pruned > 1
    assert loops[1].pruned == 0
    np.testing.assert_array_equal(results[0]["tokens"], results[1]["tokens"])
    np.testing.assert_allclose(results[0]["scores"], results[1]["scores"], rtol=1e-5)
    assert len(np.unique(results[0]["tokens"])) > 4
    for row, score in enumerate(results[0]["scores"]):
        tokens = results[0]["tokens"][row, row * padding :]
        assert abs(score - log_probability(model, tokens, 3 - row * padding)) < 1e-4


@tensorflow_only
def test_candidates_have_all_but_the_last_in_common():
    """Contrastive search keeps one column per position, so the first capacity suffices."""
    model = with_features(decoder("rotary"))
    prompt = tf.constant([[3, 4], [5, 6]])
    arguments = (model, {}, interface_of(model).find_target(), prompt, LENGTH, (), Contrastive(4))
    loop = Counting(*arguments, capacity=40)
    tokens = to_numpy(loop.run()["tokens"])
    assert loop.pruned > 1
    assert loop.sufficed == LENGTH
    expected = GenerationLoop(*arguments, capacity=1000).run()["tokens"]
    np.testing.assert_array_equal(tokens, to_numpy(expected))
