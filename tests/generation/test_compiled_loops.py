"""A `Generator` compiles its loop once, and its results follow the model's weights."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from blocks import decoder_block
from execution import tensorflow_only
from small_models import BLOCK, DIM, TARGET_SIZE, decoder_only, randomize

from keras_tfm import layers
from keras_tfm.generation import Beam, Contrastive, Generator, Greedy, Sample, generate
from keras_tfm.generation.generator import compile_function

PROMPTS = [[3, 4, 5], [6, 7, 8]]
SHORTER = [[3, 4, 5], [6, 7]]
compiling = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch runs the loop eagerly"
)


class Counted(Greedy):
    """Counts how often `choose` is traced."""

    def __init__(self):
        object.__setattr__(self, "count", 0)

    def choose(self, logits, context):
        object.__setattr__(self, "count", self.count + 1)
        return super().choose(logits, context)


@pytest.fixture(scope="module")
def model():
    return decoder_only(num_layers=1)


@compiling
@pytest.mark.parametrize("call", [Generator.__call__, lambda g, x: list(g.stream(x))])
def test_a_second_call_traces_nothing(model, call):
    strategy = Counted()
    generator = Generator(model, 9, strategy=strategy)
    first, traces = call(generator, PROMPTS), strategy.count
    assert traces > 0
    second = call(generator, [row[::-1] for row in PROMPTS])
    assert strategy.count == traces
    assert not np.array_equal(np.array(first[0]), np.array(second[0]))
    again = call(generator, PROMPTS)
    np.testing.assert_array_equal(np.array(first[0]), np.array(again[0]))
    call(generator, SHORTER)  # with padding, which is another loop
    assert strategy.count > traces


def test_new_weights_are_read_without_another_trace(model):
    strategy = Counted()
    model = keras.models.clone_model(model)
    generator = Generator(model, 9, strategy=strategy)
    randomize(model, 1)
    before, traces = generator(PROMPTS), strategy.count
    randomize(model, 2)
    after = generator(PROMPTS)
    assert strategy.count == traces or keras.backend.backend() == "torch"
    expected = generate(model, PROMPTS, 9).tokens
    np.testing.assert_array_equal(after.tokens, expected)
    assert not np.array_equal(before.tokens, expected)


@pytest.mark.parametrize(
    "strategy",
    [
        Greedy(),
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (Beam(2), Sample(seed=1), Contrastive(2))
        ),
    ],
    ids=lambda s: type(s).__name__,
)
def test_a_generator_made_before_lora_uses_the_adapted_weights(strategy):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(TARGET_SIZE, DIM, mask_zero=True)(tokens)
    block = decoder_block(cross_attention=False, **BLOCK)
    head = keras.layers.Dense(TARGET_SIZE)
    model = randomize(keras.Model(tokens, head(block(x))), 3)
    generator = Generator(model, 9, strategy=strategy)
    base = generator(PROMPTS)
    head.enable_lora(2)
    head.lora_kernel_a.assign(np.ones(head.lora_kernel_a.shape))
    change = 5.0 * np.random.default_rng(0).normal(size=head.lora_kernel_b.shape)
    head.lora_kernel_b.assign(change)
    adapted = generator(PROMPTS)
    expected = Generator(model, 9, strategy=strategy)(PROMPTS)
    np.testing.assert_array_equal(adapted.tokens, expected.tokens)
    np.testing.assert_array_equal(adapted.scores, expected.scores)
    assert np.abs(adapted.scores - base.scores).max() > 0.1


def test_set_random_seed_determines_what_is_drawn(model):
    generator = Generator(model, 30, strategy=Sample())

    def drawn():
        return [generator(PROMPTS).tokens.tolist() for _ in range(2)]

    keras.utils.set_random_seed(5)
    first = drawn()
    keras.utils.set_random_seed(5)
    assert drawn() == first
    assert first[0] != first[1]
    keras.utils.set_random_seed(6)
    assert drawn() != first


def test_strategies_that_do_not_draw_leave_the_global_generator_alone(model):
    keras.utils.set_random_seed(5)
    expected = keras.ops.convert_to_numpy(keras.random.uniform((3,)))
    keras.utils.set_random_seed(5)
    generate(model, PROMPTS, 9)
    generate(model, PROMPTS, 9, strategy=Sample(seed=1))
    actual = keras.ops.convert_to_numpy(keras.random.uniform((3,)))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="runs this file on JAX")
def test_on_jax():
    """This file in a process with the JAX backend."""
    pytest.importorskip("jax")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    # Unoptimized, XLA compiles in half the time.
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


@tensorflow_only
@pytest.mark.parametrize("ours", [True, False])
def test_many_generators_do_not_look_like_one_that_is_traced_again_and_again(monkeypatch, ours):
    import tensorflow as tf

    def function():
        return lambda x: x + 1

    warned = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda *arguments: warned.append(arguments))
    for _ in range(7):
        plain = tf.function(function(), autograph=False)
        (compile_function(function(), []) if ours else plain)(tf.constant(0))
    assert bool(warned) is not ours  # what TensorFlow does by itself
