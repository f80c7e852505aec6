"""Verifies that each signature of an exported file returns what the model returns."""

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.arguments import check_not_negative
from keras_tfm.atomic_files import temporary_folder
from keras_tfm.export.checkpoints import keras_model
from keras_tfm.export.graph.schema import ModelT
from keras_tfm.export.quantization.precision import in_float32
from keras_tfm.export.quantization.presets import masks_of
from keras_tfm.export.quantization.trained_weights import TrainedWeights, trained_weights
from keras_tfm.export.signatures.request import without_mask_warnings
from keras_tfm.export.verification.checks import EXACT, Check, root_mean_square
from keras_tfm.export.verification.comparison import STEPS, Comparisons, ModelOutputs
from keras_tfm.export.verification.float_file import FloatFile
from keras_tfm.export.verification.in_float16 import Float16Check
from keras_tfm.export.verification.on_gpu import GpuCheck
from keras_tfm.export.verification.rows import (
    FEW_OUTPUTS,
    GUESS,
    Inputs,
    VerificationRows,
    check_given,
    inputs_of,
)
from keras_tfm.export.verification.stored_weights import (
    ModelWeights,
    Unrounded,
    factors_of,
    find_constants,
)
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.strategies import Beam, Greedy, Strategy
from keras_tfm.keras_internals import accepts_training, nodes_in_order, sublayers
from keras_tfm.matmul_precision import full_precision
from keras_tfm.models.identity import describe
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Generate, Manifest, Predict, Stepped, of_role
from keras_tfm.runtime.manifest.storage import File, map_content

_log = logging.getLogger(__name__)

# Deep models with large features may exceed it by rounding of float32 alone. Then the allowed error
# is this multiple of the error that follows from changing each weight by at most its last bit, but
# not more than `_INEXACT`.
_LAST_BITS = 8.0
_INEXACT = 1e-3
# A file rounds activations, too. The allowed error, as a multiple of that of rounding the weights:
# LiteRT scales activations for each row ("int8", "int4"), or once for all inputs ("int8_full").
# Of "float32", only int8 caches are rounded, and the run with random rounding has all their errors.
_ACTIVATIONS = {"float32": 1.0, "float16": 5.0, "int8": 5.0, "int4": 5.0, "int8_full": 40.0}
# The allowed error of int8 caches, as a multiple of that of random rounding: a search has one error
# for each row, and of two times four random errors, the mean of one is often twice the other's.
_CACHES = 5.0
# The error of rounding the activations of one product to 8 bits, relative to their size: a hundred
# normally distributed values span 6 standard deviations, a step is 1/255 of that, and the error of
# rounding 1/sqrt(12) of a step. It exceeds the error of rounding the weights where outputs hardly
# depend on them, for instance in a classifier that is always certain.
_STEP = 6 / 255 / 12**0.5
STEP = {"float32": 0.0, "float16": 0.0, "int8": _STEP, "int4": _STEP, "int8_full": _STEP}
# The largest default tolerance: at this relative error the output is noise.
_LARGEST = 1.0
# From this relative error on, a warning says that little is left of the model's outputs, although
# the file is as right as any with such rounding.
_LOST = 0.5
# The errors of two random roundings of the same weights differ by less than this factor.
_CHANCE = 2.0
# Up to this number of differences, several random roundings set the tolerance: outputs of the same
# weights have much of their error in common.
_FEW_DIFFERENCES = 4 * FEW_OUTPUTS
# The number of random roundings whose mean square error sets the tolerance of few outputs; of a
# large model, which takes minutes to run with other weights.
_ROUNDINGS = 4
_LARGE_ROUNDINGS = 2
# The maximum number of threads that run a large file with other weights.
_THREADS = 8

# What returns the values of a weight in float32, in chunks.
Chunks = Callable[[], Iterable[np.ndarray]]


@dataclass
class Verification:
    """The checks of all signatures; `print` it, or take `asdict()`.

    Attributes:
        path: str, the file.
        quantization: str, that of the file.
        checks: list of `Check`, one a signature.
        inputs: dict, what was run as each input, in words: rows that were given, or random ones.
            Of several models, by "model.input".
        steps: int, of a large model, the number of steps that were compared: one call of each
            signature and this many steps of a loop; None: all steps.
        gpu: `GpuCheck`, the file on LiteRT's GPU delegate; None unless it was exported for one.
        float16: `Float16Check`, the same in float16 on the CPU; None as for `gpu`.
    """

    path: str
    quantization: str
    checks: list[Check]
    inputs: dict[str, str] = field(default_factory=dict)
    steps: int | None = None
    gpu: GpuCheck | None = None
    float16: Float16Check | None = None

    @property
    def failures(self) -> list[str]:
        """One sentence for each signature that exceeds a tolerance."""
        failures = [x.failure for x in self.checks if x.failure is not None]
        return failures if self.gpu is None else [*failures, *self.gpu.failures]

    def asdict(self) -> dict[str, Any]:
        """Everything, as plain dictionaries and lists."""
        return asdict(self)

    def __str__(self) -> str:
        """The checks as a text table."""
        lines = [
            f"  {'against Keras':16} {'rows':>5} {'max error':>10} {'mean error':>11} "
            f"{'relative':>9} {'allowed':>8} {'graph':>8} {'top-1':>7} {'ms':>9}"
        ]
        for x in self.checks:
            top = "" if x.top_1 is None else f"{100 * x.top_1:.1f} %"
            lines.append(
                f"  {x.signature:16} {x.rows:5} {x.max_error:10.2g} {x.mean_error:11.2g} "
                f"{x.relative_error:9.1g} {x.tolerance:8.1g} {x.graph_error:8.1g} {top:>7} "
                f"{x.ms:9.3f}"
            )
        if self.steps is not None:
            lines.append(
                f"  a large model: one call of each signature, {self.steps} steps of a loop"
            )
        # What stands for ids and pixels is right for every model.
        plain = ("random ids", "random uint8", "noise")
        lines += [f"  {name}: {x}" for name, x in self.inputs.items() if not x.startswith(plain)]
        lines += [f"  {x}" for x in (self.gpu, self.float16) if x is not None]
        return "\n".join(lines)


class VerificationError(ValueError):
    """The file differs from the model; `verification` has the numbers."""

    def __init__(self, message: str, verification: Verification):
        super().__init__(message)
        self.verification = verification


@without_mask_warnings()
@full_precision()
def verify(
    model: keras.Model | Mapping[str, keras.Model] | str | Path,
    path: File,
    inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    strategy: Strategy | None = None,
    adapter: str | Path | None = None,
    peft: str | Path | None = None,
) -> Verification:
    """Runs every signature of a file and the model on the same inputs, and compares the results.

    - "predict": the outputs are compared value by value.
    - "decode", with its "encode" and "prefill": the logits of steps of one token are compared with
      those of one full pass.
    - "generate", greedy: the logits of every step are compared with those of a full pass over the
      generated tokens. With another strategy, tokens and scores are compared with those of the same
      loop in Keras; if rounded weights lead a beam search to another hypothesis, its score is
      compared with the model's score of it.

    A file with rounded weights or int8 caches is run three times: as it is; with the model's
    unrounded weights and float32 activations and caches, where only float32 errors remain; and with
    random rounding of the same step size, whose error sets the tolerance. Of few outputs, such as
    one probability a row, more rows are compared, and more random roundings. The copies with other
    weights, in float32, are written beside the file and removed.

    A model that was trained with rounding (`models.enable_quantization`) computes with the file's
    weights: the second run has these, so that only the rounding of activations is tolerated.

    A model of more than 100 million weights is compared on one call of each signature, and on 8
    steps of "decode" and "generate". Rows in `inputs` are all compared.

    Args:
        model: functional `keras.Model`, the exported one, or the dictionary of several; a model in
            mixed precision or quantized by Keras is compared as a copy in float32. Or a task,
            backbone or preset of KerasHub, or a folder of transformers, as of `export_tflite`.
        path: str, Path, bytes or open file, as in `runtime.load`.
        inputs: dict of arrays, rows of the model's inputs by name, of any exported lengths; the
            stepped input is optional. Of several models, a dictionary of such by model. Default:
            random rows of every exported length. Random numbers have the mean and the deviation
            that a normalisation of the input tells, or the weights of the layer that reads it;
            where nothing tells them, a file with rounded weights needs real rows, and a warning
            asks for them.
        tolerance: float, the largest allowed relative error (`Check.relative_error`) of the file as
            it is; default: 1e-4 in float32, otherwise a multiple of the error of rounding the
            weights.
        strategy: `Strategy`, the exported one; needed only if it is a custom one.
        adapter: str or Path, the adapter file with which the file runs, of a model with adapters;
            see `save_adapter`.
        peft: str or Path, of a folder: the adapters with which it was exported.

    Raises:
        VerificationError: a signature exceeds a tolerance.
        ValueError: the inputs do not fit, or the file is damaged.
        TypeError: ids are not integers.
        OSError: the disk has no space for a copy with weights in float32.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import export_tflite, verify
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(3)(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite")
    ...     verify(model, report.path).checks[0].top_1
    1.0
    """
    if tolerance not in (None, math.inf):
        check_not_negative("tolerance", tolerance)
    file = LoadedFile(path, adapter=adapter)
    model = keras_model(model, file.manifest.images, peft)
    pairs = _pairs(model, file, inputs, merge_adapters=adapter is None)
    strategy = strategy or _strategy_of(file)
    comparison = Comparisons(
        {name: ModelOutputs(one) for name, (one, *_) in pairs.items()}, file, inputs, strategy
    )
    own_names = " and ".join(one.name for one, *_ in pairs.values())
    checks = []
    with _rounding_as_trained(comparison):
        for name in file.signatures:
            _log.info("comparing %s with %s", name, own_names)
            checks.append(comparison.of(name))
    file.close()  # its memory is needed by the runs with other weights
    quantization = file.manifest.quantization
    if not file.manifest.is_rounded:
        for check in checks:
            check.tolerance = EXACT if tolerance is None else tolerance
            check.graph_error, check.graph_tolerance = check.worst_error, check.tolerance
        if tolerance is None and any(check.failure for check in checks):
            run = _Run(file.manifest, checks, comparison.differences)
            _allow_last_bits(comparison, flatbuffer.read(file.map_content()), run, checks)
            for check in checks:
                check.tolerance = check.graph_tolerance
    else:
        _log.info("comparing %s without its rounding", path)
        _compare_rounding(comparison, checks, tolerance)
    shown = path if isinstance(path, str | Path) else file.path
    sources = _input_sources(comparison)
    is_large = any(x.is_large for x in comparison.outputs.values())
    result = Verification(
        str(shown), quantization, checks, inputs=sources, steps=STEPS if is_large else None
    )
    if result.failures:
        hints = [other_arguments(one, part) for one, part in pairs.values()]
        hints += [
            f"{x.model.name} gives a row other outputs beside other rows of its batch: a file runs "
            "batches of its own, so that the results for a row must not depend on other rows"
            for x in comparison.outputs.values()
            if x.mixes_rows()
        ]
        reasons = "; ".join(filter(None, [*result.failures, *hints]))
        raise VerificationError(f"the file differs from {own_names}: {reasons}", result)
    if tolerance is None:
        _warn_of_loss(quantization, checks)
    return result


def _pairs(
    model: keras.Model | Mapping[str, keras.Model],
    file: LoadedFile,
    inputs: Inputs | None,
    merge_adapters: bool,
) -> dict[str, tuple[keras.Model, LoadedFile]]:
    """Each model in float32 with its part of the file, both checked; "" is the only one."""
    several = isinstance(model, Mapping)
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    if several != bool(file.models) or (several and set(models) != set(file.models)):
        raise ValueError(
            f"{file.path} holds "
            + (f"the models {list(file.models)}" if file.models else "one model")
            + f": give {'a dictionary of them' if file.models else 'that model itself'}, got "
            + (f"{list(models)}" if several else "one model")
        )
    if several and inputs is not None:
        found = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        if isinstance(found, str) or not set(found) <= set(models):
            raise ValueError(
                f"inputs must be a dictionary by model, of {list(models)}, got {found}"
            )
    result = {}
    for name, one in models.items():
        part = file.models[name] if several else file
        given = (inputs or {}).get(name) if several else inputs
        try:
            one = in_float32(one, merge_adapters)
            check_pair(one, part)
            if given is not None:
                check_given(one, part, given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"model {name!r}: {error}" if several else str(error)) from error
        result[name] = (one, part)
    return result


def _warn_of_loss(quantization: str, checks: Sequence[Check]) -> None:
    """Warns where rounding leaves little of an output, in a file as right as it can be."""
    worst = max(checks, key=lambda check: check.relative_error)
    if worst.relative_error < _LOST:
        return
    warnings.warn(
        f"{quantization} changes the outputs of {worst.signature!r} by "
        f"{100 * worst.relative_error:.0f} % of their size, as other roundings of this precision "
        "would: the model does not tolerate it. Use another quantization, list layers that keep "
        "more bits (keep_float, keep_int8), adapt the weights (export.calibrate), or train them "
        "rounded (models.enable_quantization)",
        UserWarning,
        stacklevel=4,  # at the caller of `verify`, over its two decorators
    )


def _input_sources(found: Comparisons) -> dict[str, str]:
    """What was run as each input; warns where rounding was compared on a guess."""
    result: dict[str, str] = {}
    for name, outputs in found.outputs.items():
        file = found.file.models[name] if name else found.file
        given = (found.inputs or {}).get(name) if name else found.inputs
        prefix = f"{name}." if name else ""
        inputs = inputs_of(file, given, outputs.numbers)
        result |= {prefix + key: x for key, x in inputs.items()}
    guessed = [name for name, x in result.items() if x == GUESS]
    quantization = found.file.manifest.quantization
    if guessed and quantization != "float32":
        warnings.warn(
            f"the rounding of {quantization} was compared with the model on {GUESS}: give real "
            f"rows of {', '.join(map(repr, guessed))} as verify_inputs (of export_tflite) or "
            "inputs (of verify), or make a keras.layers.Normalization the first layer",
            UserWarning,
            stacklevel=5,  # at the caller of `verify`, over its two decorators
        )
    return result


class _Run(NamedTuple):
    """A run of a file: its manifest, checks, and differences from the model by signature."""

    manifest: Manifest
    checks: list[Check]
    differences: dict[str, list[np.ndarray]]


def _scratch(file: LoadedFile) -> Path | None:
    """The folder for float copies: that of the file. The default may be in memory."""
    source = file.source
    if isinstance(source, Path) and os.access(source.parent, os.W_OK):
        return source.parent
    return None


def _run(
    found: Comparisons,
    of: dict[str, ModelOutputs],
    path: Path,
    names: Sequence[str] | None = None,
) -> _Run:
    """Compares a file with other weights than those of `found` with the same models.

    `names`: the signatures to run; None: all. Large weights are read where the file is mapped:
    XNNPACK would copy them for each signature.
    """
    is_large = any(x.is_large for x in of.values())
    threads = min(_THREADS, os.cpu_count() or 1) if is_large else 1
    file = LoadedFile(path, threads, xnnpack=not is_large)
    comparisons = Comparisons(of, file, found.inputs, found.strategy, is_of_weights=True)
    checks = [comparisons.of(name) for name in names or file.signatures]
    file.close()
    return _Run(file.manifest, checks, comparisons.differences)


def _compare_rounding(found: Comparisons, checks: list[Check], tolerance: float | None) -> None:
    """Sets `graph_error` and the tolerances of the checks of a file with rounded weights."""
    file, quantization = found.file, found.file.manifest.quantization
    has_int8_caches = file.manifest.cache == "int8"
    weights = ModelWeights(
        [
            x
            for one in found.outputs.values()
            for x in (*one.model.weights, *_folded_norms(one.model))
        ],
        [x for one in found.outputs.values() for x in factors_of(one.model)],
    )
    graph = FloatFile(file.map_content())
    unrounded = {buffer: weights.find(x) for buffer, x in graph.stored.items()}
    generator = np.random.default_rng(0)
    noisy = FloatFile(file.map_content(), generator) if has_int8_caches else graph

    def run(
        of: dict[str, ModelOutputs],
        values: Mapping[int, Chunks],
        exact: bool,
        names: Sequence[str] | None = None,
    ) -> _Run:
        with temporary_folder(_scratch(file)) as folder:
            path, manifest = folder / "float.tflite", file.manifest
            if exact:
                manifest = replace(manifest, quantization="float32")
            (graph if exact else noisy).save(path, manifest, values)
            return _run(found, of, path, names)

    at_random = {buffer: partial(x.rounded_chunks, generator) for buffer, x in unrounded.items()}
    with _rounding_as_trained(found):
        rounded = run(found.outputs, at_random, exact=False)
        is_large = any(x.is_large for x in found.outputs.values())
        few = [
            name
            for name, rows in rounded.differences.items()
            if sum(x.size for x in rows) <= _FEW_DIFFERENCES
        ]
        count = (_LARGE_ROUNDINGS if is_large else _ROUNDINGS) if few else 1
        others = [run(found.outputs, at_random, False, few) for _ in range(count - 1)]
    with masks_of(quantization):
        # int8_full masks scores with another value, which changes the model's outputs.
        of = found.outputs
        trained = _trained_of(found)
        if quantization == "int8_full" or trained is not None:
            of = {name: ModelOutputs(x.model) for name, x in of.items()}
        models = {name: x.model for name, x in of.items()}
        find_constants(unrounded, graph.stored, models, file.signatures)
        if trained is not None:
            # The model computes with the weights of the file: these must be the same.
            unrounded = {
                buffer: Unrounded(x, True, np.zeros(1)) for buffer, x in graph.stored.items()
            }
        values: dict[int, Chunks] = {buffer: x.chunks for buffer, x in unrounded.items()}
        exact = run(of, values, exact=True)
        sampled = exact
        if any(np.any(x.spread) for x in unrounded.values()):
            samples = {
                buffer: partial(x.sample_chunks, generator) for buffer, x in unrounded.items()
            }
            sampled = run(of, samples, exact=True)
    products = sum(any(x.bounds) for x in graph.stored.values())  # initial caches are zeros
    for check, without, random in zip(checks, exact.checks, rounded.checks, strict=True):
        name = check.signature
        _, unknown = _distances(sampled.differences[name], exact.differences[name])
        roundings = [
            _distances(x.differences[name], exact.differences[name])[0]
            for x in (rounded, *others)
            if name in x.differences
        ]
        # NaN, such as of the logarithm of a number that rounding made negative: all is lost.
        rounding = float(np.nan_to_num(root_mean_square(np.array(roundings)), nan=np.inf))
        check.graph_error = without.worst_error
        check.graph_tolerance = EXACT + _CHANCE * unknown / without.scale
        noise = _ACTIVATIONS[quantization] * rounding / check.scale
        if has_int8_caches:
            # `rounding` is that of the first step, when caches are nearly empty.
            noise = max(noise, _CACHES * random.relative_error)
        # The errors of the activations of several products add up as squares.
        check.tolerance = EXACT + max(noise, STEP[quantization] * products**0.5)
        check.tolerance = min(check.tolerance, _LARGEST) if tolerance is None else tolerance
    if any(check.graph_error > check.graph_tolerance for check in checks):
        with temporary_folder(_scratch(file)) as folder:
            graph.save(folder / "float.tflite", exact.manifest, values)
            model = flatbuffer.read(map_content(folder / "float.tflite"))
            _allow_last_bits(found, model, exact, checks)


def _trained_of(found: Comparisons) -> TrainedWeights | None:
    """The trained weights of the file's only model, if it was trained with rounding."""
    known = [trained_weights(x.model) for x in found.outputs.values()]
    return next((x for x in known if x is not None), None)


@contextmanager
def _rounding_as_trained(found: Comparisons) -> Iterator[None]:
    """The context in which a model computes with the rounding that it was trained with."""
    trained = _trained_of(found)
    if trained is None:
        yield
        return
    with trained.quantization.rounded_values(found.file.manifest.cache == "int8"):
        yield


def _folded_norms(model: keras.Model) -> list[np.ndarray]:
    """Factors and offsets of batch normalisations, which a converter makes part of convolutions."""
    found = []
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta = (layer.gamma if layer.scale else 1.0), (layer.beta if layer.center else 0)
            scale = keras.ops.rsqrt(layer.moving_variance + layer.epsilon) * gamma
            found += [scale, beta - layer.moving_mean * scale]
    return [keras.ops.convert_to_numpy(x) for x in found]


def _allow_last_bits(found: Comparisons, model: ModelT, run: _Run, checks: list[Check]) -> None:
    """Raises each `graph_tolerance` of the checks to what rounding in float32 explains."""
    generator = np.random.default_rng(0)
    model.metadata = []
    for buffer, values in flatbuffer.float_weights(model).items():
        chunks = partial(_change_last_bits, values.reshape(-1), generator)
        model.buffers[buffer].data = flatbuffer.LazyBytes(values.nbytes, chunks)
    with temporary_folder(_scratch(found.file)) as folder:
        path = folder / "last-bits.tflite"
        flatbuffer.save(path, model, run.manifest)
        other = _run(found, found.outputs, path)
        for check, changed in zip(checks, other.checks, strict=True):
            name = check.signature
            _, worst = _distances(other.differences[name], run.differences[name])
            allowed = min(_LAST_BITS * worst / changed.scale, _INEXACT)
            check.graph_tolerance = max(check.graph_tolerance, allowed)


def _change_last_bits(values: np.ndarray, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """The values, each changed by at most its last bit, in chunks."""
    for start in range(0, len(values), 1 << 20):
        part = values[start : start + (1 << 20)]
        yield (part * (1 + 2.0**-23 * generator.uniform(-1, 1, part.shape))).astype("float32")


def _distances(first: list[np.ndarray], second: list[np.ndarray]) -> tuple[float, float]:
    """The root mean square of the differences between two lists of rows, and of the worst row."""
    rows = [x - y for x, y in zip(first, second, strict=True)]
    worst = max(map(root_mean_square, rows), default=0.0)
    return root_mean_square(np.concatenate(rows)) if rows else 0.0, worst


def _strategy_of(file: LoadedFile) -> Strategy:
    """The strategy of an exported file."""
    for signature in of_role(file.signatures, Generate).values():
        settings = dict(signature.strategy or {})
        if settings.get("name") == "Drafted":  # its tokens are those of the strategy inside
            settings = dict(settings["strategy"])
        if settings:
            name, processors = settings.pop("name"), settings.pop("processors", [])
            known = {field.name for field in fields(Beam)} - {"processors"}
            if processors or name not in ("Beam", "Greedy"):
                what = f"processors {processors}" if processors else f"custom strategy {name}"
                raise ValueError(f"{file.path} was exported with the {what}: pass strategy=")
            if name == "Greedy":
                return Greedy()
            if set(settings) != known:
                raise ValueError(
                    f"{file.path} was exported with a length penalty of its own: pass strategy="
                )
            return Beam(**settings)
    return Greedy()


def check_pair(model: keras.Model, file: LoadedFile) -> None:
    """Raises a ValueError that lists the differences if `file` cannot be an export of `model`.

    A model whose layers return other shapes than Keras computed when it was built, or whose outputs
    are not one for each row, is not compared: the error says so.
    """
    found = list(dict.fromkeys(_differences(model, file)))
    reason = _other_shape(model, file) if found else _without_rows(file)
    if reason is not None:
        raise ValueError(f"{model.name} cannot be compared: {reason}")
    if found:
        raise ValueError(f"{file.path} is not an export of {model.name}: {'; '.join(found)}")


def other_arguments(model: keras.Model, file: LoadedFile) -> str:
    """The builder arguments that differ, for an error; empty if none do or if none are known."""
    ours, theirs = describe(model), file.manifest.model
    if ours is None or theirs is None:
        return ""
    if ours["family"] != theirs.family:
        return f"the model is a {ours['family']}, the file a {theirs.family}"
    mine, other = ours["arguments"], theirs.arguments
    different = [
        f"{key} ({mine.get(key)!r} in the model, {other.get(key)!r} in the file)"
        for key in {**mine, **other}
        if mine.get(key) != other.get(key)
    ]
    return f"different arguments: {', '.join(different)}" if different else ""


def _differences(model: keras.Model, file: LoadedFile) -> Iterator[str]:
    interface = interface_of(model)
    own = interface.inputs
    for signature in file.signatures.values():
        inputs, taken = signature.inputs, set(signature.of_kind("input"))
        target = signature.target if isinstance(signature, Stepped) else None
        if isinstance(signature, Predict) and taken != set(own):
            yield f"the model has the inputs {sorted(own)}, the file {sorted(taken)}"
            continue
        if missing := sorted({*taken, *([target] if target else [])} - set(own)):
            yield f"the model has no input {', '.join(map(repr, missing))} (it has {list(own)})"
            continue
        for key in sorted(taken):
            known = inputs[key].vocabulary_size
            size, shape = own[key].vocabulary_size, own[key].spec.shape
            if known != size:
                yield f"{key!r} has {size} ids in the model, {known} in the file"
            if key != target and not _fits(shape, inputs[key].shape):
                yield (
                    f"{key!r} has the shape {tuple(shape)} in the model, "
                    f"{tuple(inputs[key].shape)} in the file"
                )
        if isinstance(signature, Predict):
            outputs = interface.name_outputs(model.output)
            shapes = {key: tuple(x.shape) for key, x in outputs.items()}
            theirs = {key: tuple(x.shape) for key, x in signature.outputs.items()}
            if set(shapes) != set(theirs) or not all(_fits(shapes[k], theirs[k]) for k in shapes):
                yield f"the model has the outputs {shapes}, the file {theirs}"


def _other_shape(model: keras.Model, file: LoadedFile) -> str | None:
    """The first layer whose outputs have another shape than when the model was built, in words."""
    names = list(of_role(file.signatures, Predict))
    specs = interface_of(model).inputs
    if not names or set(file.signatures[names[0]].inputs) != set(specs):
        return None
    arrays = VerificationRows(file, None).arguments(names[0], 0)
    values = {id(specs[name].spec): keras.ops.convert_to_tensor(x) for name, x in arrays.items()}
    for node in nodes_in_order(model):
        layer = node.operation
        args, kwargs = node.arguments.fill_in(values)
        if accepts_training(layer):
            kwargs = {**kwargs, "training": False}
        try:
            outputs = keras.tree.flatten(layer(*args, **kwargs))
        except Exception:  # the file is not of this model
            return None
        for expected, x in zip(node.output_tensors, outputs, strict=True):
            if not _fits(expected.shape, x.shape):
                return (
                    f"layer {layer.name!r} returns the shape {tuple(x.shape)}, but when the model "
                    f"was built, Keras computed {tuple(expected.shape)}"
                )
            values[id(expected)] = x
    return None


def _without_rows(file: LoadedFile) -> str | None:
    """The first output whose first axis is not that of the rows, in words."""
    for signature in of_role(file.signatures, Predict).values():
        batch = next(iter(signature.inputs.values())).shape[0]
        for name, x in signature.outputs.items():
            if list(x.shape[:1]) != [batch]:
                return (
                    f"output {name!r} has the shape {tuple(x.shape)} for inputs of {batch} "
                    f"row{'s' * (batch != 1)}, so its first axis is not that of the rows"
                )
    return None


def _fits(shape: Sequence[int | None], exported: Sequence[int]) -> bool:
    """Whether a static shape in a file fits a shape of the model; the batch size may differ."""
    pairs = list(zip(shape, exported, strict=False))[1:]
    return len(shape) == len(exported) and all(d is None or d == n for d, n in pairs)
