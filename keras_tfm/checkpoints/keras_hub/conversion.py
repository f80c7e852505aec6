"""Models of KerasHub become models of this library with the same weights, and back."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.keras_hub.comparison import check_equal
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.heads import add_head, final_activation
from keras_tfm.checkpoints.keras_hub.preprocessing import Preprocessing, read_preprocessing
from keras_tfm.checkpoints.keras_hub.source import Source, open_preset
from keras_tfm.checkpoints.keras_hub.variables import Variables
from keras_tfm.checkpoints.rows import Entry
from keras_tfm.generation.tokenizers.keras_hub import is_own_class
from keras_tfm.keras_internals import initialize, sublayers
from keras_tfm.models import Model, with_dtype
from keras_tfm.models import backbone as backbone_of
from keras_tfm.models.identity import recordable
from keras_tfm.models.quantization.state import is_quantized
from keras_tfm.models.with_dtype import dequantize
from keras_tfm.models.without_storage import allocate, without_storage


@dataclass(frozen=True)
class KerasHubImport:
    """What `from_keras_hub` returns.

    Attributes:
        model: `keras.Model` of a builder of `keras_tfm.models`, with the task's head.
        preprocessing: `Preprocessing`, what the task's preprocessor says: tokenizer, lengths,
            special ids, pictures. None: there is none, or it cannot be stored.
        notes: list of str, what differs from the model of KerasHub.
        preprocessing_error: str, why the preprocessor cannot be stored, as a note says, too; None
            if it can or there is none.
    """

    model: keras.Model
    preprocessing: Preprocessing | None
    notes: list[str] = field(default_factory=list)
    preprocessing_error: str | None = None


def from_keras_hub(
    model: keras.Model | str | Path, *, verify: bool = True, **options: Any
) -> KerasHubImport:
    """Makes a model of this library with the weights of a model of KerasHub.

    A task becomes the model with the same head: a `CausalLM` or `Seq2SeqLM` a language model, which
    `generate`, `export_tflite` and `export_litertlm` take; a `TextClassifier`, `MaskedLM`,
    `TextEmbedder` or `ImageClassifier` the model with that head of `keras_tfm.models`. A backbone
    becomes the builder's model: features, or of a language model the logits
    (`models.backbone(...)` removes the head).

    LoRA adapters are merged, kernels that Keras rounded are dequantised, and weights in half
    precision become float32; `notes` says so.

    Args:
        model: `keras.Model`, a task or backbone of `keras_hub.models`; or str or Path, the folder
            of a preset that `save_to_preset` wrote. It is not changed.
        verify: bool, compare the two on random inputs with padding: features and outputs within
            1e-5 of the largest value, and the greedy tokens of a language model.
        **options: arguments of the builder that override those of the backbone, such as
            `dropout=0.0`, `segments=False` for a BERT of single texts, or `long_texts=True` for a
            Phi-3 with LongRoPE, whose factors KerasHub chooses by the length of each text.

    Returns:
        A `KerasHubImport`: the model, its preprocessing, and notes.

    Raises:
        FileNotFoundError: the folder or its weights do not exist.
        ModuleNotFoundError: the folder needs KerasHub, which is not installed.
        TypeError: neither a model of KerasHub nor a folder.
        ValueError: a class or an option of the backbone is not supported (the error names it), a
            weight has no value, or the two differ (the error names the first block that does).

    Example:

    >>> import keras_hub
    >>> from keras_tfm import checkpoints
    >>> backbone = keras_hub.models.BertBackbone(
    ...     vocabulary_size=11, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=3)
    >>> model = checkpoints.from_keras_hub(classifier).model
    >>> model.family, model.head.kind, model.output.shape
    ('bert', 'sequence_classifier', (None, 3))
    """
    opened = open_preset(model) if isinstance(model, str | Path) else model
    source = Source.of(opened)
    variables = Variables(source.model)
    settings = source.settings
    with without_storage():
        made = source.family.make(settings, source.kind, options)
        made = add_head(made, source.task, source.kind)
    entries = source.family.entries(made)
    _check_complete(source, made, variables, entries)
    # The largest first: while it is converted, it is in memory twice.
    for entry in sorted(entries, key=lambda entry: -math.prod(entry.weight.shape)):
        initialize(entry.weight, entry.load(variables.value(name) for name in entry.tensors))
    allocate(made)  # seeds of dropout
    notes = [*variables.notes, *source.family.notes(made)]
    if not source.is_float32 and not variables.notes:
        notes.append(f"it computes in float32, not in {source.backbone.dtype_policy.name}")
    pools = source.kind is None and "pooled" in source.family.outputs
    if pools and not isinstance(made.output, dict):
        notes.append("the model has features alone, without KerasHub's pooled output")
    activation = final_activation(source.task, source.kind)
    if activation is not None:
        notes.append(f"the model returns logits, without the task's {activation.__name__}")
    if verify:
        compared = source if source.is_float32 else source.in_float32(variables)
        notes += check_equal(made, compared)
    preprocessing, reason = None, None
    if source.preprocessor is not None:
        try:
            preprocessing = read_preprocessing(source.preprocessor)
            notes += [*preprocessing.notes, *_notes_on_own_classes(source.preprocessor)]
        except (TypeError, ValueError) as error:  # of another class, or with other tokenizers
            reason = f"no preprocessing: {error}"
            notes.append(reason)
    return KerasHubImport(made, preprocessing, notes, reason)


def _notes_on_own_classes(preprocessor: keras.Layer) -> list[str]:
    """A note if the preprocessor or its tokenizer is not KerasHub's own."""
    parts = [preprocessor, getattr(preprocessor, "tokenizer", None)]
    own = [type(x).__name__ for x in parts if x is not None and not is_own_class(x)]
    return [
        f"{name} is not KerasHub's own: what it does was compared on a few texts, and only its "
        "tokenizer and its special tokens are stored"
        for name in own
    ]


def to_keras_hub(model: keras.Model, backbone: keras.Model, *, verify: bool = True) -> list[str]:
    """Gives a backbone or task of KerasHub the weights of a model of this library.

    Args:
        model: `keras.Model` of the family's builder, with or without a head, for instance one that
            `from_keras_hub` made and `fit` trained. LoRA adapters are merged.
        backbone: `keras.Model`, a backbone of `keras_hub.models` with the same arguments, or a
            task, which gets the weights of its head, too. It is changed.
        verify: bool, compare the two afterwards, as in `from_keras_hub`.

    Returns:
        The paths of the variables for which the model has no weights; they keep their values.

    Raises:
        TypeError: `backbone` is not a model of KerasHub.
        ValueError: the model is of another family or has other arguments, the backbone has adapters
            or rounded weights, or the two differ. The backbone is then as it was.

    Example:

    >>> import keras_hub
    >>> from keras_tfm import checkpoints, models
    >>> model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> backbone = keras_hub.models.GPT2Backbone(
    ...     vocabulary_size=11, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
    ...     max_sequence_length=7,
    ... )
    >>> checkpoints.to_keras_hub(model, backbone)
    []
    """
    source = Source.of(backbone)
    variables = Variables(source.model)
    if variables.notes:
        raise ValueError(
            f"{source.model.name} must have float32 weights without adapters, but "
            f"{variables.notes[0]} to read them"
        )
    family = source.family
    if getattr(model, "family", None) != family.builder.__name__:
        raise ValueError(
            f"a {family.backbone} needs a model of models.{family.builder.__name__}, got "
            f"{model.name!r} of {getattr(model, 'family', None)}"
        )
    made = dequantize(model) if is_quantized(model) else model
    layers = sublayers(made)
    if any(x.compute_dtype != "float32" or getattr(x, "lora_enabled", False) for x in layers):
        made = with_dtype(made, "float32")
    _check_arguments(made, source)
    values: dict[str, np.ndarray] = {}
    for entry in family.entries(made):
        parts = entry.transform.save(ops.convert_to_numpy(entry.weight))
        values |= dict(zip(entry.tensors, parts, strict=True))
    known = set(variables.paths)
    head = {name for name in values if name not in known}
    if head and source.kind is not None:
        raise ValueError(
            f"{source.model.name} has no place for {', '.join(sorted(head))} of {model.name!r}"
        )
    values = {name: x for name, x in values.items() if name in known}
    before = {name: variables.value(name).copy() for name in values}
    for name, value in values.items():
        shape = tuple(variables.variable(name).shape)
        if shape != value.shape:
            raise ValueError(f"{name} of {source.model.name} is {shape}, here {value.shape}")
    try:
        for name, value in values.items():
            variables.variable(name).assign(value)
        if verify:
            _check_back(made, source)
    except BaseException:
        for name, value in before.items():
            variables.variable(name).assign(value)
        raise
    return [x for x in variables.paths if x not in values and not _is_ignored(x, family)]


def _check_complete(
    source: Source, model: Model, variables: Variables, entries: list[Entry]
) -> None:
    """Raises unless the table has a place for each of KerasHub's weights, and none is missing."""
    known = set(variables.paths)
    missing = [name for entry in entries for name in entry.tensors if name not in known]
    patterns = [
        re.compile(re.escape(name).replace(r"\{i\}", r"\d+"))
        for row in source.family.table(model)
        for name in row.tensors
    ]
    surplus = [
        x
        for x in known
        if not _is_ignored(x, source.family) and not any(y.fullmatch(x) for y in patterns)
    ]
    if missing or surplus:
        what = f"lacks {missing[0]}" if missing else f"has {min(surplus)}, which has no place"
        raise ValueError(
            f"{type(source.model).__name__} {what}: it was changed after it was built, or is of "
            "another version of KerasHub"
        )


def _is_ignored(path: str, family: HubFamily) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in family.ignored)


# Arguments that do not change what a model computes, or that other checks see.
_FREE = ("dropout", "attention_dropout", "max_length", "segments", "pooler", "pad_id")


def _check_arguments(model: Model, source: Source) -> None:
    """Raises unless the model has the arguments of the backbone."""
    if not model.arguments.get("causal", True):
        raise ValueError(f"{source.backbone.name} has causal=True, and {model.name!r} False")
    for name, value in source.family.arguments(source.settings).items():
        given = model.arguments.get(name)
        if name.endswith("activation"):
            value, given = keras.activations.get(value), keras.activations.get(given)
        if name not in _FREE and recordable(value) != given:
            raise ValueError(
                f"{source.backbone.name} has {name}={value!r}, and {model.name!r} {given!r}"
            )


def _check_back(model: Model, source: Source) -> None:
    """Compares a model with the model of KerasHub that has its weights now."""
    if model.head is None:  # a task keeps its head
        source = Source(source.backbone, source.backbone, source.family, None)
    elif source.kind is None and model.head.kind not in ("language_model", "embedding"):
        model = backbone_of(model)
    check_equal(model, source)
