"""The base of this package's layers, and its dense layer: recomputation, LoRA, quantization.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.base_layer import Projection
>>> layer, x = Projection(4), np.ones((1, 2, 3), "float32")
>>> bool(np.allclose(layer(x)[..., 1:3], layer.columns(x, 1, 3)))
True
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import keras
from keras import ops

from keras_tfm.keras_internals import remat_mode, run_after_build, set_remat_mode, sublayers
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.multi_head_attention.heads import leading
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor


class Recomputation(keras.layers.Layer):
    """What `keras.RematScope` calls in a layer: the first base of a layer of Keras's.

    A layer that the scope selects stores only its input and recomputes everything inside it once,
    sublayers included. In mode "larger_than" the output size of the outermost layer decides. Keras
    3.15 would pass `call` to `tf.recompute_grad` unchanged, which accepts no keyword arguments in a
    graph and draws different dropout masks in the backward pass.

    >>> import keras, numpy as np
    >>> from keras_tfm.layers.base_layer import Recomputation
    >>> class Square(Recomputation):
    ...     def call(self, x):
    ...         return x * x
    >>> with keras.RematScope("full"):
    ...     layer = Square()
    >>> np.array(layer(np.array([3.0]))).tolist()
    [9.0]
    """

    def rematerialized_call(
        self, layer_call: Callable[..., Tensor], *args: Any, **kwargs: Any
    ) -> Callable[..., Tensor]:
        """`layer_call`, recomputed in the backward pass if the `RematScope` selects the layer."""
        mode = remat_mode(self).mode
        picked = super().rematerialized_call(layer_call, *args, **kwargs)
        if mode == "activations":
            return picked
        if mode == "list_of_layers" and picked is layer_call:
            return layer_call  # the list may still name a sublayer
        inside = sublayers(self)
        for layer in inside:
            set_remat_mode(layer, None)
        if picked is layer_call:
            return layer_call
        if current_scope.get() is not None or current_probe.get() is not None:
            return layer_call  # tensors that a scope collects would not leave the recomputed part

        def recompute(*args: Any, **kwargs: Any) -> Tensor:
            # `remat` differentiates only its float arguments, so the weights are arguments too.
            # Seeds are drawn first, so that recomputing drops the same values.
            generators = [getattr(layer, "seed_generator", None) for layer in (self, *inside)]
            seeds = [(g.state, g.next()) for g in generators if g is not None]
            structure = (list(self.trainable_variables), args, kwargs)
            # A scope around may have given them values, such as rounded ones.
            frozen = [(x, x.value) for x in self.non_trainable_variables if "float" in x.dtype]
            # The backward pass recomputes outside of the contexts that are open now.
            context = copy_context()
            leaves = keras.tree.flatten(
                ([variable.value for variable in structure[0]], args, kwargs)
            )
            places = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
            if not places:  # ids alone, of which a mask is made: there are no gradients
                return layer_call(*args, **kwargs)

            def run(*floats: Tensor) -> tuple[Tensor, list[Tensor]]:
                filled = list(leaves)
                for place, value in zip(places, floats, strict=True):
                    filled[place] = value
                values, args, kwargs = keras.tree.pack_sequence_as(structure, filled)
                weights = zip(structure[0], values, strict=True)
                states = [*frozen, *seeds, *weights]
                with keras.StatelessScope(states, collect_losses=True) as scope:
                    outputs = context.copy().run(layer_call, *args, **kwargs)
                return outputs, list(scope.losses)

            outputs, losses = keras.remat(run)(*(leaves[place] for place in places))
            for loss in losses:
                self.add_loss(loss)
            return outputs

        return recompute


def _is_float(leaf: Tensor) -> bool:
    return keras.ops.is_tensor(leaf) and "float" in keras.backend.standardize_dtype(leaf.dtype)


def has_adapters(layer: keras.layers.Layer) -> bool:
    """Whether a layer, or one inside it, has LoRA adapters.

    >>> from keras_tfm.layers.base_layer import Projection, has_adapters
    >>> has_adapters(Projection(4))
    False
    """
    return any(getattr(x, "lora_enabled", False) for x in (layer, *sublayers(layer)))


ColumnReader = Callable[[keras.Variable, slice], Tensor | None]
_columns: ContextVar[ColumnReader | None] = ContextVar("columns", default=None)


@contextmanager
def columns_read_by(read: ColumnReader) -> Iterator[None]:
    """Inside, `Projection.columns` takes what `read(kernel, columns)` returns, unless it is None.

    An export puts stand-ins in place of weights, and two parts of one are not the same.

    >>> import numpy as np
    >>> from keras_tfm.layers.base_layer import Projection, columns_read_by
    >>> layer = Projection(4)
    >>> layer.build((1, 3))
    >>> with columns_read_by(lambda kernel, columns: np.ones((3, 2), "float32")):
    ...     layer.columns(np.ones((1, 3), "float32"), 1, 3).numpy().tolist()
    [[3.0, 3.0]]
    """
    token = _columns.set(read)
    try:
        yield
    finally:
        _columns.reset(token)


@keras.saving.register_keras_serializable("keras_tfm")
class Projection(Recomputation, keras.layers.Dense):
    """`keras.layers.Dense`, faster on TensorFlow: y = x W + b.

    With a LoRA adapter y = x W + b + (alpha / rank) (x A) B, as in the paper (arXiv:2106.09685):
    Keras multiplies with W + (alpha / rank) A B, and so a step of training computes the gradient of
    all of W. `quantize` and everything else are Keras's.

    On TensorFlow the input (..., D) is reshaped to a matrix (N, D): oneDNN then fuses the bias with
    the product, where Keras's product of a tensor and a matrix takes 18 graph operations. The
    activation is applied separately, because oneDNN's fused ReLU turns NaN into 0. The gradient
    equals TensorFlow's, in a faster form.

    >>> import numpy as np
    >>> from keras_tfm.layers.base_layer import Projection
    >>> layer, x = Projection(4), np.ones((1, 3), "float32")
    >>> y = layer(x)
    >>> layer.enable_lora(2, lora_alpha=4)
    >>> layer.lora_kernel_b.assign(np.ones((2, 4))) is not None
    True
    >>> adapter = 4 / 2 * x @ layer.lora_kernel_a @ layer.lora_kernel_b
    >>> bool(np.allclose(layer(x), y + adapter, atol=1e-6))
    True
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(..., D) -> (..., F)."""
        return self.activation(self._outputs(inputs, 0, None, training))

    def columns(self, inputs: Tensor, start: int, stop: int | None) -> Tensor:
        """Columns `start` to `stop` of a call without activation: (..., D) -> (..., stop - start).

        For queries, keys and values that share a kernel but have different inputs.
        """
        if getattr(self, "quantization_mode", None) is not None:
            return self(inputs)[..., start:stop]
        with keras.name_scope(self.name):  # as in a call: exports find layers by names
            return self._outputs(inputs, start, stop, False)

    def _outputs(
        self, inputs: Tensor, start: int, stop: int | None, training: bool | None
    ) -> Tensor:
        y = self.affine(inputs, start, stop, training)
        if not self.lora_enabled:
            return y
        # Keras keeps A and B in float32, also in a layer whose weights have half the precision.
        a, b = (ops.cast(x, self.compute_dtype) for x in (self.lora_kernel_a, self.lora_kernel_b))
        low = _product(inputs, a, None, training)
        if self.lora_alpha != self.lora_rank:
            low = self.lora_alpha / self.lora_rank * low
        # B stays whole: an export finds it by its values.
        return y + _product(low, b, None, training)[..., start:stop]

    def affine(self, inputs: Tensor, start: int, stop: int | None, training: bool | None) -> Tensor:
        """Columns `start` to `stop` of x W + b, (..., D) -> (..., stop - start); no adapter."""
        variable = next(x for x in self.variables if x.name == "kernel")  # `self.kernel` has A B
        if inputs.shape[-1] != variable.shape[0]:
            raise ValueError(
                f"{self.name}: expected inputs of width {variable.shape[0]}, "
                f"got shape {tuple(inputs.shape)}"
            )
        kernel, bias = variable, self.bias
        if (start, stop) != (0, None):
            read = _columns.get()
            kernel = None if read is None else read(variable, slice(start, stop))
            if kernel is None:
                kernel = variable[:, start:stop]
            bias = None if bias is None else bias[start:stop]
        return _product(inputs, kernel, bias, training)

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Config | None = None
    ) -> None:
        """As `keras.layers.Dense.quantize`, which would reject a subclass."""
        super().quantize(mode, type_check=False, config=config)


def _is_matrix_product(inputs: Tensor, kernel: Tensor) -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    return keras.backend.standardize_dtype(inputs.dtype) == keras.backend.standardize_dtype(
        ops.convert_to_tensor(kernel).dtype
    )


def _product(inputs: Tensor, kernel: Tensor, bias: Tensor | None, training: bool | None) -> Tensor:
    """x W + b."""
    if not _is_matrix_product(inputs, kernel):
        y = ops.matmul(inputs, kernel)
        return y if bias is None else ops.add(y, bias)
    x = ops.reshape(inputs, (-1, inputs.shape[-1]))
    if training:
        from keras_tfm.layers.tensorflow.explicit_gradients import affine

        y = affine(x, *(w for w in (kernel, bias) if w is not None))
    else:
        y = ops.matmul(x, kernel)
        y = y if bias is None else ops.add(y, bias)  # becomes BiasAdd, which oneDNN fuses
    return ops.reshape(y, (*leading(inputs, len(inputs.shape) - 1), kernel.shape[-1]))


def _first_shape(layer: keras.Layer, x_shape: Shape, *_: object, **__: object) -> Shape:
    """The shape of the first input, whatever the others are."""
    return x_shape


@run_after_build
class RematerializedLayer(Recomputation):
    """The base of the layers of this package: `keras.RematScope` works on every backend.

    Unless a subclass says otherwise, the output has the shape and the mask of the first input.
    """

    compute_output_shape: Callable[..., Shape] = _first_shape

    def __init__(self, **kwargs: Any):
        quantized: list[Config] | None = kwargs.pop("quantized", None)  # of `get_config`
        super().__init__(**kwargs)
        self._quantized = quantized
        self.supports_masking = True

    def get_config(self) -> Config:
        """The constructor's arguments, and how `quantize` changed projections inside, if it did.

        Projections are made by `build`, so the configuration of a layer does not have theirs.
        """
        quantized = [
            {
                "index": i,
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(layer.quantization_config),
            }
            for i, layer in enumerate(self._projections())
            if layer.quantization_mode is not None
        ]
        own = {"quantized": quantized} if quantized else {}
        return {**self._constructor_arguments(), **super().get_config(), **own}

    def _constructor_arguments(self) -> Config:
        """The arguments that the layer keeps as attributes with their names, as a configuration.

        A class with its own `get_config` says there what its constructor takes.
        """
        classes = type(self).__mro__
        names: dict[str, None] = {}
        for cls in classes[: classes.index(RematerializedLayer)]:
            constructor = vars(cls).get("__init__")
            parameters = inspect.signature(constructor).parameters if constructor else {}
            if "get_config" in vars(cls):
                names = {x: None for x in names if x not in parameters}
            else:
                names |= dict.fromkeys(parameters)
        values = {name: getattr(self, name) for name in names if hasattr(self, name)}

        def serialize(value: object) -> object:
            return keras.activations.serialize(value) if callable(value) else value

        # Layers in a list would be those of the copy, too.
        return {name: keras.tree.map_structure(serialize, x) for name, x in values.items()}

    def after_build(self) -> None:
        """Quantizes the projections that were quantized in the layer that was saved or copied."""
        if self._quantized:
            projections = self._projections()
            for entry in self._quantized:
                layer = projections[entry["index"]]
                if layer.built and layer.quantization_mode is None:
                    config = keras.saving.deserialize_keras_object(entry["config"])
                    layer.quantize(entry["mode"], config=config)

    def _projections(self) -> list[Projection]:
        return [layer for layer in sublayers(self) if isinstance(layer, Projection)]

    def _dense(
        self,
        name: str,
        units: int,
        use_bias: bool | None = None,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
    ) -> Projection:
        """A projection; by default with this layer's `use_bias` and initializers."""
        # Cloned: one initializer object would draw the same numbers for every projection.
        dense = Projection(
            units,
            use_bias=self.use_bias if use_bias is None else use_bias,
            kernel_initializer=kernel_initializer or self.kernel_initializer.clone(),
            bias_initializer=bias_initializer or self.bias_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        # Not the mode of a scope that happens to be open when the layer is built.
        set_remat_mode(dense, remat_mode(self))
        return dense
