"""LoRA adapters beside one base file: `save_adapter`, and what `export_tflite` needs for them."""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np

from keras_tfm.export.graph.schema import ModelT
from keras_tfm.export.quantization.kept_layers import exact_buffers
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers.base_layer import Projection
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.models.with_dtype import ADAPTERS
from keras_tfm.runtime import adapters as files
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.manifest import AdaptedLayer, Adapters

# The size of the random adapter with which a base file is verified if the model's own has no
# effect: A B is about this times W.
_RANDOM = 0.1


def save_adapter(model: keras.Model, path: str | Path) -> Path:
    """Writes the LoRA adapters of a model to a small file, for `runtime.load(base, adapter=path)`.

    The file, in NumPy's .npz format, has A, B and alpha of each adapted projection, by the path of
    the layer, and a fingerprint of all other weights. All adapters of one base need only one
    .tflite file, which `export_tflite(..., separate_adapters=True)` writes.

    Args:
        model: functional `keras.Model` with adapters (`models.enable_lora`).
        path: str or Path, the file. It is written completely or not at all; an earlier file is
            replaced.

    Returns:
        `path`.

    Raises:
        ValueError: the model has no adapters, or one in a layer that cannot have a separate one.

    Example:

    >>> import tempfile
    >>> from keras_tfm import models, runtime
    >>> from keras_tfm.export import export_tflite, save_adapter
    >>> gpt = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=6)
    >>> count = models.enable_lora(gpt, rank=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     base = folder + "/base.tflite"
    ...     report = export_tflite(gpt, base, source_length=6, separate_adapters=True)
    ...     # gpt.fit(...)
    ...     path = save_adapter(gpt, folder + "/first.npz")
    ...     adapted = runtime.load(base, adapter=path)
    """
    path = Path(path)
    files.write(
        path,
        fingerprint(model),
        {
            name: files.LowRank(
                _array(x.lora_kernel_a), _array(x.lora_kernel_b), float(x.lora_alpha)
            )
            for name, x in adapted_layers(model).items()
        },
    )
    return path


def adapted_layers(model: keras.Model) -> dict[str, Projection]:
    """The projections with an adapter, by path.

    Raises:
        ValueError: there are none; or an adapter is in another layer, or in a quantized one.

    >>> import keras
    >>> from keras_tfm.export.graph.adapters import adapted_layers
    >>> x = keras.Input((4,))
    >>> adapted_layers(keras.Model(x, keras.layers.Dense(3)(x), name="small"))
    Traceback (most recent call last):
    ValueError: small has no adapters: call models.enable_lora first
    """
    layers = {}
    for layer in sublayers(model):
        if not getattr(layer, "lora_enabled", False):
            continue
        if not isinstance(layer, Projection) or layer.quantization_mode is not None:
            raise ValueError(
                "separate adapters are for the projections of keras_tfm's layers that are not "
                f"quantized, got one in {layer.path} ({type(layer).__name__})"
            )
        layers[layer.path] = layer
    if not layers:
        raise ValueError(f"{model.name} has no adapters: call models.enable_lora first")
    return layers


def fingerprint(model: keras.Model) -> str:
    """A checksum of all weights but the adapters; it depends on neither names nor order.

    >>> from keras_tfm import models
    >>> from keras_tfm.export.graph.adapters import fingerprint
    >>> size = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "max_length": 6}
    >>> fingerprint(models.gpt(11, **size)) == fingerprint(models.gpt(11, **size))
    False
    """
    own = {
        id(getattr(layer, name))
        for layer in sublayers(model)
        for name in ADAPTERS
        if hasattr(layer, name)
    }
    state, digests = quantization_of(model), []
    grids = {} if state is None else {id(x.variable): x.grid for x in state.weights}
    for weight in model.weights:
        if id(weight) not in own:
            array = _array(weight)
            if id(weight) in grids:  # as in a file, of a model trained with rounding
                grid = grids[id(weight)]
                array = grid.values(*grid.round(array), array.shape)
            digests.append(hashlib.sha256(str(array.shape).encode() + array.tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


class Placeholders:
    """Random adapters that a graph is converted with, so that the file shows where they are.

    Args:
        model: functional `keras.Model` with adapters, in float32.

    Attributes:
        kernels: float32 arrays, A (D, rank) and B (rank, F) of each layer, by path and name.
    """

    def __init__(self, model: keras.Model):
        generator = np.random.default_rng()
        self._model, self._layers = model, adapted_layers(model)
        self.kernels = {
            name: generator.normal(size=variable.shape).astype("float32")
            for name, variable in _variables(self._layers).items()
        }

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """The context in which the model is traced and converted.

        A file's B has the factor alpha / rank in it, so the graph does not multiply with it.
        """
        layers = self._layers.values()
        alphas = [layer.lora_alpha for layer in layers]
        try:
            for layer in layers:
                layer.lora_alpha = layer.lora_rank
            with _assign(self._layers, self.kernels):
                yield
        finally:
            for layer, alpha in zip(layers, alphas, strict=True):
                layer.lora_alpha = alpha

    def find(self, model: ModelT) -> Adapters:
        """Where a converted file has its adapters, for the manifest."""
        found = exact_buffers(flatbuffer.float_weights(model), self.kernels)
        _check_products(model, {number for numbers in found.values() for number in numbers})
        layers = {}
        for path in self._layers:
            a, b = f"{path}/lora_kernel_a", f"{path}/lora_kernel_b"
            depth, rank = self.kernels[a].shape
            width = self.kernels[b].shape[1]
            layers[path] = AdaptedLayer(depth=depth, width=width, rank=rank, a=found[a], b=found[b])
        return Adapters(base=fingerprint(self._model), layers=layers)


def clear(model: ModelT, places: Adapters) -> None:
    """Makes the adapters in a file zeros, which share their bytes with no other constant."""
    for layer in places.layers.values():
        for number in (*layer.a, *layer.b):
            size = len(model.buffers[number].data)
            zeros = functools.partial(_zeros, size)
            model.buffers[number].data = flatbuffer.LazyBytes(size, zeros)


def _zeros(size: int) -> list[bytes]:
    return [bytes(size)]


@contextmanager
def with_effect(model: keras.Model) -> Iterator[None]:
    """Gives a model random adapters if its own have no effect, as before the training."""
    layers = adapted_layers(model)
    if any(np.any(_array(x.lora_kernel_b)) for x in layers.values()):
        yield
        return
    generator, values = np.random.default_rng(0), {}
    for path, layer in layers.items():
        depth, rank = layer.lora_kernel_a.shape
        kernel = _array(layer.kernel)
        size = _RANDOM * layer.lora_rank / layer.lora_alpha * float(kernel.std()) / rank**0.5
        values[f"{path}/lora_kernel_a"] = generator.normal(size=(depth, rank))
        values[f"{path}/lora_kernel_b"] = generator.normal(0, size, (rank, kernel.shape[1]))
    with _assign(layers, values):
        yield


def _check_products(model: ModelT, buffers: set[int]) -> None:
    """Raises ValueError if the converter combined an adapter with another constant."""
    for use in flatbuffer.weight_uses(model):
        if use.tensor.buffer not in buffers:
            continue
        index = use.operator.inputs[2] if len(use.operator.inputs) > 2 else -1
        bias = None if index < 0 else model.buffers[use.graph.tensors[index].buffer].data
        # The bias of x A or (x A) B may be a constant that depends on A or B.
        if use.name != "FULLY_CONNECTED" or (bias is not None and np.any(bias)):
            raise ValueError(
                f"the converter combined the adapter in {use.tensor.name.decode()} with another "
                "constant: report this model"
            )


def _variables(layers: Mapping[str, Projection]) -> dict[str, keras.Variable]:
    """A and B of each layer, by path and name."""
    names = ("lora_kernel_a", "lora_kernel_b")
    return {f"{path}/{name}": getattr(x, name) for path, x in layers.items() for name in names}


@contextmanager
def _assign(layers: Mapping[str, Projection], values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Sets the adapters to `values`, and back."""
    variables = _variables(layers)
    before = {name: _array(variable) for name, variable in variables.items()}
    try:
        for name, variable in variables.items():
            variable.assign(values[name])
        yield
    finally:
        for name, variable in variables.items():
            variable.assign(before[name])


def _array(variable: keras.Variable) -> np.ndarray:
    """A copy of a weight as float32."""
    return np.array(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")))
