"""Copies a model with another vocabulary or another number of positions."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import PositionEmbedding, TokenEmbedding
from keras_tfm.layers.embeddings.pad_tokens import PadTokens
from keras_tfm.layers.types import Config
from keras_tfm.models.identity import Marker, identity_of
from keras_tfm.models.model import Model
from keras_tfm.models.quantization.state import quantization_of, set_quantization
from keras_tfm.models.with_dtype import read_statistics, recreate

_TARGET = "target_vocabulary_size"
# Their ids are codes of pictures, or the start token or the first code is the last id: they cannot
# grow or be trimmed.
_FIXED = ("image_gpt", "dalle", "dvae")


def resize_vocabulary(
    model: keras.Model, vocabulary_size: int, target_vocabulary_size: int | None = None
) -> Model:
    """Copies a model with more or fewer token ids, as for tokens added to a tokenizer.

    The rows of old ids stay as they are, in the table of the embedding, in an output layer of its
    own and in an output bias. Rows of new ids are the mean of the old ones, so that a new token is
    at first about as likely as an average one; train them. Everything else is copied: family,
    arguments, head, LoRA adapters and the rounding of `enable_quantization`. To keep only the first
    ids, give a smaller number.

    Args:
        model: `keras_tfm.Model` of a builder of `keras_tfm.models` that has token ids, with or
            without a head. It is not changed.
        vocabulary_size: int, new number of token ids; of source ids, if the target has a table of
            its own.
        target_vocabulary_size: int, new number of target ids of a model in which the target has a
            table of its own (`models.marian`, `models.transformer`). Default: their number stays.

    Returns:
        The new model, not compiled.

    Raises:
        TypeError: a size is not an integer.
        ValueError: the model has no vocabulary that can be resized; a special token, such as
            `pad_id`, would be removed; the target has no table of its own; or a layer is quantized.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models import gpt, resize_vocabulary
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> larger = resize_vocabulary(model, 13)
    >>> ids = np.array([[3, 4, 5]])
    >>> larger(ids).shape, bool(np.allclose(larger(ids)[..., :11], model(ids), atol=1e-6))
    (TensorShape([1, 3, 13]), True)
    """
    check_integer("vocabulary_size", vocabulary_size)
    check_integer("target_vocabulary_size", target_vocabulary_size, optional=True)
    given = _arguments_of(model)
    apart = given.get(_TARGET) is not None
    if target_vocabulary_size is not None and not apart:
        raise ValueError(
            f"{model.name}: target_vocabulary_size must be None, as source and target share their "
            f"ids, got {target_vocabulary_size}"
        )
    sizes = {"vocabulary_size": vocabulary_size}
    if apart:
        sizes[_TARGET] = target_vocabulary_size or given[_TARGET]
    _check_ids(model, given, min(sizes.values()))

    def change(layer: keras.Layer, config: Config) -> Config:
        of_target = apart and layer.name != "source_embedding"
        size = sizes[_TARGET if of_target else "vocabulary_size"]
        return _with_size(layer, config, size)

    return _copy(model, sizes, change, lambda rows: rows.mean(0))


def select_ids(model: keras.Model, kept: Sequence[int]) -> Model:
    """Copies a model with some of its token ids, which become 0, 1, ... in this order.

    The special tokens among the model's arguments and the padding ids of its layers are renumbered.

    Args:
        model: as for `resize_vocabulary`, with one vocabulary.
        kept: ascending ids, the special tokens of `special_ids` included.

    Raises:
        ValueError: as `resize_vocabulary`; or a layer reads an id that is no argument of it.
    """
    given = _arguments_of(model)
    if given.get(_TARGET) is not None:
        raise ValueError(f"{model.name}: source and target must share their ids, got two tables")
    if "projection_dim" in given and given.get("end_id", 0) is None:
        raise ValueError(f"{model.name}: end_id must be an id, as it pools the largest otherwise")
    new = {old: i for i, old in enumerate(kept)}
    fields: Config = {"vocabulary_size": len(kept)}
    for name in special_ids(model):
        value = given[name]
        several = isinstance(value, list | tuple)
        fields[name] = [new[x] for x in value if x in new] if several else new[value]

    def change(layer: keras.Layer, config: Config) -> Config:
        changed = {**_with_size(layer, config, len(kept))}
        for name in ("mask_id", "end_id", "pad_id", "token_id"):
            if config.get(name) is not None:
                changed[name] = new.get(config[name], config[name])  # -1 is no id
        return changed

    return _copy(model, fields, change, lambda rows: rows.mean(0), kept)


def special_ids(model: keras.Model) -> dict[str, list[int]]:
    """The ids of special tokens among the model's arguments, by argument.

    Of lists of tokens that are never generated, an id need not be kept.
    """
    found = {}
    for name, value in _arguments_of(model).items():
        if name.endswith(("_id", "_ids")):
            ids = value if isinstance(value, list | tuple) else [value]
            ids = [x for x in ids if isinstance(x, int) and x >= 0]
            if ids:
                found[name] = ids
    return found


def _arguments_of(model: keras.Model) -> Mapping[str, Any]:
    """The builder's arguments of a model with a vocabulary of texts."""
    identity = identity_of(model)
    has_ids = any(isinstance(x, TokenEmbedding) for x in sublayers(model))
    if "vocabulary_size" not in identity.arguments or not has_ids or identity.family in _FIXED:
        raise ValueError(
            f"expected a model with a vocabulary of texts, got {model.name!r}, "
            + (f"of models.{identity.family}" if identity.family else "composed by hand")
        )
    return identity.arguments


def _with_size(layer: keras.Layer, config: Config, size: int) -> Config:
    """The configuration of a layer, with another number of ids if it has a row for each."""
    if isinstance(layer, TokenEmbedding | PadTokens):
        return {**config, "vocabulary_size": size}
    if isinstance(layer, keras.layers.Dense) and layer.name == "output":
        return {**config, "units": size}
    return config


def _check_ids(model: keras.Model, given: Mapping[str, Any], size: int) -> None:
    """Raises if a special token is not among the first ids."""
    for name, value in given.items():
        if name.endswith(("_id", "_ids")) and value is not None:
            ids = value if isinstance(value, list | tuple) else [value]
            if max(ids, default=0) >= size:
                raise ValueError(f"{model.name}: vocabulary_size must exceed {name}, {value}")
    if "projection_dim" in given and given.get("end_id", 0) is None:
        raise ValueError(
            f"{model.name}: expected a model with an end_id, as it pools the largest id otherwise"
        )


def position_tables(model: keras.Model) -> list[PositionEmbedding]:
    """The tables of a model's text positions, of which there are `max_length`."""
    identity = identity_of(model)
    size = identity.arguments.get("max_length")
    tables = [x for x in model.layers if isinstance(x, PositionEmbedding) and x.max_length == size]
    fixed = ("image_", "encoder_") if identity.family == "whisper" else ("image_",)
    return [x for x in tables if not x.name.startswith(fixed)]


def resize_positions(model: keras.Model, max_length: int) -> Model:
    """Copies a model with other positions: the first ones, and zeros for new ones.

    Args:
        model: a model of a builder that has the argument `max_length`.
        max_length: int, new number of positions.
    """
    check_integer("max_length", max_length)
    given = identity_of(model).arguments
    tables = {x.name for x in position_tables(model)}
    fields = {"max_length": max_length}
    if given.get("max_distance", 0) is None:  # DeBERTa's default
        fields["max_distance"] = given["max_length"]

    def change(layer: keras.Layer, config: Config) -> Config:
        if isinstance(layer, PadTokens):
            return {**config, "length": max_length}
        return {**config, "max_length": max_length} if layer.name in tables else config

    return _copy(model, fields, change, lambda rows: np.zeros_like(rows[0]))


def _copy(
    model: keras.Model,
    fields: Mapping[str, Any],
    change: Callable[[Any, Config], Config],
    new_row: Callable[[np.ndarray], np.ndarray],
    kept: Sequence[int] | None = None,
) -> Model:
    """The copy, with `fields` among the arguments; new rows are `new_row` of the old ones.

    Args:
        kept: indices of the rows of tables of another size. Default: the first ones.
    """
    quantized = [x.path for x in sublayers(model) if getattr(x, "quantization_mode", None)]
    if quantized:
        raise ValueError(f"{model.name}: quantized layers cannot be resized, got {quantized[0]}")
    old = identity_of(model).arguments

    def configure(layer: keras.Layer, config: Config) -> Config:
        if isinstance(layer, Marker):
            arguments = layer.origin.arguments
            new = {
                name: x
                for name, x in fields.items()
                if name in arguments and arguments[name] == old[name]
            }
            return {**config, "arguments": {**config["arguments"], **new}}
        return change(layer, config)

    plain, copy = recreate(model, configure, "with another size")
    for layer, other in zip(sublayers(plain), sublayers(copy), strict=True):
        # Adapters of layers inside a block are in no configuration.
        if getattr(layer, "lora_enabled", False) and not other.lora_enabled:
            other.enable_lora(layer.lora_rank, lora_alpha=layer.lora_alpha)
    names, others = ([x.path for x in one.weights] for one in (plain, copy))
    if names != others:
        raise ValueError(f"{model.name} cannot be recreated: expected {names}, got {others}")
    state = quantization_of(model)
    grids = {} if state is None else {id(x.variable): x.grid for x in state.weights}
    for new, weight in zip(copy.weights, plain.weights, strict=True):
        new.trainable = weight.trainable
        shape, wanted = tuple(weight.shape), tuple(new.shape)
        if shape == wanted:
            new.assign(ops.copy(weight))  # JAX gives arrays away: no two models share one
            continue
        (axis,) = (i for i, (a, b) in enumerate(zip(shape, wanted, strict=True)) if a != b)
        old_rows = np.arange(min(shape[axis], wanted[axis])) if kept is None else np.array(kept)
        rows = np.moveaxis(ops.convert_to_numpy(ops.cast(weight, "float32")), axis, 0)
        added = wanted[axis] - len(old_rows)
        new_rows = [new_row(rows)] * added
        rows = np.concatenate([rows[old_rows], new_rows]) if added else rows[old_rows]
        value = np.moveaxis(rows, 0, axis)
        new.assign(value)
        if id(weight) in grids:
            grids[id(weight)] = grids[id(weight)].with_rows(value, old_rows)
    read_statistics(copy)
    if state is not None:
        pairs = zip(copy.weights, plain.weights, strict=True)
        of_copy = {id(new): grids[id(old)] for new, old in pairs if id(old) in grids}
        set_quantization(copy, state.of_resized(copy, of_copy))
    return copy


def warn_of_new_rows(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Tells which rows of a loaded model are not in its files."""
    for key, values in (
        ("vocabulary_size", "have the mean of the others"),
        (_TARGET, "have the mean of the others"),
        ("max_length", "are zeros"),
    ):
        if key in new and new[key] > old[key]:
            warnings.warn(
                f"{name}: {key} is {new[key]} instead of {old[key]}: the new rows {values} until "
                "they are trained",
                stacklevel=4,
            )
