"""Loads and saves folders of Hugging Face transformers."""

import contextlib
import importlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm import atomic_files
from keras_tfm.arguments import check_integer
from keras_tfm.checkpoints.config import Arguments, Config
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.image_settings import FILE as PREPROCESSOR
from keras_tfm.checkpoints.image_settings import PROCESSOR, image_fields, picture_text_fields
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.peft import PeftTensors, check_no_adapters
from keras_tfm.checkpoints.quantized.folder import QuantizedFolder
from keras_tfm.checkpoints.quantized.gguf import GgufTensors, open_gguf
from keras_tfm.checkpoints.quantized.gguf_file import is_gguf
from keras_tfm.checkpoints.quantized.grids import keep_grids
from keras_tfm.checkpoints.quantized.methods import quantized_tensors
from keras_tfm.checkpoints.round_trip import check_equal
from keras_tfm.checkpoints.rows import Entry, as_dtype
from keras_tfm.checkpoints.tensors import INDEX, SINGLE, TensorKind, Tensors, write_tensors
from keras_tfm.generation.tokenizers.keras_hub import keras_hub_hint
from keras_tfm.host_memory import check_memory
from keras_tfm.keras_internals import initialize, is_initialized, read_when_used, sublayers
from keras_tfm.layers import TokenEmbedding
from keras_tfm.layers.embeddings.token_mask import TokenMask
from keras_tfm.model_types import MODEL_TYPES, ModelType, names_of
from keras_tfm.models import Model, resize_vocabulary, with_dtype
from keras_tfm.models.identity import is_functional
from keras_tfm.models.quantization.state import is_quantized, quantization_of, set_quantization
from keras_tfm.models.resize import position_tables, resize_positions, warn_of_new_rows
from keras_tfm.models.with_dtype import dequantize
from keras_tfm.models.without_storage import (
    allocate,
    has_many_weights,
    is_large,
    without_storage,
)
from keras_tfm.runtime.media.image_processor import ImageProcessor


def _family(model_type: ModelType) -> Family:
    module, _, name = model_type.table.partition(":")
    path = f"keras_tfm.checkpoints.{module}"
    try:
        family = getattr(importlib.import_module(path), name, None)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # a package that the table imports
        family = None
    if not isinstance(family, Family) or family.model_type != model_type.name:
        raise ValueError(
            f'the model type {model_type.name!r} must have a table, "module:NAME" of a Family of '
            f"that type in keras_tfm.checkpoints, got {model_type.table!r}"
        )
    return family


FAMILIES: dict[str, Family] = {x.name: _family(x) for x in MODEL_TYPES}

# The parts of models of several modalities, also of those that transformers does not have. The ids
# of their tokens, such as `image_token_id`, change nothing in a model of texts.
_OTHER_PARTS = (
    *(f"{x}_config" for x in ("vision", "audio", "image", "video", "speech", "text", "projector")),
    *("vision_tower", "mm_vision_tower", "audio_tower"),
)
# Other names of a model type, with the prefix of its classes and that of the classes here. "new" is
# GTE in the code of its authors; an encoder of texts of SigLIP 2 computes what SigLIP's does.
_OTHER_NAMES = {
    "new": ("gte", "New", "Gte"),
    "siglip2_text_model": ("siglip_text_model", "Siglip2Text", "SiglipText"),
}
_SIZES = ("vocabulary_size", "target_vocabulary_size", "max_length")


def load_huggingface(
    folder: str | Path,
    architecture: str | None = None,
    *,
    lazy: bool | None = False,
    peft: str | Path | None = None,
    **options: Any,
) -> keras.Model:
    """Loads a folder saved by `transformers` as a Keras model.

    It reads `config.json` and `model.safetensors`, or the files listed in
    `model.safetensors.index.json`; without these, `pytorch_model.bin`, whose pickles are read
    without running what is in them, or `tf_model.h5` of the TensorFlow classes of `transformers` 4,
    or their indices and files. If they exist, it also reads `generation_config.json` for BART, its
    relatives, Whisper and TrOCR, `preprocessor_config.json`, the mean and standard deviation of
    pixels for models of images, and `vocab.json`, the labels of `Wav2Vec2ForCTC`. It reads no other
    files and does not use the network.

    Or it reads a GGUF file of Llama, Mistral, Qwen2, Qwen3 or Gemma 1 to 3. Matrices in Q4_0 or
    Q4_1, and those of a folder that GPTQ, AWQ, compressed-tensors or torchao quantized to 4 or 8
    bits, keep their integers and scales: the model computes with them as one of
    `models.enable_quantization`, whose other matrices are rounded as usual, and `export_tflite`
    with "int4", or "int8", stores exactly these. A warning names the matrices that are rounded.

    Weights are read one at a time, and converted to the dtype of the model's variables: a folder in
    half precision becomes float32, or with `dtype="bfloat16"` stays as small as its files.

    Args:
        folder: str or Path, a GGUF file, or the folder of a model of one of the types in
            `keras_tfm.model_types.MODEL_TYPES`; docs/api/models.md has a table of them.
        architecture: str, the class in `transformers`, such as "BertForMaskedLM"; the table has
            those of each model type. Default: the one in `config.json`, or the one that matches
            the tensors. Tensors of other classes' heads are ignored. Embeddings of CLIP's classes
            "WithProjection" have length 1 here.
        lazy: bool, whether large weights stay in the files, and are read each time they are used.
            Such a model takes little memory; it can be called and exported. `compile`,
            `set_weights` and generation load its weights. None: if the model has more than 100
            million weights.
        peft: str or Path, the folder of LoRA adapters that PEFT saved for this model. They are
            merged into its weights, and the tensors that it saved whole take the place of those of
            the model. With a quantized folder, the model has floats.
        **options: arguments of the family's builder in `keras_tfm.models` that override the
            configuration, such as `dropout=0.0`, `segments=False` or `dtype="mixed_bfloat16"`. A
            larger `vocabulary_size` adds ids, as `models.resize_vocabulary` does, of which one may
            be the `pad_id`; a larger `max_length` adds rows of zeros to a table of positions, a
            smaller one removes its last rows. A warning tells of new rows.

    Returns:
        The model of that builder, with the head of the architecture. Its outputs are those of the
        heads in `keras_tfm.models`, not the tuples and objects of `transformers`.

    Raises:
        FileNotFoundError: the folder or GGUF file does not exist, or a file is missing.
        MemoryError: the weights need more memory than the machine, its container or the process can
            have. If they only need more than is free now, a warning says so.
        ValueError: a file is damaged, or changes while it is read; the model type or architecture
            is not supported, or the configuration has an unsupported value (the error names the
            field); tensors are quantized in an unsupported way, or adapters of another kind; or the
            tensors do not match the model: one error lists those that are missing, unexpected, or
            of another shape or dtype.

    Example:

    >>> import tempfile
    >>> from keras_tfm import checkpoints, models
    >>> model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints.save_huggingface(model, folder)
    ...     checkpoints.load_huggingface(folder).count_params() == model.count_params()
    True
    """
    checkpoint = open_huggingface(folder, architecture, peft, **options)
    model = checkpoint.load(lazy)
    model = _resize(model, str(folder), checkpoint.stored, checkpoint.sizes)
    if checkpoint.rebuild is not None:
        resized, model = model, checkpoint.rebuild()
        for new, old in zip(model.weights, resized.weights, strict=True):
            new.assign(old)
    return model


# Model types of texts and images whose language model can be loaded alone: its type and class.
_TEXT_PARTS = {
    "gemma3": {"gemma3_text": "Gemma3ForCausalLM"},
    "gemma4": {"gemma4_text": "Gemma4ForCausalLM"},
    "mistral3": {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"},
    "qwen3_5": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder, and its model, whose weights have no values before they are read.

    Attributes:
        folder: Path of the folder.
        model: the model, in the folder's sizes.
        named: the tensors in the files.
        entries: an `Entry` for every weight.
        stored: arguments of the builder that the folder determines.
        sizes: requested sizes of tables, which are those of the folder or not.
        rebuild: function that builds the model with ids of new tokens; None: there are none.
        quantized: the tensors, if some are quantized; None: all are floats.
    """

    folder: Path
    model: Model
    named: Named
    entries: list[Entry]
    stored: Arguments
    sizes: dict[str, int]
    rebuild: Callable[[], Model] | None
    quantized: QuantizedFolder | GgufTensors | None = None

    def load(self, lazy: bool | None = False) -> Model:
        """Gives the weights the values in the files, one at a time.

        Args:
            lazy: as in `load_huggingface`.

        Raises:
            MemoryError: the weights need more memory than the machine has.
            ValueError: a file is changed meanwhile, or with `lazy` before a weight is used.
        """
        if lazy is None:
            lazy = has_many_weights(self.model)
        if lazy:
            small, large = list[Entry](), list[Entry]()
            for entry in self.entries:
                (large if is_large(entry.weight) else small).append(entry)
            load_entries(self.named, small)
            for entry in large:
                read_when_used(entry.weight, partial(_read_unchanged, self.named, entry))
            allocate(self.model, [entry.weight for entry in large])
            self._keep_grids()
            return self.model
        if "cpu" in str(ops.zeros(()).device).lower():
            weights = [(x.shape, as_dtype(x.dtype)) for x in self.model.weights]
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in weights)
            check_memory(f"loading {self.folder}", size)
        load_entries(self.named, self.entries)
        allocate(self.model)  # seeds of dropout
        self._keep_grids()
        return self.model

    def _keep_grids(self) -> None:
        if self.quantized is not None:
            keep_grids(self.model, self.named, self.entries, self.quantized, str(self.folder))


def read_config(folder: Path) -> Config:
    """The configuration of a folder or GGUF file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or the folder is of adapters.
    """
    if not (folder / "config.json").is_file():
        check_no_adapters(folder)
    return open_gguf(folder)[0] if is_gguf(folder) else _name_model_type(Config(folder))


def _name_model_type(config: Config, architecture: str | None = None) -> Config:
    """The configuration with a model type of `FAMILIES`, where another field tells it.

    Args:
        config: the configuration.
        architecture: str, the class that the caller gives.
    """
    fields, classes = config.fields, config.fields.get("architectures")
    classes = [x for x in classes if isinstance(x, str)] if isinstance(classes, list) else []
    found = fields.get("model_type")
    if isinstance(found, str) and found in _OTHER_NAMES:
        name, old, new = _OTHER_NAMES[found]
        classes = [new + x.removeprefix(old) if x.startswith(old) else x for x in classes]
        more = {"architectures": classes} if classes else {}
        return Config.of(config.file, {**fields, "model_type": name, **more})
    if found is None:
        wanted = {*classes, *([architecture] if architecture else [])}
        types = [name for name, x in FAMILIES.items() if wanted & x.architectures.keys()]
        if len(types) == 1:
            return Config.of(config.file, {**fields, "model_type": types[0]})
    return config


def open_huggingface(
    folder: str | Path,
    architecture: str | None = None,
    peft: str | Path | None = None,
    **options: Any,
) -> Checkpoint:
    """Builds the model of a folder without reading its weights.

    Args, Raises:
        as in `load_huggingface`.
    """
    folder = Path(folder)
    if peft is None:
        check_no_adapters(folder)
    tensors: Tensors | QuantizedFolder | GgufTensors | PeftTensors | None = None
    if is_gguf(folder):
        config, tensors = open_gguf(folder)
    else:
        config = _name_model_type(Config(folder), architecture)
    model_type = config.text("model_type", None)
    if str(config.fields.get("module")).startswith("keras_hub."):
        raise ValueError(
            f"{folder} is a preset of KerasHub: load it with checkpoints.from_keras_hub, see "
            "docs/from-kerashub.md"
        )
    if model_type in _TEXT_PARTS and (
        model_type not in FAMILIES or architecture in _TEXT_PARTS[model_type].values()
    ):
        config, model_type = _text_part(config, model_type, architecture)
    if model_type not in FAMILIES:
        known = f"one of {list(FAMILIES)}"
        known += ", or follow from architectures" if model_type is None else ""
        config.refuse("model_type", model_type, known)
    family = FAMILIES[model_type]
    if model_type not in names_of("images and texts"):
        for key in _OTHER_PARTS:  # of a model that reads more than this one
            if config.fields.get(key) is not None:
                expected = f"null, as {model_type} is not a model of several modalities"
                config.refuse(key, config.fields[key], expected)
    config.rename(family.aliases)
    if not family.has_own_blocks:
        config.only(per_layer_config={})
    if tensors is None:
        tensors = quantized_tensors(config, Tensors(folder))
    tensors.unstack(family.names.stacked)
    if peft is not None:
        tensors = PeftTensors(tensors, Path(peft), family.names)
        config = _with_sizes(config, tensors.sizes())
    named = Named(tensors, family.names)
    name = architecture or _architecture(config, family, named)
    if name is None or name not in family.architectures:
        raise ValueError(
            f"{folder}: architecture must be one of {list(family.architectures)}, "
            f"got {name!r}: give one as architecture="
        )
    make = family.architectures[name].make
    stored = family.arguments(config, named)
    # Sizes of tables in the files: a table of another size is made of the loaded one.
    sizes = {key: options[key] for key in _SIZES if key in options and stored.get(key) is not None}
    added = _added_ids(options, stored, sizes)
    given = {**stored, **options}
    own = {key: x for key, x in options.items() if key not in (*sizes, *added)}
    arguments = {**stored, **own}

    def build(arguments: Arguments) -> keras.Model:
        return make(family.builder(**arguments), config)

    with without_storage():  # a configuration may describe a model of any size
        model = build(arguments)
        named.take_constants(family.constants(model))
        named.leave_out(family.unused(model))
        entries, hint = family.entries(model), _hint(family, named, name)
        ignored = family.leave_out_other_heads(named, name, model, entries)
        if isinstance(tensors, PeftTensors):
            read = {x for entry in entries for x in entry.tensors}
            output = model.head is not None and "language" in model.head.kind
            tensors.check_tables(name, read, output)
            if architecture is None:
                tensors.check_heads(name, read)
        named.check(name, entries, hint)
        if ignored and hint and architecture is None:
            warnings.warn(f"{folder}: {name} does not read all tensors{hint}", stacklevel=3)
        if added:
            build(given)
        if "max_length" in sizes and not (family.constants(model) or _has_positions(model)):
            arguments["max_length"] = sizes.pop("max_length")  # which the builder only stores
            model = build(arguments)
    rebuild = partial(build, given) if added else None
    quantized = tensors if isinstance(tensors, QuantizedFolder | GgufTensors) else None
    others = [key for key, x in sizes.items() if x != stored[key]]
    if quantized is not None and others:
        raise ValueError(
            f"{folder}: {others[0]} must be that of the quantized checkpoint, "
            f"{stored[others[0]]}, got {sizes[others[0]]}"
        )
    entries = family.entries(model)
    return Checkpoint(folder, model, named, entries, stored, sizes, rebuild, quantized)


def _with_sizes(config: Config, sizes: dict[str, int]) -> Config:
    """The configuration with the sizes of the tensors that adapters replace."""
    fields = {**config.fields, **sizes}
    if sizes.get("num_labels", config.num_labels) != config.num_labels:
        fields["id2label"] = None
    return Config.of(config.file, fields)


def _text_part(config: Config, model_type: str, architecture: str | None) -> tuple[Config, str]:
    """The configuration of the language model in a folder that also reads images, and its type."""
    text, types = config.part("text_config"), _TEXT_PARTS[model_type]
    text_type = text.text("model_type", next(iter(types)))
    if text_type not in types:
        config.refuse("model_type of text_config", text_type, f"one of {list(types)}")
    if architecture != types[text_type]:
        expected = f'"{text_type}": vision_config is of images, which are not supported; '
        config.refuse(
            "model_type",
            model_type,
            f"{expected}architecture={types[text_type]!r} loads the language model",
        )
    fields = {**text.fields, "model_type": text_type}
    # transformers reads these two beside the part. An output of its own is never left out.
    tied = text.flag("tie_word_embeddings", True)
    fields["tie_word_embeddings"] = config.flag("tie_word_embeddings", tied)
    if config.fields.get("quantization_config") is not None:
        fields["quantization_config"] = config.fields["quantization_config"]
    return Config.of(config.file, fields), text_type


def _added_ids(options: Arguments, stored: Arguments, sizes: dict[str, int]) -> list[str]:
    """The options that are ids of added tokens, such as `pad_id`, which no table has yet."""
    old = min((stored[key] for key in sizes if key != "max_length"), default=None)
    if old is None:
        return []
    ids = {key: x for key, x in options.items() if key.endswith("_id")}
    return [key for key, x in ids.items() if isinstance(x, int) and x >= old]


def _has_positions(model: Model) -> bool:
    """Whether weights depend on the number of positions."""
    return bool(position_tables(model)) or model.arguments.get("max_distance", 0) is None


def _resize(model: Model, folder: str, stored: Arguments, sizes: dict[str, int]) -> keras.Model:
    """The model with other sizes than the folder's."""
    sizes = {key: x for key, x in sizes.items() if x != stored[key]}
    vocabularies = [key for key in sizes if key != "max_length"]
    for key in vocabularies:
        check_integer(key, sizes[key])
        if sizes[key] < stored[key]:
            raise ValueError(
                f"{folder}: {key} must be at least the folder's {stored[key]}, got {sizes[key]}; "
                "models.resize_vocabulary removes ids"
            )
    if vocabularies:
        size = {**stored, **sizes}["vocabulary_size"]
        model = resize_vocabulary(model, size, sizes.get("target_vocabulary_size"))
    if "max_length" in sizes:
        model = resize_positions(model, sizes["max_length"])
    warn_of_new_rows(folder, stored, sizes)
    return model


def _read_unchanged(named: Named, entry: Entry) -> np.ndarray:
    value = named.read(entry)
    named.tensors.check_unchanged()
    return value


def load_entries(named: Named, entries: list[Entry]) -> None:
    """Gives the weights, which may have no storage yet, the values in the files, one at a time.

    Raises:
        ValueError: a file changes meanwhile.
    """
    # The largest first: while it is converted, it is in memory twice.
    for entry in sorted(entries, key=lambda entry: -math.prod(entry.weight.shape)):
        value = named.read(entry)
        if is_initialized(entry.weight):
            entry.weight.assign(value)
        else:
            initialize(entry.weight, value)
    named.tensors.check_unchanged()


def save_entries(entries: list[Entry], prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The names and values of all tensors, one weight in memory at a time.

    Args:
        entries: an `Entry` for every weight.
        prefix: str, added to names outside the head.
    """
    for entry in entries:
        value = ops.convert_to_numpy(entry.weight)
        if value.dtype != np.float32:
            raise ValueError(f"expected weights in float32, got {entry.weight.path} {value.dtype}")
        for name, part in entry.save(value).items():
            yield _name_of(name, entry, prefix), part


def _name_of(name: str, entry: Entry, prefix: str) -> str:
    return name if entry.head else prefix + name


def _architecture(config: Config, family: Family, named: Named) -> str | None:
    names = config.fields.get("architectures")
    if names is None:
        return family.architecture_in(named)
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        config.refuse("architectures", names, "one name, unless architecture= gives it")
    return str(names[0]).removeprefix("TF")


def _hint(family: Family, named: Named, name: str) -> str:
    """Names the architecture that matches the files, if it is not the requested one."""
    fitting = family.architecture_in(named)
    if fitting is None or fitting == name:
        return ""
    return f"; they match architecture={fitting!r}"


def save_huggingface(
    model: keras.Model,
    folder: str | Path,
    end_id: int | None = None,
    image_processor: ImageProcessor | None = None,
) -> None:
    """Saves a model as `config.json` and `model.safetensors`, which `transformers` can load.

    For a model of images or audio also `preprocessor_config.json`, of SmolVLM, Idefics3 and Gemma 3
    `processor_config.json`: the number of tokens of an image, and for a model with the labels of
    `ctc_classifier`, of which one is a space, a `Wav2Vec2CTCTokenizer`: `vocab.json` and
    `tokenizer_config.json`.

    The files are first written to a temporary folder `.keras_tfm-*` in `folder`, loaded and
    compared with the model. If the process is killed, the next save to `folder` removes it.

    Args:
        model: `keras.Model` made by a builder of `keras_tfm.models` for one of these families, with
            or without a head of `keras_tfm.models`. Weights in half precision become float32, and
            LoRA adapters are merged. Rounded weights, of `models.enable_quantization`, of a
            quantized checkpoint or of Keras's `quantize`, are saved as floats of the same values.
        folder: str or Path. Created if it does not exist; existing files of these names are
            replaced.
        end_id: int, the token at which `generate` of `transformers` stops. Default: the model's
            argument `end_id`, 1 for T5 and 50256 for a GPT-2 with GPT-2's vocabulary; otherwise
            none is written.
        image_processor: `runtime.ImageProcessor`, how pictures are resized for a model of images,
            written to `preprocessor_config.json` next to the mean and standard deviation of the
            model. Default: the file says nothing about it.

    Raises:
        ValueError: the model is of another kind, has a weight or an option that `transformers` does
            not support, or gives other outputs after loading.
        FileExistsError: the folder holds a checkpoint in several files.

    After an error the folder is unchanged.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tfm import checkpoints, models
    >>> bert = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints.save_huggingface(models.token_classifier(bert, 3), folder)
    ...     sorted(path.name for path in pathlib.Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        raise FileExistsError(f"{folder} holds a checkpoint in several files: use another folder")
    family, model = model_family(model)
    model = float32_model(model)
    _check_end_id(model, end_id)
    if image_processor is not None and "image_size" not in model.arguments:
        raise ValueError(f"image_processor is for models of images, got {model.name!r}")
    architecture = family.architecture_of(model)
    fields = family.fields(model, architecture)
    entries = family.entries(model)
    prefix = family.prefix_of(architecture)
    fixed = family.constants(model) | family.unused(model)
    fixed = {prefix + name: value for name, value in fixed.items()}
    kinds = {name: TensorKind(value.dtype, value.shape) for name, value in fixed.items()}
    for entry in entries:
        for name, shape in entry.shapes.items():
            kinds[_name_of(name, entry, prefix)] = TensorKind(np.dtype("float32"), shape)
    config = {"architectures": [architecture], "model_type": family.model_type, **fields}
    config["dtype"] = "float32"
    if end_id is not None:
        config["eos_token_id"] = end_id
    with new_files(folder) as new:
        text = json.dumps(config, indent=2, sort_keys=True)
        (new / "config.json").write_text(text + "\n", encoding="utf-8")
        arrays = itertools.chain(fixed.items(), save_entries(entries, prefix))
        write_tensors(new / SINGLE, kinds, arrays)
        names, rules = [SINGLE, "config.json"], family.preprocessor(model)
        if "image_size" in model.arguments:
            rules = image_fields(model, image_processor)
        others = {PREPROCESSOR: rules, PROCESSOR: picture_text_fields(model)}
        for name, content in {**others, **family.tokenizer(model)}.items():
            if content is not None:
                text = json.dumps(content, indent=2, sort_keys=True)
                (new / name).write_text(text + "\n", encoding="utf-8")
                names.append(name)
        given = model.arguments
        options = {name: given[name] for name in family.not_saved if name in given}
        again = load_huggingface(new, **options)
        padding = getattr(model.embedding, "padding", None)
        if padding == "after_end":  # by the tokenizer, see `_padding` of sentence_transformers.py
            set_padding(again, padding)
        check_equal(model, again)
        for name in names:
            atomic_files.flush(new / name)
        for name in names:
            atomic_files.replace(new / name, folder / name)


def set_padding(model: Model, padding: str) -> None:
    """Sets where the padding id is padding, see `layers.TokenEmbedding`."""
    for layer in model.layers:
        if isinstance(layer, TokenEmbedding | TokenMask):
            layer.padding = padding


def float32_model(model: keras.Model) -> keras.Model:
    """The model with weights in float32: rounded ones as floats, with LoRA adapters merged."""
    if is_quantized(model):
        model = dequantize(model)
    layers, is_rounded = sublayers(model), quantization_of(model) is not None
    is_adapted = any(getattr(x, "lora_enabled", False) for x in layers)
    if is_rounded or is_adapted or any(x.compute_dtype != "float32" for x in layers):
        model = with_dtype(model, "float32")
    known = quantization_of(model)
    if known is not None:
        for variable, grid in known.weights:
            variable.assign(grid.straight_through(variable))
        set_quantization(model, None)
    return model


@contextmanager
def new_files(folder: Path) -> Iterator[Path]:
    """A temporary folder in a folder, which is removed after an error if it was created here."""
    exists = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_files.temporary_folder(folder) as new:
            yield new
    except BaseException:
        if not exists:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _check_end_id(model: Model, end_id: int | None) -> None:
    check_integer("end_id", end_id, minimum=0, optional=True)
    if end_id is None:
        return
    vocabulary_size = model.arguments.get("vocabulary_size")
    if vocabulary_size is None:
        raise ValueError(f"end_id is for models of ids, got {model.name!r}")
    if end_id >= vocabulary_size:
        raise ValueError(
            f"end_id must be in the vocabulary, 0..{vocabulary_size - 1}, got {end_id}"
        )


def model_family(model: keras.Model) -> tuple[Family, Model]:
    """The family of a model, and the model as a `keras_tfm.Model`."""
    if not isinstance(model, Model) and is_functional(model):
        model = Model(model.input, model.output, name=model.name)
    name = getattr(model, "family", None)
    for family in FAMILIES.values():
        if family.builder.__name__ == name and family.is_of(model):
            return family, model
    names = dict.fromkeys(family.builder.__name__ for family in FAMILIES.values())
    if name in names:
        types = [x.model_type for x in FAMILIES.values() if x.builder.__name__ == name]
        raise ValueError(
            f"{model.name}: no checkpoint of transformers has these arguments of models.{name} "
            f"together; its model types are {', '.join(types)}"
        )
    raise ValueError(
        f"expected a model of models.{', models.'.join(names)}, "
        f"got {model.name!r}, "
        + ("composed by hand" if name is None else f"of models.{name}")
        + keras_hub_hint(model)
    )
