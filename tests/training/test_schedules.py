import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from execution import saving

from keras_tfm.training import LinearSchedule, TransformerSchedule

# Float32 rounds at 6e-8: a root, two products and a power.
FLOAT32 = 5e-7


@pytest.mark.parametrize(("dim", "warmup_steps"), [(512, 4000), (64, 7), (1, 1), (1024, 16_000)])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 3999, 4000, 4001, 100_000, 10_000_000])
def test_equals_the_formula(step, dim, warmup_steps):
    """Keras counts steps from 0, the paper from 1."""
    actual = float(TransformerSchedule(dim, warmup_steps)(step - 1))
    expected = reference.transformer_schedule(step, dim, warmup_steps)
    assert actual == pytest.approx(expected, rel=FLOAT32)


def test_by_hand():
    schedule = TransformerSchedule(dim=4, warmup_steps=4, factor=2.0)
    # Twice 1/2 min(1, 1/8), 1/2 (4 / 8), 1/2 (1 / 4).
    assert [float(schedule(step)) for step in (0, 3, 15)] == pytest.approx([0.125, 0.5, 0.25])


def test_the_peak_is_at_the_end_of_the_warm_up():
    rates = [float(TransformerSchedule(64, 10)(step)) for step in range(30)]
    assert np.argmax(rates) == 9
    assert np.all(np.diff(rates[:10]) > 0) and np.all(np.diff(rates[9:]) < 0)
    assert rates[9] == pytest.approx(1 / 640**0.5, rel=FLOAT32)


def test_the_first_step_of_an_optimizer_is_step_1():
    """With a gradient of 1, SGD moves by the rate."""
    optimizer = keras.optimizers.SGD(TransformerSchedule(dim=16, warmup_steps=2))
    variable = keras.Variable([0.0])
    moved = 0.0
    for step in (1, 2, 3):
        expected = reference.transformer_schedule(step, 16, 2)
        assert float(optimizer.learning_rate) == pytest.approx(expected, rel=FLOAT32)
        optimizer.apply([keras.ops.ones(1)], [variable])
        moved -= expected
        assert_close(variable, [moved], 1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_follows_it(jit_compile):
    """A weight that starts at 0, with a loss whose gradient is 1 throughout."""
    x = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(x, dense(x))
    model.compile(
        keras.optimizers.SGD(TransformerSchedule(dim=16, warmup_steps=3)),
        lambda y, p: keras.ops.mean(p),
        jit_compile=jit_compile,
    )
    model.fit(np.ones((5, 1)), np.zeros((5, 1)), batch_size=1, verbose=0)
    expected = -sum(reference.transformer_schedule(step, 16, 3) for step in range(1, 6))
    assert_close(dense.kernel, [[expected]], 1e-6)


@saving
def test_a_compiled_model_keeps_the_schedule_and_the_step(tmp_path):
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(TransformerSchedule(16, 3, factor=0.5)), "mse")
    model.fit(np.ones((4, 1)), np.zeros((4, 1)), batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = 0.5 * reference.transformer_schedule(5, 16, 3)
    for optimizer in (model.optimizer, loaded.optimizer):
        assert to_numpy(optimizer.learning_rate) == pytest.approx(expected, rel=FLOAT32)
    config = keras.saving.serialize_keras_object(TransformerSchedule(16, 3, factor=0.5))["config"]
    assert config == {"dim": 16, "warmup_steps": 3, "factor": 0.5}


@pytest.mark.parametrize(("dim", "warmup_steps"), [(0, 5), (5, 0)])
def test_impossible_schedules_are_refused(dim, warmup_steps):
    message = f"dim and warmup_steps must be at least 1, got {dim} and {warmup_steps}"
    with pytest.raises(ValueError, match=message):
        TransformerSchedule(dim, warmup_steps)


def linear_with_warmup(step, warmup_steps, total_steps):
    """The factor of transformers.get_linear_schedule_with_warmup 4.57, optimization.py."""
    if step < warmup_steps:
        return float(step) / float(max(1, warmup_steps))
    return max(0.0, float(total_steps - step) / float(max(1, total_steps - warmup_steps)))


@pytest.mark.parametrize(("warmup_steps", "total_steps"), [(0, 1), (0, 7), (3, 7), (500, 10_000)])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 6, 7, 8, 499, 500, 501, 9_999, 10_000, 20_000])
def test_linear_equals_that_of_transformers(step, warmup_steps, total_steps):
    actual = float(LinearSchedule(3e-4, total_steps, warmup_steps)(step))
    expected = 3e-4 * linear_with_warmup(step, warmup_steps, total_steps)
    assert actual == pytest.approx(expected, rel=FLOAT32, abs=1e-10)


def test_linear_by_hand():
    # Up from 0 to 8 in 2 steps, down to 2 in 3.
    schedule = LinearSchedule(peak=8.0, total_steps=5, warmup_steps=2, end=2.0)
    assert [float(schedule(step)) for step in range(8)] == [0, 4, 8, 6, 4, 2, 2, 2]


def test_linear_without_warm_up_equals_keras_s_polynomial_decay():
    schedule = LinearSchedule(0.3, total_steps=11, end=0.1)
    expected = keras.optimizers.schedules.PolynomialDecay(0.3, 11, end_learning_rate=0.1)
    for step in range(15):
        assert float(schedule(step)) == pytest.approx(float(expected(step)), rel=FLOAT32)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fit_follows_the_linear_one(jit_compile):
    x = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(x, dense(x))
    model.compile(
        keras.optimizers.SGD(LinearSchedule(8.0, 5, 2, end=2.0)),
        lambda y, p: keras.ops.mean(p),
        jit_compile=jit_compile,
    )
    model.fit(np.ones((6, 1)), np.zeros((6, 1)), batch_size=1, verbose=0)
    assert_close(dense.kernel, [[-(0 + 4 + 8 + 6 + 4 + 2)]], 1e-6)


@saving
def test_a_compiled_model_keeps_the_linear_one(tmp_path):
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(LinearSchedule(8.0, 5, 2, end=2.0)), "mse")
    model.fit(np.ones((3, 1)), np.zeros((3, 1)), batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert to_numpy(loaded.optimizer.learning_rate) == 6.0
    config = keras.saving.serialize_keras_object(LinearSchedule(8.0, 5, 2, end=2.0))["config"]
    assert config == {"peak": 8.0, "total_steps": 5, "warmup_steps": 2, "end": 2.0}


@pytest.mark.parametrize(("warmup_steps", "total_steps"), [(5, 5), (-1, 5), (0, 0)])
def test_impossible_linear_schedules_are_refused(warmup_steps, total_steps):
    message = f"fewer than total_steps, got {warmup_steps} and {total_steps}"
    with pytest.raises(ValueError, match=message):
        LinearSchedule(1.0, total_steps, warmup_steps)
