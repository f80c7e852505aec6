"""Every private name of Keras that this package uses, one function each.

Keras 3.15 has no public way to do what these functions do. They are gathered here so that a new
Keras version is checked in one place: each function has a test in `tests/test_keras_internals.py`
that fails when the name moves or changes its meaning, and `tests/test_structure.py` fails when a
private name is used anywhere else. `pyproject.toml` pins Keras to the minor version they are
tested with.

Nothing is imported until a function is called, so any module may import this one on every backend.

Example:

>>> import keras
>>> from keras_tfm.keras_internals import is_functional
>>> x = keras.Input((3,))
>>> is_functional(keras.Model(x, keras.layers.Dense(2)(x)))
True
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import keras

Tensor = Any
Node = Any  # keras.src.ops.node.Node: .operation, .arguments, .input_tensors, .output_tensors


# The graph of a functional model.


class Producer(NamedTuple):
    """The origin of a symbolic tensor.

    Attributes:
        operation: the layer or operation; an `InputLayer` for a model's input.
        node_index: int, the call that computed it, an index of `calls_of(operation)`.
        tensor_index: int, the index of the tensor in the call's outputs.
    """

    operation: "keras.Operation"
    node_index: int
    tensor_index: int


def nodes_in_order(model: "keras.Model") -> list[Node]:
    """The calls of a functional model, without its input layers, in the order Keras runs them.

    A layer that is called twice has two nodes. Each node has `operation`, `arguments`,
    `input_tensors` and `output_tensors` (lists of symbolic tensors). `arguments.fill_in(values)`
    returns the positional and keyword arguments of the call, with values by the `id` of symbolic
    tensors in their places.
    """
    by_depth = model._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def calls_of(operation: "keras.Operation") -> list[Node]:
    """Every symbolic call of a layer or operation, oldest first, in any model."""
    return list(operation._inbound_nodes)


def producer(tensor: Tensor) -> Producer:
    """The operation that computed a symbolic tensor, and which call and output of it."""
    operation, node_index, tensor_index = tensor._keras_history
    return Producer(operation, node_index, tensor_index)


def is_functional(operation: "keras.Operation") -> bool:
    """Whether an operation is a functional model that runs its graph and nothing else."""
    from keras.src.models.functional import Functional

    return isinstance(operation, Functional) and type(operation).call is Functional.call


def functional_of(operation: "keras.Operation") -> "keras.Operation":
    """The functional model of the layers of a built `keras.Sequential`; all else as it is."""
    import keras

    has_own_call = getattr(type(operation), "call", None) is not keras.Sequential.call
    if has_own_call or operation._functional is None:
        return operation
    operation._functional.name = operation.name  # for messages; Keras's is "functional"
    return operation._functional


def accepts_training(operation: "keras.Operation") -> bool:
    """Whether an operation takes `training=`: a layer does, a function of `keras.ops` does not."""
    return "training" in getattr(operation, "_call_context_args", {})


# Layers and tensors.


def sublayers(layer: "keras.Layer") -> list["keras.Layer"]:
    """All layers inside a layer or model, at any depth, each once, without the layer itself."""
    return layer._flatten_layers(include_self=False)


def child_layers(layer: "keras.Layer") -> list["keras.Layer"]:
    """The layers directly inside a layer or model, each once."""
    return layer._flatten_layers(recursive=False, include_self=False)


def lambda_output_shape(layer: "keras.layers.Lambda") -> object:
    """The `output_shape` argument of a `Lambda`: a shape or a function; None if not given."""
    return layer._output_shape


class AttentionParts(NamedTuple):
    """The layers inside a `MultiHeadAttention` or `GroupQueryAttention` of Keras.

    Attributes:
        query, key, value: projections (B, T, D) -> (B, T, H, K).
        gate: the projection of the gate; None: there is no gate.
        output: projection (B, T, H, K) -> (B, T, D).
        window: int, the number of keys that a query sees; None: all.
    """

    query: "keras.Layer"
    key: "keras.Layer"
    value: "keras.Layer"
    gate: "keras.Layer"
    output: "keras.Layer"
    window: int | None


def attention_parts(layer: "keras.Layer") -> AttentionParts | None:
    """The projections of Keras's attention; None if it is computed in another way.

    That is over other axes than the tokens, or by a subclass with its own `_compute_attention`.
    """
    import keras

    bases = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
    own = type(layer)._compute_attention
    if not any(own is base._compute_attention for base in bases):
        return None
    if getattr(layer, "_attention_axes", (1,)) not in (None, (1,)):
        return None
    return AttentionParts(
        layer._query_dense,
        layer._key_dense,
        layer._value_dense,
        getattr(layer, "_gate_dense", None),
        layer._output_dense,
        getattr(layer, "_sliding_window", getattr(layer, "sliding_window", None)),
    )


@contextmanager
def with_signbit(sign: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`sign` computes `keras.ops.signbit` of floats on TensorFlow, inside the context.

    Keras reads the bit by BitwiseAnd, also in argmax and argmin. `sign` takes a tensor.
    """
    from keras.src.backend.tensorflow import numpy as operations

    signbit = operations.signbit

    def replacement(x: Tensor) -> Tensor:
        x = operations.convert_to_tensor(x)
        return sign(x) if x.dtype.is_floating else signbit(x)

    operations.signbit = replacement
    try:
        yield
    finally:
        operations.signbit = signbit


@contextmanager
def without_bincount() -> Iterator[None]:
    """Inside the context, layers such as `CategoryEncoding` count ids by comparisons.

    On TensorFlow, Keras counts by DenseBincount if it can, and otherwise as on other backends.
    """
    from keras.src.utils import tf_utils

    encode = tf_utils.tf_encode_categorical_inputs

    def refuse(*args: object, **kwargs: object) -> None:
        raise ValueError("not in this context")  # the error by which Keras knows it

    tf_utils.tf_encode_categorical_inputs = refuse
    try:
        yield
    finally:
        tf_utils.tf_encode_categorical_inputs = encode


def cumsum_operation() -> type:
    """The class of the operation that `keras.ops.cumsum` adds to a functional model."""
    from keras.src.ops.numpy import Cumsum

    return Cumsum


def run_recurrently(
    step: Any, x: Tensor, state: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs (B, T, ...) of `step(x, state)` for each token of x (B, T, ...), and the state.

    Args:
        step: function of a token (B, ...) and a state that returns an output and the next state.
        x: (B, T, ...), or nested tensors.
        state: nested tensors (B, ...), also (B,).
        mask: (B, T), boolean, False where the state stays as it is; optional.
    """
    import keras
    from keras.src import backend

    # Keras's own mask takes states and outputs for matrices (B, D), and would make (B, B) of a
    # number for each row. On TensorFlow, its inputs have at least three axes.
    inputs = (x,) if mask is None else (x, keras.ops.convert_to_tensor(mask))
    deep = [x if len(x.shape) > 2 else x[:, :, None] for x in keras.tree.flatten(inputs)]

    def one(deep: list[Tensor], flat: Any) -> tuple[Tensor, Any]:
        now = keras.tree.map_structure(
            lambda x, whole: x if len(whole.shape) > 2 else x[:, 0],
            keras.tree.pack_sequence_as(inputs, list(deep)),
            inputs,
        )
        x, seen = now if mask is not None else (*now, None)
        y, after = step(x, keras.tree.pack_sequence_as(state, list(flat)))
        after = keras.tree.flatten(after)
        if seen is not None:

            def choose(new: Tensor, old: Tensor) -> Tensor:
                shape = (-1, *(1 for _ in new.shape[1:]))
                return keras.ops.where(keras.ops.reshape(seen, shape), new, old)

            after = [choose(new, old) for new, old in zip(after, flat, strict=True)]
        return y, after

    first = keras.tree.flatten(x)[0]
    _, outputs, after = backend.rnn(
        one,
        deep,
        keras.tree.flatten(state),
        # On TensorFlow, Keras reads an unknown length from nested inputs as from one tensor. A list
        # is true without being a tensor, which would be a length for each row.
        input_length=[keras.ops.shape(first)[1]] if first.shape[1] is None else first.shape[1],
    )
    return outputs, keras.tree.pack_sequence_as(state, list(after))


def own_trainable_variables(layer: "keras.Layer") -> list["keras.Variable"]:
    """The trainable variables that a layer created itself, without those of its sublayers."""
    return list(layer._trainable_variables)


def own_state(layer: "keras.Layer") -> list["keras.Variable"]:
    """The variables that a layer created as not trainable, such as moving means, by itself."""
    return list(layer._non_trainable_variables)


def layout_of(variable: "keras.Variable") -> Any:
    """The `TensorLayout` that a `keras.distribution` gave a variable; None without one."""
    return variable._layout


def remat_mode(layer: "keras.Layer") -> Any:
    """The mode of a layer's `keras.RematScope` (`.mode` is its name), or None."""
    return layer._remat_mode


def set_remat_mode(layer: "keras.Layer", mode: Any) -> None:
    """Sets the mode of a layer to one that `remat_mode` returned, or to None for no remat."""
    layer._remat_mode = mode


def run_after_build(layer_class: Any) -> type:
    """Class decorator: Keras calls `layer.after_build()` when a layer was built."""

    def post_build(self: "keras.Layer") -> None:
        super(layer_class, self)._post_build()
        self.after_build()

    layer_class._post_build = post_build
    return layer_class


def float_kernel(layer: "keras.Layer", name: str = "kernel") -> Tensor:
    """A weight of a layer in float32: dequantized, with its LoRA adapter merged.

    Args:
        layer: `Dense`, `EinsumDense`, `Embedding` or `ReversibleEmbedding`.
        name: str, "kernel", "embeddings" or "reverse_embeddings".

    Raises:
        ValueError: the layer is quantized by another method than int8, int4 or float8.
    """
    from keras import ops, quantizers

    mode = layer.quantization_mode
    if mode not in (None, "int8", "int4", "float8"):
        raise ValueError(f"{layer.path} is quantized as {mode!r}, expected int8, int4 or float8")
    # `layer.kernel` adds the adapter to the rounded kernel without its scale.
    kernel = ops.convert_to_tensor(next(x for x in layer.variables if x.name == name))
    scale, zero = (getattr(layer, f"{name}_{x}", None) for x in ("scale", "zero"))
    is_einsum = hasattr(layer, "_kernel_transpose_axes")
    if mode == "int4":
        if name == "kernel":
            size = layer._int4_unpacked_column_size if is_einsum else layer.units
        else:
            size = layer.output_dim
        kernel = quantizers.unpack_int4(kernel, size, axis=0 if name.startswith("reverse") else -1)
    if mode == "int4" and zero is not None:
        from keras.src.quantizers.quantizers import dequantize_with_sz_map

        axis = -1 if name == "embeddings" else 0
        kernel = dequantize_with_sz_map(kernel, scale, zero, layer.g_idx, group_axis=axis)
    elif mode in ("int8", "int4"):
        if name == "embeddings":
            scale = ops.expand_dims(scale, -1)
        elif mode == "int8" and is_einsum:
            scale = layer._adjust_scale_for_dequant(scale)
        kernel = ops.cast(kernel, "float32") / scale
    kernel = ops.cast(kernel, "float32")
    if mode == "int4" and is_einsum:
        kernel = ops.reshape(kernel, layer.original_kernel_shape)
    adapter = getattr(layer, f"lora_{name}_a", None) if layer.lora_enabled else None
    if adapter is None:
        return kernel
    factor = layer.lora_alpha / layer.lora_rank
    return kernel + factor * ops.matmul(adapter, getattr(layer, f"lora_{name}_b"))


def get_mask(tensor: Tensor) -> Tensor | None:
    """The implicit mask of a tensor, or None."""
    from keras.src.backend.common.masking import get_keras_mask

    return get_keras_mask(tensor)


def set_mask(tensor: Tensor, mask: Tensor | None) -> None:
    """Sets the implicit mask of a tensor, in place; None removes it."""
    from keras.src.backend.common.masking import set_keras_mask

    set_keras_mask(tensor, mask)


def are_probabilities(tensor: Tensor) -> bool:
    """Whether Keras knows that a tensor is the result of a softmax or sigmoid of logits."""
    return hasattr(tensor, "_keras_logits")


def in_symbolic_scope() -> bool:
    """Whether Keras is only inferring shapes and building layers, on placeholders."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope as in_scope

    return bool(in_scope())


def object_sharing_scope() -> Any:
    """A context in which an object that several configs share is created only once.

    Nested in another such context, for instance that of loading a `.keras` file, it does nothing.
    """
    from contextlib import nullcontext

    from keras.src.backend.common import global_state
    from keras.src.saving.serialization_lib import ObjectSharingScope

    active = global_state.get_global_attribute("shared_objects/id_to_obj_map") is not None
    return nullcontext() if active else ObjectSharingScope()


def share_in_clones(model_class: Any) -> type:
    """Class decorator: `keras.models.clone_model` creates an object that layers share only once.

    Keras clones the layers one by one while it runs through the graph of the model.
    """

    def run(self: "keras.Model", *args: Any, **kwargs: Any) -> Any:
        with object_sharing_scope():
            return super(model_class, self)._run_through_graph(*args, **kwargs)

    model_class._run_through_graph = run
    return model_class


def mark_clones(model_class: Any) -> type:
    """Class decorator: `model.mark_clone(outputs)` gets the outputs of which a clone is made.

    `keras.models.clone_model` makes a model of them, and of nothing else that the model knows.
    """

    def run(self: "keras.Model", *args: Any, **kwargs: Any) -> Any:
        from keras import tree

        result = super(model_class, self)._run_through_graph(*args, **kwargs)
        origins = [getattr(x, "_keras_history", None) for x in tree.flatten(result)]
        own = {id(x) for x in self.operations}
        if origins and all(x is not None and id(x[0]) not in own for x in origins):
            self.mark_clone(tree.flatten(result))
        return result

    model_class._run_through_graph = run
    return model_class


def call_with_known_inputs(model_class: Any) -> type:
    """Class decorator for functional models: Keras takes `model.known_inputs(inputs)`.

    In every call: by `fit`, `predict` and their like, by the user, and by another model. A subclass
    with a `call` of its own may take what it likes; its inputs are taken by name where it calls its
    graph.
    """

    def compatible(self: "keras.Model", inputs: Any) -> None:
        known = self.known_inputs(inputs) if is_functional(self) else inputs
        super(model_class, self)._assert_input_compatibility(known)

    def standardize(self: "keras.Model", inputs: Any) -> Any:
        return super(model_class, self)._standardize_inputs(self.known_inputs(inputs))

    model_class._assert_input_compatibility = compatible
    model_class._standardize_inputs = standardize
    return model_class


def saved_content(model: "keras.Model") -> Any:
    """A `.keras` file in memory (`io.BytesIO`), as `pickle` carries models."""
    import keras

    return keras.Model.__reduce__(model)[1][0]


def load_content(content: Any) -> Any:
    """The model of `saved_content`, compiled as it was. As unsafe as every pickle."""
    import keras

    return keras.Model._unpickle_model(content)


# Seeds and variables.


def global_seed() -> Any:
    """The variable of the global seed generator, which `seed=None` uses outside layers."""
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator().state


def set_initial_seed(generator: Any, seed: Tensor) -> None:
    """Sets the seed of a `SeedGenerator` subclass that creates no variable.

    PyTorch's dropout reads this attribute and takes None to mean that there is no seed.
    """
    generator._initial_seed = seed


def uninitialized_variables() -> list["keras.Variable"]:
    """The variables that Keras initializes when the next stateless scope is closed."""
    from keras.src.backend.common import global_state

    return list(global_state.get_global_attribute("uninitialized_variables", []))


def set_uninitialized_variables(variables: list["keras.Variable"]) -> None:
    """Replaces the list that `uninitialized_variables` returns."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("uninitialized_variables", variables)


def initialize(variable: "keras.Variable", value: Tensor | None = None) -> None:
    """Creates the storage of a variable that has only a shape.

    Args:
        variable: a `keras.Variable` that was created in a `StatelessScope` which does not
            initialize variables.
        value: array or tensor of its shape, in its layout if a `keras.distribution` is active.
            Default: that of its initializer.
    """
    if value is None:
        variable._deferred_initialize()
    else:
        variable._initialize(variable._convert_to_tensor(value, dtype=variable.dtype))


def read_when_used(variable: "keras.Variable", read: Any) -> None:
    """Lets a variable without storage read its value each time it is used, and keep none.

    `initialize` reads it once more, and gives the variable storage.

    Args:
        variable: a `keras.Variable` that has no storage.
        read: function without arguments that returns an array of its shape and dtype.
    """
    variable._initializer = _Reader(variable, read)


class _Reader:
    """The initializer of such a variable, which Keras calls for its value."""

    def __init__(self, variable: "keras.Variable", read: Any):
        self._variable, self.read = variable, read

    def __call__(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        from keras import backend

        if backend.backend() == "tensorflow":
            import tensorflow as tf

            if not tf.executing_eagerly():  # a constant would be part of the graph
                result = tf.numpy_function(self.read, [], dtype)
                result.set_shape(shape)
                return result
        return self._variable._convert_to_tensor(self.read(), dtype=dtype)


def read_value(variable: "keras.Variable") -> Tensor:
    """The value of a variable as an array; a view of its memory if it is on the CPU."""
    import numpy as np
    from keras import ops

    if variable._value is None:
        return variable._initializer.read()
    value = ops.convert_to_tensor(variable)
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError):  # on a device, or of another backend
        return ops.convert_to_numpy(value)


@contextmanager
def in_memory(variables: Iterable["keras.Variable"]) -> Iterator[None]:
    """Gives the variables of `read_when_used` among `variables` storage inside the context."""
    given = [x for x in variables if x._value is None]
    try:
        for variable in given:
            variable._initialize(variable.value)
        yield
    finally:
        for variable in given:
            variable._value = None


def value_without_autocast(variable: "keras.Variable") -> Tensor:
    """The value of a variable in its own dtype, inside layers of mixed precision too."""
    from keras import ops
    from keras.src.backend.common.variables import AutocastScope

    with AutocastScope(None):
        return ops.convert_to_tensor(variable.value)


def current_stateless_scope() -> Any:
    """The innermost open `keras.StatelessScope`; None outside of any."""
    from keras.src.backend.common.stateless_scope import get_stateless_scope

    return get_stateless_scope()


def is_initialized(variable: "keras.Variable") -> bool:
    """Whether a variable has storage."""
    return variable._value is not None
