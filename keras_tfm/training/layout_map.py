"""Tensor parallel layouts of a model's weights, for `keras.distribution` on JAX."""

import math
import re
import warnings
from collections.abc import Callable
from typing import TypeAlias

import keras

from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import FeedForward
from keras_tfm.models.without_storage import without_storage

Axes = tuple[str | None, ...]
Layout: TypeAlias = keras.distribution.TensorLayout

# Weights of fewer values, besides kernels and embeddings, are copied to every device: they are not
# worth an exchange.
LARGE = 2**16

# In place of the number in a name that Keras gave: it differs from one model to the next.
NUMBER = r"(_\d+)?"

INSTEAD = {
    "tensorflow": "use training.distribution, which makes a tf.distribute strategy",
    "torch": "use torch.nn.parallel.DistributedDataParallel",
}


def layout_map(
    model: keras.Model | Callable[[], keras.Model],
    mesh: keras.distribution.DeviceMesh,
    axes: tuple[str, str] = ("batch", "model"),
) -> keras.distribution.LayoutMap:
    """The layouts with which `keras.distribution.ModelParallel` divides a model's weights.

    Tensor parallelism, "Megatron-LM" (arXiv:1909.08053), section 3: the projections into a sublayer
    are divided by their columns (heads, inner width), the projection out of it by its rows, so that
    each sublayer adds up its result once between the devices. Embeddings and output kernels are
    divided by the vocabulary, convolutions by their output channels. Where the mesh does not divide
    that axis of a large weight, another axis is divided. Norms, biases of the width D and small
    tables are on every device. Adapters of `models.enable_lora` and the optimizer's variables lie
    with their kernels.

    Keras gives a variable its layout when it is created. So the model is described first, by a
    function whose call here takes no memory for weights, and created under the distribution.

    Args:
        model: `keras.Model`, or a function without arguments that returns one. Any model of Keras
            and of our layers. Numbers that Keras appends to names, as in `dense_1`, need not be
            equal in the model that is created.
        mesh: `keras.distribution.DeviceMesh`.
        axes: tuple of str, names of the mesh's axes along which batches and weights are divided.

    Returns:
        A `keras.distribution.LayoutMap` with an entry for each weight of the model. Entries can
        be added and deleted. It refuses weights of another model.

    Raises:
        RuntimeError: the backend is not JAX.
        TypeError: `model` or `mesh` is something else.
        ValueError: the mesh lacks one of the axes, or the number of devices along the second does
            not divide a layer's heads; or layers that Keras named need different layouts.

    Example, with one device; `DeviceMesh((2, 4), ...)` takes eight:

    >>> import keras
    >>> from keras_tfm import models, training
    >>> if keras.backend.backend() == "jax":
    ...     build = lambda: models.gpt(64, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    ...     mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    ...     layouts = training.layout_map(build, mesh)
    ...     distribution = keras.distribution.ModelParallel(layout_map=layouts)
    ...     with distribution.scope():
    ...         model = build()
    ...     assert layouts["decoder_0/feed_forward/outer/kernel"].axes == ("model", None)
    """
    backend = keras.backend.backend()
    if backend != "jax":
        raise RuntimeError(
            f"keras.distribution needs Keras's JAX backend, got {backend!r}: {INSTEAD[backend]}"
        )
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise TypeError(f"mesh must be a keras.distribution.DeviceMesh, got {type(mesh).__name__}")
    if not set(axes) <= set(mesh.axis_names):
        raise ValueError(
            f"the mesh must have the axes {', '.join(axes)}, got {', '.join(mesh.axis_names)}"
        )
    if not isinstance(model, keras.Model):
        if not callable(model):
            raise TypeError(
                "model must be a keras.Model or a function that returns one, got "
                f"{type(model).__name__}"
            )
        with without_storage():
            model = model()
        if not isinstance(model, keras.Model):
            raise TypeError(f"the function must return a keras.Model, got {type(model).__name__}")
    layers = [model, *sublayers(model)]
    size = mesh.shape[list(mesh.axis_names).index(axes[1])]
    for layer in layers:
        _check_heads(layer, axes[1], size)
    # Of each variable, the innermost layer: inner layers come after outer ones.
    owners = {id(x): (x, layer) for layer in layers for x in layer.weights}
    ends = {id(x) for layer in layers for x in _ends(layer)}
    result = ModelLayouts(mesh, model.name, _automatic_names(layers))
    for variable, layer in owners.values():
        axis = _divided_axis(variable, layer, id(layer) in ends, size)
        result.add(variable.path, _along(axis, axes[1]))
        if variable.name == "kernel" and len(variable.shape) == 2:
            result.add_adapter(variable.path, axis, axes[1])
    return result


class ModelLayouts(keras.distribution.LayoutMap):
    """The layouts of all weights of one model; see `layout_map`.

    Args:
        mesh: `keras.distribution.DeviceMesh`.
        model: str, the model's name.
        automatic: names that Keras gave to layers, without their numbers.
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh, model: str, automatic: set[str]):
        super().__init__(mesh)
        self._model = model
        self._automatic = automatic
        self._known: dict[str, Layout | None] = {}  # layouts by key; None: the entry was deleted
        self._patterns: list[str] = []  # keys of others that are regular expressions
        self._adapters: dict[str, Layout] = {}
        self._names: set[str] = set()  # the last parts of the paths of weights

    def add(self, path: str, axes: Axes) -> None:
        """Adds the layout of a variable."""
        key = self._key(path)
        self._names.add(path.rpartition("/")[2])
        known = self._known.get(key)
        if known is None:
            self[key] = axes
        elif known.axes != axes:
            raise ValueError(
                f"layers with automatic names need different layouts for {path}: give each a name"
            )

    def add_adapter(self, kernel: str, axis: int | None, mesh_axis: str) -> None:
        """Adds the layouts of the two matrices that LoRA may create beside a kernel.

        Args:
            kernel: str, the kernel's path.
            axis: int, the kernel's divided axis. None: it is not divided.
            mesh_axis: str, the axis of the mesh along which it is divided.
        """
        layouts = {
            "lora_kernel_a": (mesh_axis,) if axis == 0 else (),
            "lora_kernel_b": (None, mesh_axis) if axis == 1 else (),
        }
        for name, axes in layouts.items():
            self._names.add(name)
            key = self._key(f"{kernel.removesuffix('kernel')}{name}")
            self._adapters[key] = keras.distribution.TensorLayout(axes, self.device_mesh)

    def __getitem__(self, key: str) -> Layout | None:
        """The layout of a variable's path; None if it is not a weight, such as an optimizer's step.

        Raises:
            ValueError: it is the path of a weight of another model, or several entries match it.
        """
        own = self._key(key)
        if own in self._known:
            return self._known[own]
        if own in self._adapters:
            return self._adapters[own]
        matches = [pattern for pattern in self._patterns if re.fullmatch(pattern, key)]
        if matches:
            return super().__getitem__(matches[0] if len(matches) == 1 else key)
        if key.rpartition("/")[2] in self._names:
            raise ValueError(
                f"the layout map was made for {self._model}, which has no weight {key}: make one "
                "for this model with training.layout_map, or add an entry"
            )
        return None

    def __setitem__(self, key: str, layout: Layout) -> None:
        """Adds an entry; the key is a path or a regular expression."""
        super().__setitem__(key, layout)
        if re.fullmatch(r"[\w/ -]*", key.replace(NUMBER, "")):
            self._known[key] = super().__getitem__(key)
        else:
            self._patterns.append(key)

    def __delitem__(self, key: str) -> None:
        """Deletes an entry; its variables are then on every device."""
        super().__delitem__(key)
        if key in self._known:
            self._known[key] = None
        else:
            self._patterns.remove(key)

    def _key(self, path: str) -> str:
        """A path with a pattern in place of the numbers of automatic names."""
        parts = [(part, re.sub(r"_\d+$", "", part)) for part in path.split("/")]
        return "/".join(x + NUMBER if x in self._automatic else part for part, x in parts)


def _automatic_names(layers: list[keras.layers.Layer]) -> set[str]:
    """The names that Keras gave to layers, without their numbers."""
    found = set()
    for layer in layers:
        # As Keras: "RMSNormalization" -> "rms_normalization".
        words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
        automatic = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
        if re.fullmatch(rf"{automatic}(_\d+)?", layer.name):
            found.add(automatic)
    return found


def _check_heads(layer: keras.layers.Layer, axis: str, size: int) -> None:
    heads = getattr(layer, "num_heads", None)
    if isinstance(heads, int) and hasattr(layer, "output_projection") and heads % size:
        raise ValueError(
            f"the mesh's axis {axis!r} must divide the heads of every layer: {layer.path} has "
            f"{heads}, the axis {size} devices"
        )


def _ends(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The projections out of a sublayer, which add up what the devices have computed."""
    ends = [getattr(layer, "output_projection", None)]
    if isinstance(layer, FeedForward) and layer.built:
        ends.append(layer.outer)
    return [x for x in ends if x is not None]


def _kernel(layer: keras.layers.Layer) -> keras.Variable | None:
    return next((x for x in layer.variables if x.name == "kernel"), None)


def _divided_axis(
    variable: keras.Variable, layer: keras.layers.Layer, is_end: bool, size: int
) -> int | None:
    """The axis along which a variable is divided, or None."""
    shape, rank = tuple(variable.shape), len(variable.shape)
    kernel = _kernel(layer)
    if rank == 1:
        # A bias lies with the columns of its kernel.
        if variable.name != "bias" or kernel is None or len(kernel.shape) < 2:
            return None
        columns = len(kernel.shape) - 1
        return 0 if _divided_axis(kernel, layer, is_end, size) == columns else None
    if rank < 2:
        return None
    is_large = math.prod(shape) >= LARGE
    first = 0 if is_end or variable.name == "embeddings" else rank - 1
    is_product = variable is kernel or variable.name == "embeddings"
    if shape[first] % size == 0 and (is_product or is_large):
        return first
    others = [i for i in range(rank) if shape[i] % size == 0]
    if not is_large:
        return None
    if not others:
        warnings.warn(
            f"{variable.path} {shape} is on every device: {size} divides none of its axes",
            stacklevel=3,
        )
        return None
    return max(others, key=lambda i: shape[i])


def _along(axis: int | None, mesh_axis: str) -> Axes:
    """The layout of a variable that is divided along one axis."""
    return () if axis is None else (*(None,) * axis, mesh_axis)
