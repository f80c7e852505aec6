"""The presets of `export_tflite(quantization=...)`, and the memory that they need."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.schema import ModelT
from keras_tfm.export.quantization import four_bits
from keras_tfm.export.quantization.kept_layers import (
    exact_buffers,
    find_buffers,
    find_constants,
    find_layers,
)
from keras_tfm.export.quantization.trained_weights import TrainedWeights, store, trained_weights
from keras_tfm.export.signatures.input_numbers import InputNumbers, input_numbers
from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import Signature
from keras_tfm.host_memory import available_memory
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers.target import bounded_masks
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection.inspection import inspect_subgraphs
from keras_tfm.runtime.manifest.manifest import QUANTIZATIONS

_log = logging.getLogger(__name__)

# In int8, scores and masks share 256 steps: with this mask value a 4-layer encoder has a relative
# error of 0.04; with -100, 0.05; with -1e4, 0.35. A masked key has a weight of 1e-13.
_MASKED_IN_8_BITS = -30.0

# The maximum number of representative inputs with which a file is verified.
_ROWS = 64

# Converts the model to a file. The argument configures the converter.
Convert = Callable[[Callable[[tf.lite.TFLiteConverter], None]], ModelT]


class Quantization:
    """One preset and its exceptions, checked before the conversion.

    Args:
        model: functional `keras.Model`.
        preset: one of `QUANTIZATIONS`.
        keep_float: names of layers whose weights stay float32; see `find_layers`. The constants of
            `find_constants` always do.
        keep_int8: names of layers whose weights get 8 bits in "int4".
        representative_data: inputs of "predict" for "int8_full", an iterable of arrays by name (or
            of arrays, for a model of one input), each of exactly the exported shape.

    Raises:
        ValueError: a preset or layer is unknown, arguments exclude each other, or the model was
            trained with another rounding.

    Attributes:
        trained: `TrainedWeights` of a model that was trained with rounding; None for others.

    >>> import keras
    >>> from keras_tfm.export.quantization.presets import Quantization
    >>> x = keras.Input((4,))
    >>> model = keras.Model(x, keras.layers.Dense(3, name="head")(x), name="small")
    >>> Quantization(model, "int8", keep_float=["haed"])
    Traceback (most recent call last):
        ...
    ValueError: keep_float: small has no layer 'haed'; similar names are ['head']
    """

    def __init__(
        self,
        model: keras.Model,
        preset: str,
        keep_float: Sequence[str] = (),
        representative_data: Iterable[object] | None = None,
        keep_int8: Sequence[str] = (),
    ):
        if preset not in QUANTIZATIONS:
            raise ValueError(f"quantization must be one of {list(QUANTIZATIONS)}, got {preset!r}")
        if len(keep_float) and preset not in ("float16", "int8", "int4"):
            raise ValueError(
                "keep_float needs quantization float16, int8 or int4, "
                f"got quantization={preset!r} and keep_float={keep_float!r}"
            )
        if len(keep_int8) and preset != "int4":
            raise ValueError(
                "keep_int8 needs quantization int4, "
                f"got quantization={preset!r} and keep_int8={keep_int8!r}"
            )
        if preset == "int8_full" and representative_data is None:
            raise ValueError(
                "quantization='int8_full' needs representative_data: "
                "a few hundred inputs like those the model will get, got None"
            )
        if preset != "int8_full" and representative_data is not None:
            raise ValueError(
                "representative_data is for quantization='int8_full', "
                f"got it with quantization={preset!r}"
            )
        self.trained = _trained_weights(model, preset, keep_float, keep_int8)
        self._constants = find_constants(model)
        if preset == "int8_full" and self._constants:
            raise ValueError(
                "quantization='int8_full' would round the Fourier transform of "
                f"{', '.join(self._constants)}: use 'int8'"
            )
        if preset in ("float16", "int8", "int4"):
            self._constants |= _raw_kernels(model)
        if self.trained is not None:
            _check_raw(model, self.trained)
        self.model, self.preset = model, preset
        self._layers = find_layers(model, keep_float)
        self._eight_bits = find_layers(model, keep_int8, "keep_int8")
        self._kernels: Mapping[str, np.ndarray] = {}
        self._data = representative_data
        self._samples: list[tuple[str, dict[str, np.ndarray]]] = []
        # By signature, the first representative data as rows of the model's inputs.
        self.rows: dict[str, dict[str, np.ndarray]] = {}

    def keep(self, kernels: Mapping[str, np.ndarray]) -> None:
        """Keeps further kernels (D, F) in float32, which the graph must hold bit for bit."""
        if self.preset == "int8_full":
            raise ValueError(
                "separate_adapters needs float32 activations, got quantization='int8_full'; "
                "use 'int8'"
            )
        self._kernels = kernels

    def check_request(self, request: Request) -> None:
        """Raises ValueError if a signature or the accelerator does not support this preset."""
        known = None if self.trained is None else self.trained.quantization
        has_caches = request.is_stepped
        if known is not None and has_caches and known.cache == "int8" != request.cache:
            raise ValueError(
                f"{self.model.name} is trained with int8 caches, got cache={request.cache!r}: "
                "export it with cache='int8'"
            )
        if self.preset == "int4" and request.accelerator == "gpu":
            raise ValueError(
                "quantization='int4' is for accelerator='cpu': LiteRT's GPU delegate ends the "
                "process at weights of 4 bits; use 'int8'"
            )
        if self.preset == "int8_full" and request.accelerator == "gpu":
            raise ValueError(
                "quantization='int8_full' is for accelerator='cpu': LiteRT's GPU delegate computes "
                "in floats; use 'int8'"
            )
        if self.preset != "int8_full":
            return
        if request.roles != ["predict"] or len(request.source_lengths) > 1:
            # TensorFlow 2.21's calibrator ends the process with a segmentation fault on a loop.
            raise ValueError(
                "quantization='int8_full' is for one signature 'predict', got signatures "
                f"{request.roles} of {len(request.source_lengths)} lengths: loops and caches "
                "cannot be calibrated; use 'int8'"
            )

    def read_data(self, signatures: Sequence[Signature]) -> None:
        """Reads the representative data once; raises ValueError if they do not fit."""
        if self.preset != "int8_full":
            return
        assert self._data is not None
        given: Mapping[str, Iterable[object]] = {signatures[0].name: self._data}
        names = [signature.name for signature in signatures]
        if len(names) > 1:
            if not isinstance(self._data, Mapping) or set(self._data) != set(names):
                raise ValueError(f"representative_data must be a dictionary by model, of {names}")
            given = self._data
        for signature in signatures:
            before, kept = len(self._samples), list[dict[str, np.ndarray]]()
            for number, sample in enumerate(given[signature.name]):
                place = f"[{signature.name!r}]" if len(names) > 1 else ""
                arrays = _sample(f"representative_data{place}[{number}]", sample, signature)
                inputs = {signature.parameters[name]: x for name, x in arrays.items()}
                self._samples.append((signature.name, inputs))
                if len(kept) < _ROWS:
                    kept.append(arrays)
            if len(self._samples) == before:
                raise ValueError("representative_data must have a few hundred inputs, got none")
            self.rows[signature.name] = {
                name: np.concatenate([arrays[name] for arrays in kept]) for name in kept[0]
            }

    def tracing(self) -> AbstractContextManager[None]:
        """The context in which the graph must be traced."""
        return masks_of(self.preset)

    def apply(self, convert: Convert) -> ModelT:
        """The quantised file.

        Args:
            convert: converts the traced graph; its argument sets up the converter.
        """
        if self.trained is not None:
            model = convert(_plain)
            store(model, self.trained)
            return model
        if self.preset == "int8":
            model = convert(_dynamic)
            if self._layers or self._kernels or self._constants:
                kept = self._find_kept(flatbuffer.float_weights(convert(_plain)))
                _restore(model, kept, [*self._layers])
            return model
        if self.preset == "int8_full":
            with warnings.catch_warnings():  # about the calibrator's own interpreter
                warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated")
                model = convert(self._calibrate)
            flatbuffer.round_after_lookup(model)
            _warn_of_fragments(model, convert(_plain))
            return model
        model = convert(_plain)
        if self.preset == "float32":
            return model
        weights = flatbuffer.float_weights(model)
        kept = self._find_kept(weights)
        if self.preset == "int4":
            eight_bits = find_buffers(weights, self._eight_bits, "keep_int8")
            four_bits.quantize(model, kept, eight_bits.keys() - kept.keys())
        else:
            rounded = weights.keys() - kept.keys()
            for buffer in rounded:
                _check_half(weights[buffer])
            flatbuffer.store_half(model, rounded)
        return model

    def _find_kept(self, stored: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The weights that stay float32, by buffer."""
        exact = exact_buffers(stored, self._kernels)
        kept = {buffer: stored[buffer] for buffers in exact.values() for buffer in buffers}
        constants = find_buffers(stored, self._constants, required=False)
        return find_buffers(stored, self._layers) | constants | kept

    def _calibrate(self, converter: tf.lite.TFLiteConverter) -> None:
        def data() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
            yield from self._samples

        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = data


def _trained_weights(
    model: keras.Layer, preset: str, keep_float: Sequence[str], keep_int8: Sequence[str]
) -> TrainedWeights | None:
    """The weights that were trained with rounding; raises ValueError unless the file stores them.

    `model`: a functional model, or a `ModelGroup`.
    """
    group = getattr(model, "models", None)
    for one in (group or {}).values():
        trained = trained_weights(one)
        if trained is not None:
            raise ValueError(
                f"{one.name} {trained.quantization.statement}, got it with other models for one "
                "file: export it alone, or call models.disable_quantization first"
            )
    for part in sublayers(model) if preset in ("int8", "int4", "int8_full") else ():
        inside = trained_weights(part)
        if inside is not None:
            raise ValueError(
                f"{part.name} inside {model.name} {inside.quantization.statement}, and "
                f"{model.name} is not: call models.disable_quantization({part.name}), "
                f"models.enable_quantization({model.name}, {preset!r}), and train it a little more"
            )
    trained = None if group else trained_weights(model)
    if trained is None:
        return None
    known = trained.quantization
    if preset != known.quantization:
        raise ValueError(
            f"{model.name} {known.statement}, got quantization={preset!r}: export it with "
            f"quantization={known.quantization!r}, or call models.disable_quantization first"
        )
    for option, given, wanted in (
        ("keep_float", keep_float, known.keep_float),
        ("keep_int8", keep_int8, known.keep_int8),
    ):
        if len(given) and {*given} != {*wanted}:
            raise ValueError(
                f"{option} must be that of models.enable_quantization, {wanted}, or left out, got "
                f"{list(given)}"
            )
    return trained


def _check_raw(model: keras.Layer, trained: TrainedWeights) -> None:
    """Raises ValueError if a layer whose activations 8 bits cannot hold has rounded weights."""
    known_ids = {id(x.variable) for x in trained.weights}
    for layer, known, name in _raw_layers(model):
        if any(id(x) in known_ids for x in layer.weights):
            raise ValueError(
                f"{layer.name} reads the raw numbers of {name} ({known.source}), which 8 bits do "
                f"not hold: train with keep_float=[{layer.name!r}] in models.enable_quantization"
            )


def _raw_layers(model: keras.Layer) -> Iterator[tuple[keras.Layer, InputNumbers, str]]:
    """The layers that read numbers too raw for 8 bits, what is known of these, their input."""
    for one in getattr(model, "models", {"": model}).values():
        for name, known in input_numbers(one).items():
            for layer in known.raw:
                yield layer, known, name


def _raw_kernels(model: keras.Layer) -> dict[str, list[np.ndarray]]:
    """The kernels that stay float32, by layer: those that read numbers too raw for 8 bits.

    `model`: a functional model, or a `ModelGroup`.
    """
    found = {}
    for layer, known, name in _raw_layers(model):
        _log.info(
            "keeping %s in float32: the numbers of %s are raw, by %s",
            *(layer.name, name, known.source),
        )
        kernels = [keras.ops.convert_to_numpy(w) for w in layer.weights if w.ndim > 1]
        found[getattr(layer, "path", layer.name)] = [x.astype("float32") for x in kernels]
    return found


def masks_of(preset: str) -> AbstractContextManager[None]:
    """The context in which the model masks scores as a file of this preset does."""
    return bounded_masks(_MASKED_IN_8_BITS) if preset == "int8_full" else nullcontext()


def _plain(converter: tf.lite.TFLiteConverter) -> None:
    """Float32: the default converter."""


def _dynamic(converter: tf.lite.TFLiteConverter) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]


def _restore(model: ModelT, kept: dict[int, np.ndarray], layers: list[str]) -> None:
    """Gives an int8 file the weights `kept` of the float32 file, those of `layers`."""
    floats = flatbuffer.float_weights(model)
    rounded = {
        use.tensor.buffer: flatbuffer.dequantize(model, use.tensor)
        for use in flatbuffer.weight_uses(model)
        if use.tensor.buffer not in floats
    }
    for values in kept.values():
        for buffer, (restored, step) in rounded.items():
            same = restored.shape == values.shape
            if same and np.all(np.abs(restored - values) <= 0.501 * step):
                flatbuffer.store_float(model, buffer, values)
    stored = list(flatbuffer.float_weights(model).values())
    for values in kept.values():
        if not any(np.array_equal(values, other) for other in stored):
            raise ValueError(
                f"keep_float: a weight of shape {values.shape} was not found in the int8 file; "
                f"leave out one of {layers}, and report this model"
            )


def _check_half(weight: np.ndarray) -> None:
    largest = max(float(weight.max(initial=0.0)), -float(weight.min(initial=0.0)))
    if largest > float(np.finfo("float16").max):
        raise ValueError(
            f"float16 weights must be at most 65504, got a weight of {largest:g}: "
            "name its layer in keep_float"
        )


def _sample(place: str, sample: object, signature: Signature) -> dict[str, np.ndarray]:
    """One sample of the representative data, as arguments of the signature."""
    specs = {name: x.spec for name, x in signature.inputs.items()}
    if not isinstance(sample, Mapping):
        if len(specs) != 1 or isinstance(sample, (list, tuple)):
            raise ValueError(
                f"{place} must be a dictionary of arrays by input name, {list(specs)}, "
                f"got {type(sample).__name__}"
            )
        sample = {next(iter(specs)): sample}
    if set(sample) != set(specs):
        raise ValueError(f"{place} must have the inputs {list(specs)}, got {list(sample)}")
    arrays = {}
    for name, spec in specs.items():
        array, shape = np.asarray(sample[name]), tuple(spec.shape)
        if array.shape != shape:
            raise ValueError(f"{place}: {name} must have shape {shape}, got {array.shape}")
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(f"{place}: {name} must be {dtype}, got {array.dtype}")
        known = signature.inputs[name].input
        size = None if known is None else known.vocabulary_size
        if size is not None and (array.min() < 0 or array.max() >= size):
            raise ValueError(
                f"{place}: {name} must have ids in 0..{size - 1}, got {array.min()}..{array.max()}"
            )
        if dtype.kind == "f" and not np.all(np.isfinite(array)):
            raise ValueError(f"{place}: {name} must be finite, got NaN or infinity")
        arrays[name] = array.astype(dtype)
    return arrays


def _warn_of_fragments(model: ModelT, plain: ModelT) -> None:
    """Warns if XNNPACK has more partitions in the quantized graph than in the float32 one."""
    counted = [inspect_subgraphs(flatbuffer.write(x)) for x in (model, plain)]
    for graph, before in zip(*counted, strict=True):
        if graph.partitions > before.partitions:
            warnings.warn(
                f"int8_full: XNNPACK runs {graph.name!r} in {graph.partitions} partitions, "
                f"in float32 in {before.partitions}: it may be slower than float32; "
                "measure, and prefer quantization='int8' on a CPU",
                UserWarning,
                stacklevel=9,  # at the caller of `export_tflite`, over its two decorators
            )


# Bytes per weight of each preset; the scales of "int4" are half a bit.
_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "int8_full": 1.0, "int4": 0.5625}
_GIGABYTE = 1e9


def memory_needed(parameters: int, quantization: str, verify: bool) -> float:
    """About how many bytes an export needs beside the model.

    The file, mapped, and XNNPACK's copy of its weights; with verification, instead, the file's
    graph with weights in float32, mapped. Large weights are otherwise in memory one at a time.

    Args:
        parameters: int, the number of weights.
        quantization: the preset.
        verify: bool, whether the file is verified.

    >>> from keras_tfm.export.quantization.presets import memory_needed
    >>> [memory_needed(600_000_000, "int8", verify) / 1e9 for verify in (False, True)]
    [1.2, 3.0]
    """
    file = parameters * _BYTES[quantization]
    return max(2 * file, file + 4 * parameters if verify else 0)


def warn_if_short(model: keras.Model, quantization: str, verify: bool) -> None:
    """Warns, before anything is converted, if the memory is likely too small.

    Args:
        model: functional `keras.Model`, or a `ModelGroup`.
        quantization, verify: as in `export_tflite`.
    """
    need, left = memory_needed(model.count_params(), quantization, verify), available_memory()
    if left is not None and left < need:
        less = memory_needed(model.count_params(), quantization, verify=False)
        advice = f"; verify=False needs about {less / _GIGABYTE:.2g} GB" if less < need else ""
        warnings.warn(
            f"exporting {model.name} needs about {need / _GIGABYTE:.2g} GB of memory beside the "
            f"model, {left / _GIGABYTE:.2g} GB are available: it may be slow, or the system may "
            f"end it{advice}",
            UserWarning,
            stacklevel=5,  # at the caller of `export_tflite`, over its two decorators
        )
