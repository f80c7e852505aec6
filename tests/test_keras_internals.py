"""Each private name of Keras that the package uses is still there, and still means the same."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tfm import keras_internals
from keras_tfm.keras_internals import (
    accepts_training,
    attention_parts,
    calls_of,
    child_layers,
    cumsum_operation,
    get_mask,
    lambda_output_shape,
    layout_of,
    nodes_in_order,
    producer,
    remat_mode,
    run_recurrently,
    set_mask,
    set_remat_mode,
    sublayers,
    with_signbit,
    without_bincount,
)

ON_TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's trainer"
)
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], "float32")


def shared():
    """Two inputs, one layer called on both, a subtraction, and a layer on top."""
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    dense = keras.layers.Dense(3, name="dense")
    difference = keras.layers.Subtract(name="difference")([dense(a), dense(b)])
    y = keras.layers.Dropout(0.5, name="drop")(difference)
    return keras.Model([a, b], y), dense


class Holder(keras.layers.Layer):
    """A layer with a variable of its own and a layer inside."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def build(self, shape):
        self.own = self.add_weight(shape=(2,), name="own")
        self.frozen = self.add_weight(shape=(2,), name="frozen", trainable=False)
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x * self.own)


def test_layout_of_a_variable():
    variable = keras.Variable(np.zeros(2))
    assert layout_of(variable) is None
    layout = keras.distribution.TensorLayout((None,))
    if keras.backend.backend() != "jax":
        assert layout_of(keras.Variable(np.zeros(2), layout=layout)) is layout


def test_every_function_is_tested_here():
    functions = inspect.getmembers(keras_internals, inspect.isfunction)
    names = [name for name, f in functions if f.__module__ == keras_internals.__name__]
    assert len(names) > 20
    used = set(
        re.findall(r"(?:keras_internals\.|(?<=[ (]))(\w+)\b(?!,)", Path(__file__).read_text())
    )
    assert [name for name in names if name not in used] == []


def test_the_import_loads_neither_keras_nor_tensorflow():
    script = (
        "import sys, keras_tfm.keras_internals; print({'keras', 'tensorflow'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr


# The graph of a functional model.


def test_nodes_in_order():
    model, _ = shared()
    nodes = nodes_in_order(model)
    assert [node.operation.name for node in nodes] == ["dense", "dense", "difference", "drop"]
    known = {id(x) for x in model.inputs}
    for node in nodes:
        assert {id(x) for x in node.input_tensors} <= known
        known |= {id(x) for x in node.output_tensors}
    assert {id(x) for x in model.outputs} <= known


def test_nodes_in_order_of_a_model_inside_a_model():
    model, dense = shared()
    a = keras.Input((2,))
    outer = keras.Model(a, model([a, dense(dense(a)[:, :2])[:, :2]]))
    assert model in [node.operation for node in nodes_in_order(outer)]
    # Calls outside a model are none of its own.
    assert [x.operation.name for x in nodes_in_order(model)].count("dense") == 2


def test_calls_of():
    model, dense = shared()
    first, second = calls_of(dense)
    assert first.input_tensors[0] is model.inputs[0]
    assert second.input_tensors[0] is model.inputs[1]


def test_producer():
    model, dense = shared()
    operation, node_index, tensor_index = producer(model.output)
    assert (operation.name, node_index, tensor_index) == ("drop", 0, 0)
    difference = producer(calls_of(operation)[0].input_tensors[0]).operation
    left, right = calls_of(difference)[0].input_tensors
    assert producer(left).node_index == 0
    assert producer(right) == (dense, 1, 0)
    assert producer(model.inputs[0]).operation.name == "a"


def test_producer_of_one_of_several_outputs():
    x = keras.Input((4,))
    _, second = keras.ops.split(x, 2, axis=1)
    assert producer(second).tensor_index == 1


def test_a_node_fills_in_its_arguments():
    scale = keras.layers.Add()
    a, b = keras.Input((2,)), keras.Input((2,))
    scale([a, b])
    (node,) = calls_of(scale)
    assert node.arguments.fill_in({id(a): 3, id(b): 5}) == (([3, 5],), {})
    attention = keras.layers.MultiHeadAttention(2, 3)
    x = keras.Input((5, 2))
    attention(x, value=x, use_causal_mask=True)
    args, kwargs = calls_of(attention)[0].arguments.fill_in({id(x): 7})
    assert args == (7,)
    assert kwargs["value"] == 7 and kwargs["use_causal_mask"] is True


def test_accepts_training():
    x = keras.Input((2,))
    drop, square = nodes_in_order(keras.Model(x, keras.ops.square(keras.layers.Dropout(0.5)(x))))
    assert accepts_training(drop.operation)
    assert not accepts_training(square.operation)


# Layers and tensors.


def test_sublayers():
    holder = Holder()
    x = keras.Input((2,))
    inside = keras.Model(x, holder(holder(x)))
    model = keras.Sequential([x, inside])
    layers = sublayers(model)
    assert layers.count(holder) == layers.count(holder.inner) == 1
    assert model not in layers
    assert sublayers(holder) == [holder.inner]


def test_child_layers():
    holder = Holder()
    x = keras.Input((2,))
    model = keras.Model(x, holder(x))
    assert holder in child_layers(model)
    assert holder.inner not in child_layers(model)
    assert child_layers(holder) == [holder.inner]


def test_own_trainable_variables():
    holder = Holder()
    holder.build((None, 2))
    assert keras_internals.own_trainable_variables(holder) == [holder.own]


def test_own_state():
    norm = keras.layers.BatchNormalization()
    norm.build((None, 2))
    found = keras_internals.own_state(keras.Sequential([norm]).layers[0])
    assert found == [norm.moving_mean, norm.moving_variance]


def test_remat_mode():
    plain = keras.layers.Dense(3)
    assert remat_mode(plain) is None
    with keras.RematScope(mode="full"):
        dense = keras.layers.Dense(3)
    assert remat_mode(dense).mode == "full"
    set_remat_mode(plain, remat_mode(dense))
    function = plain.rematerialized_call(plain.call)
    assert function is not plain.call and function != plain.call
    set_remat_mode(plain, None)
    assert remat_mode(plain) is None


def test_run_after_build():
    seen = []

    @keras_internals.run_after_build
    class Built(keras.layers.Layer):
        def build(self, shape):
            self.built = True

        def after_build(self):
            seen.append(self.built)

        def call(self, x):
            return x

    layer = Built()
    assert seen == []
    layer(X)
    layer(X)
    assert seen == [True]


LAYERS = {
    "dense": (lambda: keras.layers.Dense(5), (None, 4), ("kernel",)),
    "einsum in": (
        lambda: keras.layers.EinsumDense("abc,cde->abde", (None, 2, 5)), (None, None, 4),
        ("kernel",),
    ),
    "einsum out": (
        lambda: keras.layers.EinsumDense("abde,dec->abc", (None, 4)), (None, None, 2, 5),
        ("kernel",),
    ),
    "embedding": (lambda: keras.layers.Embedding(7, 5), (None,), ("embeddings",)),
    "tied": (lambda: keras.layers.ReversibleEmbedding(7, 5), (None,), ("embeddings",)),
    "untied": (
        lambda: keras.layers.ReversibleEmbedding(7, 5, tie_weights=False), (None,),
        ("embeddings", "reverse_embeddings"),
    ),
}  # fmt: skip


MODES = ["int8", "int4", "int4 in one block", "float8", None]
# Keras has no float8 embeddings.
CASES = [
    (x, mode) for x in LAYERS for mode in MODES if mode != "float8" or LAYERS[x][2] == ("kernel",)
]


@pytest.mark.parametrize("kind, mode", CASES)
def test_float_kernel(kind, mode):
    make, shape, names = LAYERS[kind]
    layer = make()
    layer.build(shape)
    exact = {name: keras.ops.convert_to_numpy(getattr(layer, name)) for name in names}
    if mode == "int4 in one block":  # symmetric, without zero points
        config = keras.quantizers.Int4QuantizationConfig(block_size=None)
        layer.quantize("int4", config=config)
    elif mode:
        layer.quantize(mode)
    levels = {"int8": 127, "float8": 1e6, None: 1e6}.get(mode, 7)
    for name, value in exact.items():
        found = keras.ops.convert_to_numpy(keras_internals.float_kernel(layer, name))
        np.testing.assert_allclose(found, value, atol=np.abs(value).max() / levels)


@pytest.mark.parametrize("mode", ["int8", "int4", None])
@pytest.mark.parametrize("kind", ["dense", "einsum in", "embedding"])
def test_float_kernel_merges_adapters(kind, mode):
    make, shape, (name,) = LAYERS[kind]
    layer = make()
    layer.build(shape)
    if mode:
        layer.quantize(mode)
    before = keras.ops.convert_to_numpy(keras_internals.float_kernel(layer, name))
    layer.enable_lora(2, lora_alpha=6)
    a, b = (getattr(layer, f"lora_{name}_{x}") for x in "ab")
    b.assign(np.arange(10.0).reshape(2, 5))
    found = keras.ops.convert_to_numpy(keras_internals.float_kernel(layer, name))
    update = 3 * keras.ops.convert_to_numpy(keras.ops.matmul(a, b))
    np.testing.assert_allclose(found, before + update, atol=1e-5)


def test_get_mask_and_set_mask():
    ids = np.array([[1, 0, 2]])
    embedded = keras.layers.Embedding(3, 2, mask_zero=True)(ids)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(get_mask(embedded)), ids != 0)
    x = keras.ops.convert_to_tensor(np.ones((1, 3, 2), "float32"))
    assert get_mask(x) is None
    set_mask(x, keras.ops.convert_to_tensor([[True, True, False]]))
    taken = []

    class Taker(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            taken.append(mask)
            return x

    Taker()(x)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(taken[0]), [[True, True, False]])
    set_mask(x, None)
    assert get_mask(x) is None


# Seeds and variables.


def test_global_seed():
    keras.utils.set_random_seed(3)
    keras.random.uniform(())
    seed = keras_internals.global_seed()
    before = keras.ops.convert_to_numpy(seed.value)
    first = keras.ops.convert_to_numpy(keras.random.uniform((4,)))
    assert not np.array_equal(before, keras.ops.convert_to_numpy(seed.value))
    seed.assign(before)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(keras.random.uniform((4,))), first)


def test_set_initial_seed():
    generator = keras.random.SeedGenerator.__new__(keras.random.SeedGenerator)
    keras_internals.set_initial_seed(generator, 5)
    generator.name = "seeds"
    assert generator.get_config()["seed"] == 5


def test_uninitialized_variables():
    before = keras_internals.uninitialized_variables()
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable(lambda shape, dtype: keras.ops.zeros(shape, dtype), shape=(2,))
    waiting = keras_internals.uninitialized_variables()
    keras_internals.set_uninitialized_variables(before)
    assert len(waiting) == len(before) + 1 and waiting[-1] is variable
    assert keras_internals.uninitialized_variables() == before


def without_storage(trainable=True):
    """A variable of shape (2, 3) without storage, which would be filled with ones."""
    before = keras_internals.uninitialized_variables()
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable("ones", shape=(2, 3), dtype="float32", trainable=trainable)
    keras_internals.set_uninitialized_variables(before)
    return variable


@pytest.mark.parametrize("trainable", [True, False])
def test_initialize(trainable):
    variable, value = without_storage(trainable), np.arange(6.0).reshape(2, 3)
    assert not keras_internals.is_initialized(variable)
    keras_internals.initialize(variable, value)
    assert keras_internals.is_initialized(variable)
    assert variable.dtype == "float32" and variable.trainable == trainable
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)
    variable.assign(value + 1)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value + 1)


def test_initialize_by_the_initializer():
    variable = without_storage()
    keras_internals.initialize(variable)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), np.ones((2, 3)))


def test_read_when_used():
    variable, reads = without_storage(), []

    def read():
        reads.append(1)
        return np.full((2, 3), float(len(reads)), "float32")

    keras_internals.read_when_used(variable, read)
    assert not reads and variable.shape == (2, 3)
    for number in (1.0, 2.0):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), np.full((2, 3), number))
    assert not keras_internals.is_initialized(variable)
    np.testing.assert_array_equal(keras_internals.read_value(variable), np.full((2, 3), 3.0))
    keras_internals.initialize(variable)
    assert keras_internals.is_initialized(variable) and len(reads) == 4
    np.testing.assert_array_equal(keras_internals.read_value(variable), np.full((2, 3), 4.0))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="traces a graph of TensorFlow")
def test_read_when_used_in_a_graph():
    """It is no constant of the graph, but read when the graph runs."""
    import tensorflow as tf

    variable, reads = without_storage(), []

    def read():
        reads.append(1)
        return np.full((2, 3), float(len(reads)), "float32")

    keras_internals.read_when_used(variable, read)
    function = tf.function(lambda x: keras.ops.matmul(x, variable))
    x = np.ones((1, 2), "float32")
    traced = function.get_concrete_function(tf.constant(x))
    assert not reads and traced.structured_outputs.shape == (1, 3)
    for number in (1.0, 2.0):
        np.testing.assert_array_equal(function(x), np.full((1, 3), 2 * number))


def test_read_value():
    variable = keras.Variable(np.arange(6.0).reshape(2, 3), dtype="float32")
    np.testing.assert_array_equal(
        keras_internals.read_value(variable), np.arange(6.0).reshape(2, 3)
    )


def test_in_memory():
    variable, reads = without_storage(), []

    def read():
        reads.append(1)
        return np.full((2, 3), 5.0, "float32")

    keras_internals.read_when_used(variable, read)
    other = keras.Variable(np.zeros(2), dtype="float32")
    with pytest.raises(KeyError), keras_internals.in_memory([variable, other]):
        for _ in range(3):
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(variable), np.full((2, 3), 5.0)
            )
        assert keras_internals.is_initialized(variable) and len(reads) == 1
        raise KeyError
    assert not keras_internals.is_initialized(variable)
    assert keras_internals.is_initialized(other)


def test_is_functional():
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x))

    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    assert keras_internals.is_functional(model)
    assert not keras_internals.is_functional(Own())
    assert not keras_internals.is_functional(model.layers[1])


def test_functional_of():
    class Own(keras.Sequential):
        def call(self, inputs):
            return inputs

    parts = [keras.Input((3,)), keras.layers.Dense(2)]
    model, own = keras.Sequential(parts, name="two"), Own(parts)
    open_ = keras.Sequential([keras.layers.Dense(2)])
    graph = keras_internals.functional_of(model)
    assert keras_internals.is_functional(graph) and graph.name == "two"
    assert [x.name for x in graph.inputs] == [x.name for x in model.inputs]
    for other in (own, open_, graph, parts[1]):
        assert keras_internals.functional_of(other) is other


def test_object_sharing_scope():
    shared = keras.layers.Dense(2)
    with keras_internals.object_sharing_scope():
        configs = [keras.saving.serialize_keras_object(shared) for _ in range(2)]
        first, second = (keras.saving.deserialize_keras_object(configs[1]) for _ in range(2))
    assert first is second


def test_object_sharing_scope_inside_another_one():
    shared = keras.layers.Dense(2)
    with keras_internals.object_sharing_scope():
        configs = [keras.saving.serialize_keras_object(shared) for _ in range(2)]
        first = keras.saving.deserialize_keras_object(configs[1])
        with keras_internals.object_sharing_scope():
            pass
        assert keras.saving.deserialize_keras_object(configs[1]) is first
    assert keras.saving.deserialize_keras_object(configs[1]) is not first


def test_share_in_clones():
    """`clone_model` copies each layer inside one scope, and a call still runs the graph."""

    @keras_internals.share_in_clones
    class Shares(keras.Model):
        pass

    shared = keras.initializers.Constant(3.0)

    def copied(layer):
        keras.saving.serialize_keras_object(shared)
        config = keras.saving.serialize_keras_object(shared)
        copies.append(keras.saving.deserialize_keras_object(config))
        return layer

    inputs = keras.Input((2,))
    graph = inputs, keras.layers.ReLU()(keras.layers.ReLU()(inputs))
    for kind, number in ((Shares, 1), (keras.Model, 2)):
        copies = []
        model = kind(*graph)
        keras.models.clone_model(model, clone_function=copied)
        assert len({id(x) for x in copies}) == number
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(-X)), np.zeros_like(X))


def test_call_with_known_inputs():
    """Keras's own calls, a nested model's, and the graph of a class with a `call` of its own."""
    seen = []
    functional = type(shared()[0])

    @keras_internals.call_with_known_inputs
    class Checked(functional):
        def known_inputs(self, inputs):
            seen.append(type(inputs))
            return inputs

    class Halved(Checked):
        def call(self, inputs):
            return super().call({"x": inputs[0] / 2})

    x = keras.Input((2,), name="x")
    model = Checked({"x": x}, keras.layers.ReLU()(x))
    seen.clear()
    model({"x": X})
    model.predict({"x": X}, verbose=0)
    model.stateless_call([], [], {"x": X})
    assert set(seen) == {dict} and len(seen) > 3
    seen.clear()
    model({"x": keras.Input((2,))})
    assert dict in seen
    halved = Halved({"x": x}, keras.layers.ReLU()(x))
    seen.clear()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(halved([X])), X / 2)
    assert seen == [dict]


def test_saved_content_and_load_content():
    model, _ = shared()
    model.compile(keras.optimizers.SGD(0.5))
    again = keras_internals.load_content(keras_internals.saved_content(model))
    expected = keras.ops.convert_to_numpy(model([X, 2 * X]))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again([X, 2 * X])), expected)
    assert float(again.optimizer.learning_rate) == 0.5


def test_in_symbolic_scope():
    seen = []

    class Layer(keras.layers.Layer):
        def call(self, x):
            seen.append(keras_internals.in_symbolic_scope())
            return x

    Layer()(X)
    Layer()(keras.Input((2,)))
    assert seen == [False, True]


def test_are_probabilities():
    inputs = keras.Input((2,))
    for activation, known in (("softmax", True), ("sigmoid", True), ("relu", False)):
        model = keras.Model(inputs, keras.layers.Dense(3, activation=activation)(inputs))
        made = []
        loss = lambda y, y_pred: made.append(y_pred) or keras.ops.mean(y_pred)  # noqa: B023, E731
        model.compile("sgd", loss)
        model.fit(X, X[:, :1], verbose=0)
        if keras.backend.backend() == "tensorflow":
            assert keras_internals.are_probabilities(made[0]) == known
    y = keras.activations.softmax(keras.ops.convert_to_tensor(X))
    assert keras_internals.are_probabilities(y) == (keras.backend.backend() != "jax")


def test_a_value_without_autocast():
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    seen = []

    class Reader(keras.layers.Layer):
        def call(self, x):
            seen.extend(
                keras.backend.standardize_dtype(value.dtype)
                for value in (
                    layer.kernel.value,
                    keras_internals.value_without_autocast(layer.kernel),
                )
            )
            return x

    layer.build((None, 2))
    Reader(dtype="mixed_bfloat16")(np.ones((1, 2), "float32"))
    assert seen == ["bfloat16", "float32"]


def test_the_current_stateless_scope():
    assert keras_internals.current_stateless_scope() is None
    with keras.StatelessScope() as scope:
        assert keras_internals.current_stateless_scope() is scope


def test_outputs_of_clones_are_marked():
    seen = []

    @keras_internals.mark_clones
    class Marked(type(shared()[0])):
        def mark_clone(self, outputs):
            seen.append(outputs)

    plain, _ = shared()
    model = Marked(plain.inputs, plain.outputs)
    a, b = keras.Input((2,)), keras.Input((2,))
    keras.Model([a, b], model([a, b]))
    model([X, X])
    assert not seen
    clone = keras.models.clone_model(model)
    assert seen[0][0] is clone.outputs[0]


@pytest.mark.parametrize(
    ("layer", "window"),
    [
        (keras.layers.MultiHeadAttention(2, 3), None),
        (keras.layers.MultiHeadAttention(2, 3, sliding_window=2, use_gate=True), 2),
        (keras.layers.GroupQueryAttention(3, 4, 2, sliding_window=5), 5),
    ],
)
def test_attention_parts(layer, window):
    x = np.random.default_rng(0).normal(size=(1, 1, 4)).astype("float32")
    expected = layer(x, x)
    parts = attention_parts(layer)
    assert parts.window == window
    value = parts.value(x)  # a single key has the weight 1
    heads = parts.query(x).shape[2]
    value = keras.ops.repeat(value, heads // value.shape[2], axis=2)
    y = value if parts.gate is None else value * parts.gate(x)
    np.testing.assert_allclose(parts.output(y), expected, atol=1e-6)


def test_attention_of_another_kind_has_no_parts():
    class Other(keras.layers.MultiHeadAttention):
        def _compute_attention(self, query, key, value, *_, **__):
            return value, None

    x = np.ones((1, 2, 4), "float32")
    layer = Other(2, 3)
    layer(x, x)
    assert attention_parts(layer) is None
    rows = keras.layers.MultiHeadAttention(2, 3, attention_axes=(2,))
    rows(x[None], x[None])
    assert attention_parts(rows) is None


def test_cumsum_operation():
    x = keras.Input((3,))
    assert type(producer(keras.ops.cumsum(x, axis=1)).operation) is cumsum_operation()


@ON_TENSORFLOW
def test_with_signbit():
    signs = []

    def sign(x):
        signs.append(x)
        return x < 1

    x = keras.ops.convert_to_tensor([0.5, -0.0, 3.0])
    with with_signbit(sign):
        assert keras.ops.convert_to_numpy(keras.ops.signbit(x)).tolist() == [True, True, False]
        whole = keras.ops.signbit(keras.ops.convert_to_tensor([-1, 0]))
        assert keras.ops.convert_to_numpy(whole).tolist() == [True, False]
    assert len(signs) == 1
    assert keras.ops.convert_to_numpy(keras.ops.signbit(x)).tolist() == [False, True, False]


def test_run_recurrently():
    def step(x, state):
        after = {"sum": state["sum"] + x, "last": x}
        return after["sum"] + state["last"], after

    x = np.arange(6, dtype="float32").reshape(2, 3, 1)
    zeros = keras.ops.zeros((2, 1))
    mask = np.array([[True, True, False], [True, True, True]])
    y, after = run_recurrently(
        step, keras.ops.convert_to_tensor(x), {"sum": zeros, "last": zeros}, mask
    )
    np.testing.assert_allclose(y[1, :, 0], [3, 7 + 3, 12 + 4])
    np.testing.assert_allclose(after["sum"][:, 0], [1, 12])


def test_run_recurrently_with_a_number_for_each_row():
    """Keras's own loop would make (B, B) of the states, and on TensorFlow refuse x of (B, T)."""

    def step(x, state):
        return x + state, x + state

    x = np.array([[3, 4, 5], [6, 7, 8]], "int32")
    mask = np.array([[False, True, True], [True, True, False]])
    zeros = keras.ops.zeros((2,), "int32")
    y, after = run_recurrently(step, keras.ops.convert_to_tensor(x), zeros, mask)
    assert keras.ops.convert_to_numpy(y)[mask].tolist() == [4, 9, 6, 13]
    assert keras.ops.convert_to_numpy(after).tolist() == [9, 13]


@ON_TENSORFLOW
def test_without_bincount():
    ids, layer = np.array([[1, 3, 1]]), keras.layers.CategoryEncoding(4, output_mode="count")
    expected = [[0, 2, 0, 1]]

    def operations():
        import tensorflow as tf

        graph = tf.function(layer).get_concrete_function(tf.constant(ids)).graph
        return {x.type for x in graph.get_operations()}

    with without_bincount():
        assert keras.ops.convert_to_numpy(layer(ids)).tolist() == expected
        assert "DenseBincount" not in operations()
    assert keras.ops.convert_to_numpy(layer(ids)).tolist() == expected
    assert "DenseBincount" in operations()


def test_lambda_output_shape():
    def unchanged(shape):
        return shape

    layer = keras.layers.Lambda(keras.ops.tanh, output_shape=unchanged)
    assert lambda_output_shape(layer) is unchanged
