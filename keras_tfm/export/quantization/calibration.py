"""Adapts the weights of a model to int8 and int4, with examples of its inputs."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.export.quantization.four_bits import matrix_bits
from keras_tfm.export.quantization.gptq import compensate
from keras_tfm.export.quantization.kept_layers import find_layers
from keras_tfm.export.quantization.kernels import Kernels, Layer, variable_of
from keras_tfm.export.quantization.precision import in_float32
from keras_tfm.export.quantization.smoothing import (
    Activations,
    smooth_block,
    smooth_tied_table,
    tied_tables,
)
from keras_tfm.export.quantization.trained_weights import latent_copy
from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import Tensor, sublayers
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.transformer_block import TransformerBlock
from keras_tfm.models import with_dtype
from keras_tfm.models.quantization.named_layers import has_name
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    quantization_of,
    set_quantization,
)

_log = logging.getLogger(__name__)

# Rows of activations that are kept for each projection, to try factors on.
_ROWS = 2048
# The relative error of the outputs that float32 explains, even in deep models.
_EXACT = 1e-3


def calibrate(
    model: keras.Model,
    examples: Iterable[object],
    quantization: str = "int8",
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
) -> keras.Model:
    """Copies a model with weights that lose less in an int8 or int4 file.

    - In language models a few channels of the activations have values a hundred times as large as
      the rest. A file rounds the activations of each token to 256 levels, of which the rest then
      share few. Such channels are divided by a factor where they are produced, and multiplied by
      it where they are used: "SmoothQuant" (arXiv:2211.10438) and "AWQ" (arXiv:2306.00978). The
      factors are those whose rounded products are nearest to the exact ones, on the examples.
    - A tied table takes up the factors of the logits' input, and its lookups divide by them.
    - For "int4", weights are then rounded one after another, and those that follow make up for the
      error: "GPTQ" (arXiv:2210.17323).
    - A model with the grids of a quantized checkpoint keeps its integers, and LoRA adapters beside
      them: factors are powers of two, the same for the channels that share a scale and an offset,
      and the scales take them up. Nothing is rounded again, and inputs of 8-bit matrices stay.

    The file is neither larger nor slower. Blocks of this package and tied tables are changed, other
    layers not.

    Args:
        model: functional `keras.Model`. It is not changed.
        examples: iterable of inputs like those that the model will get, some 20,000 tokens in
            all: dictionaries of arrays by input name (arrays, for a model of one input).
        quantization: str, "int8" or "int4".
        keep_float, keep_int8: list of str, as in `export_tflite`, where they must be the same.

    Returns:
        A model in float32 with the same layer names. For "int8" its outputs are those of `model`;
        for "int4" those of the rounded weights. Export it, and verify the file against it. Memory:
        for "int4", 4 D^2 bytes for each matrix with inputs of width D. A model with
        a tied table cannot be saved for `transformers` then, whose lookups do not divide, and its
        `features` are those of `model` divided by the factors.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an example does not fit the inputs, there are none, the preset is another one,
            a layer is unknown, the model has no block of this package, or its outputs change; or it
            is trained with rounded weights, other than those of a quantized checkpoint, or with
            rounded activations or caches: calibrate first.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.export import calibrate
    >>> from keras_tfm.models import llama
    >>> size = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "max_length": 8}
    >>> model = llama(11, **size)
    >>> tokens = np.array([[1, 5, 6, 7], [1, 9, 10, 3]])
    >>> calibrated = calibrate(model, [tokens])
    >>> bool(np.allclose(model(tokens), calibrated(tokens), atol=1e-5))
    True
    """
    if quantization not in ("int8", "int4"):
        raise ValueError(f"quantization must be 'int8' or 'int4', got {quantization!r}")
    find_layers(model, keep_float)
    find_layers(model, keep_int8, "keep_int8")
    known = quantization_of(model)
    if known is not None:
        _check_published(model, known, quantization, [*keep_float, *keep_int8])
    rows = [_example(model, number, example) for number, example in enumerate(examples)]
    if not rows:
        raise ValueError("examples must have some inputs of the model, got none")
    if known is None:
        model = in_float32(model)
        copy = with_dtype(model, "float32")
    else:
        copy = latent_copy(model)
        known = known.copy(copy)
    blocks = [x for x in sublayers(copy) if isinstance(x, TransformerBlock)]
    if not blocks:
        raise ValueError(f"{model.name} has no TransformerEncoderBlock or TransformerDecoderBlock")
    bits_of = _bits_of(quantization, [*keep_float, *keep_int8], known)
    tables = tied_tables(copy)
    with _record(blocks, [x.table for x in tables], len(rows), bits_of) as activations:
        wanted = interface_of(copy).call(rows[0])
        for row in rows[1:]:
            interface_of(copy).call(row)
    grids = {} if known is None else {id(x): y for x, y in known.weights if y.scales is not None}
    kernels = Kernels(bits_of, grids)
    for number, block in enumerate(blocks, 1):
        _log.info("calibrating block %d of %d", number, len(blocks))
        smooth_block(block, activations, kernels)
    for tied in tables:
        smooth_tied_table(tied, activations, kernels)
    _check_equal(model, wanted, interface_of(copy).call(rows[0]))
    if known is not None:
        known.publish({i: kernels.grids.get(id(x), y) for i, (x, y) in enumerate(known.weights)})
        set_quantization(copy, known)
        return copy
    for layer in (layer for block in blocks for layer in _projections(block)):
        given = activations.get(id(layer))
        if given is not None and given.products is not None and bits_of(layer) == 4:
            layer.kernel.assign(compensate(ops.convert_to_numpy(layer.kernel), given.products))
    return copy


def _check_published(
    model: keras.Model, known: TrainedQuantization, quantization: str, kept: Sequence[str]
) -> None:
    """Raises a ValueError unless the model has the grids of a checkpoint, and nothing else."""
    if not known.is_published:
        raise ValueError(
            f"{model.name} is trained with rounded weights, which calibration would change: call "
            "models.disable_quantization first"
        )
    if quantization != known.quantization:
        raise ValueError(f"{model.name} {known.statement}, got quantization={quantization!r}")
    if not known.is_as_published:
        raise ValueError(
            f"{model.name} computes with rounded activations or caches already: calibrate it "
            "before enable_quantization"
        )
    if kept:
        raise ValueError(
            f"{model.name} has the grids of its checkpoint, got the layers {[*kept]} to keep: name "
            "them in models.enable_quantization, before calibrate"
        )


def _bits_of(
    quantization: str, more_bits: Sequence[str], known: TrainedQuantization | None
) -> Callable[[Layer], int]:
    """The function that gives the size of a layer's weights in the file."""
    if known is not None:
        bits = {id(variable): grid.bits for variable, grid in known.weights}
        return lambda layer: bits.get(id(variable_of(layer)), 8)

    def bits_of(layer: Layer) -> int:
        if quantization == "int8" or has_name(layer, more_bits):
            return 8
        values = ops.convert_to_numpy(variable_of(layer))
        return matrix_bits(values if isinstance(layer, TokenEmbedding) else values.T)

    return bits_of


def _example(model: keras.Model, number: int, example: object) -> dict[str, Tensor]:
    """One example as tensors by input name."""
    place = f"examples[{number}]"
    specs = {name: x.spec for name, x in interface_of(model).inputs.items()}
    if not isinstance(example, Mapping):
        if len(specs) != 1 or isinstance(example, (list, tuple)):
            raise ValueError(
                f"{place} must be a dictionary of arrays by input name, {list(specs)}, "
                f"got {type(example).__name__}"
            )
        example = {next(iter(specs)): example}
    if set(example) != set(specs):
        raise ValueError(f"{place} must have the inputs {list(specs)}, got {list(example)}")
    arrays = {name: np.asarray(example[name]) for name in specs}
    for name, spec in specs.items():
        shape = arrays[name].shape
        fits = len(shape) == len(spec.shape) and 0 not in shape
        if not fits or any(y not in (None, x) for x, y in zip(shape, spec.shape, strict=True)):
            raise ValueError(f"{place}: {name} must have shape {tuple(spec.shape)}, got {shape}")
        if not np.can_cast(arrays[name].dtype, spec.dtype, "same_kind"):
            raise ValueError(f"{place}: {name} must be {spec.dtype}, got {arrays[name].dtype}")
    return {name: ops.convert_to_tensor(x, specs[name].dtype) for name, x in arrays.items()}


@contextmanager
def _record(
    blocks: list[TransformerBlock],
    tables: list[TokenEmbedding],
    calls: int,
    bits_of: Callable[[Layer], int],
) -> Iterator[dict[int, Activations]]:
    """Records what the projections of blocks and tied tables multiply with, by their ids."""
    activations: dict[int, Activations] = {}
    kept = max(1, _ROWS // calls)

    def recorder(layer: Layer, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        is_table = isinstance(layer, TokenEmbedding)

        def record(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if is_table and not kwargs.get("reverse"):
                return call(inputs, *args, **kwargs)
            x = ops.convert_to_numpy(inputs).reshape(-1, inputs.shape[-1])
            if id(layer) not in activations:
                with_products = not is_table and bits_of(layer) == 4
                activations[id(layer)] = Activations(x.shape[-1], with_products)
            activations[id(layer)].add(x, kept)
            return call(inputs, *args, **kwargs)

        return record

    layers: list[Any] = [*(x for block in blocks for x in _projections(block)), *tables]
    for layer in layers:
        layer.call = recorder(layer, layer.call)
    try:
        yield activations
    finally:
        for layer in layers:
            del layer.call


def _projections(block: TransformerBlock) -> list[Projection]:
    return [x for x in sublayers(block) if isinstance(x, Projection)]


def _check_equal(model: keras.Model, wanted: object, found: object) -> None:
    """Raises a ValueError if scaling has changed the outputs beyond rounding."""
    for x, y in zip(keras.tree.flatten(wanted), keras.tree.flatten(found), strict=True):
        x, y = (ops.convert_to_numpy(z).astype("float32") for z in (x, y))
        error = float(np.sqrt(np.mean((y - x) ** 2))) / max(float(np.sqrt(np.mean(x**2))), 1e-6)
        if not error <= _EXACT:
            raise ValueError(
                f"expected {model.name} to return the same outputs with scaled weights, "
                f"got a relative error of {error:.1g}: export it as it is"
            )
