"""Models that an export takes besides Keras models, and what their files say about the export.

Tasks, backbones and presets of KerasHub, and folders of transformers or sentence-transformers,
become models of this library first. What the caller of an export leaves open is then theirs:
tokenizer, chat template, start and end tokens, lengths, rules for pictures. A strategy without
processors gets those of a folder's `generation_config.json`.

Example, with a model that is none of these:

>>> from keras_tfm.export import ExportArguments
>>> from keras_tfm.export.checkpoints import accept_checkpoints
>>> accept_checkpoints(ExportArguments)(lambda model, path: path)(None, "x.tflite")
'x.tflite'
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import keras

from keras_tfm.checkpoints.tokenizers.jinja_template import JinjaTemplate
from keras_tfm.export.member import image_processors
from keras_tfm.generation import Drafted, Greedy, Sample, Strategy, processors
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.tokenizers.keras_hub import is_of_keras_hub
from keras_tfm.layers import LongRoPEScaling
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.models.identity import identity_of
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.media.tile_processor import TileProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate

# Arguments of an export, of a builder, or fields of a configuration, by name.
Arguments = dict[str, Any]
# The most tokens of a chat or a continued text, of a generated target, and of a text that is read,
# unless the caller says otherwise: a folder's own limit may be 131,072.
CONVERSATION, TARGET, SOURCE = 1024, 128, 512
# Shorter lengths of texts and prompts: a short text need not be computed as a long one.
SHORT, PROMPT = (32, 128), 64
# Lengths of audio of a model that takes any, in seconds.
SECONDS = (4, 10, 30)
# Architectures of transformers, by their endings, that read pairs of texts.
_OF_PAIRS = ("ForSequenceClassification", "ForQuestionAnswering", "ForNextSentencePrediction")
_NO_TEMPLATE = (
    "no chat template, as KerasHub has none: checkpoints.load_chat_template reads the one of a "
    "Hugging Face folder, and runtime.ChatTemplate makes one"
)
# The file of sentence-transformers with the modules of a folder.
_MODULES = "modules.json"
# What describes a .litertlm file.
_OF_LITERTLM = ("tokenizer", "chat_template", "max_length", "start_id", "end_id")


class _HasNotes(Protocol):
    notes: list[str]


M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R", bound=_HasNotes)
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A model of this library, and where its settings for an export are.

    Attributes:
        model: `keras.Model`.
        source: str, what it was: "folder", "GGUF file", "preset" or "task".
        folder: Path, the folder of transformers or GGUF file; None otherwise.
        adapters: Path, the folder of PEFT's adapters, whose tokenizer and chat template come
            first, and whose end token ends a text, too.
        preprocessing: `checkpoints.Preprocessing` of KerasHub's preprocessor; None: there is none.
        preprocessing_error: str, why a preprocessor cannot be stored; None if it can.
        notes: list of str, what differs from the model of KerasHub, or from `config.json`.
    """

    model: keras.Model
    source: str
    folder: Path | None = None
    adapters: Path | None = None
    preprocessing: Any = None
    preprocessing_error: str | None = None
    notes: list[str] = field(default_factory=list)


def is_checkpoint(model: object) -> bool:
    """Whether `load_checkpoint` takes a model: a path, or a model of KerasHub."""
    return isinstance(model, str | Path) or (
        isinstance(model, keras.Model) and is_of_keras_hub(model)
    )


def load_checkpoint(
    model: keras.Model | str | Path,
    architecture: str | None = None,
    segments: bool | None = None,
    image_size: tuple[int, int] | None = None,
    lazy: bool | None = False,
    peft: str | Path | None = None,
) -> Checkpoint:
    """The model of a folder or of KerasHub.

    Args:
        model: `keras.Model`, a task or backbone of KerasHub. One of a family that this library
            lacks is returned as it is. Or str or Path, a folder saved by transformers or
            sentence-transformers, a GGUF file, or a preset of KerasHub.
        architecture: str, of a folder of transformers: the class; None: that of `config.json`, and
            for sentence-transformers its pooling.
        segments: bool, whether the model keeps the input of segments, if it can have one. None: of
            a folder of transformers only if its head may read pairs of texts.
        image_size: the height and width of the model's images; None: those of the folder's rule for
            pictures, or of `config.json` if it has no rule for pictures of one size.
        lazy, peft: as in `load_huggingface`.

    Raises:
        FileNotFoundError: the folder or one of its files does not exist.
        TypeError: a .keras file.
        ValueError: see `load_huggingface` and `from_keras_hub`.
    """
    # Tables of weights that an export of another model does not need.
    from keras_tfm import checkpoints
    from keras_tfm.checkpoints.huggingface import FAMILIES, open_huggingface, read_config
    from keras_tfm.checkpoints.keras_hub.source import is_preset
    from keras_tfm.checkpoints.quantized.gguf_file import is_gguf

    if isinstance(model, keras.Model) or is_preset(Path(model)):
        check_no_peft(model, peft)
        return _of_keras_hub(model, segments)
    folder = Path(model)
    if folder.suffix == ".keras" and not folder.is_dir():
        raise TypeError(
            "expected a functional keras.Model, or a folder of transformers or KerasHub, got "
            f"{str(model)!r}: keras_tfm.load_model loads a .keras file"
        )
    embedders = [x for x in (peft, folder) if x is not None and (Path(x) / _MODULES).is_file()]
    if embedders and architecture is None:
        loaded = checkpoints.load_sentence_transformer(folder, peft=peft)
        return Checkpoint(loaded, "folder", Path(embedders[0]))
    config = read_config(folder)
    family = FAMILIES.get(str(config.fields.get("model_type")))
    known = () if family is None else inspect.signature(family.builder).parameters
    options: Arguments = {}
    if segments is None:
        names = [architecture] if architecture else config.fields.get("architectures")
        segments = not isinstance(names, list) or any(str(x).endswith(_OF_PAIRS) for x in names)
    if not segments and "segments" in known:
        options["segments"] = False
    if image_size is not None and "image_size" in known:
        options["image_size"] = image_size
    opened, notes = open_huggingface(folder, architecture, peft, **options), list[str]()
    if image_size is None and "image_size" in known:
        file, size = _size_of_pictures(folder)
        own = opened.stored["image_size"]  # None: images of any size
        own = None if own is None else as_pair("image_size", own)
        if own is not None and size not in (None, own):
            notes.append(f"the model reads images of {size}, the size in {file}, instead of {own}")
            try:
                opened = open_huggingface(folder, architecture, peft, image_size=size, **options)
            except ValueError as error:
                raise ValueError(f"{error}; {_advice(folder)}") from error
    kind = "GGUF file" if is_gguf(folder) else "folder"
    adapters = None if peft is None else Path(peft)
    return Checkpoint(opened.load(lazy), kind, folder, adapters, notes=notes)


def check_no_peft(model: object, peft: str | Path | None) -> None:
    """Raises if adapters are given for something else than the folder of their base model."""
    if peft is not None:
        shown = repr(str(model)) if isinstance(model, str | Path) else type(model).__name__
        raise ValueError(
            "peft is for the folder of a base model, of transformers or sentence-transformers, "
            f"got peft={str(peft)!r} with {shown}"
        )


def _size_of_pictures(folder: Path) -> tuple[str, tuple[int, int] | None]:
    """The file with a folder's rule for pictures, and the size it gives them; None if it varies."""
    from keras_tfm.checkpoints.image_settings import load_image_processor, rule_file

    try:
        processor = load_image_processor(folder)
    except (FileNotFoundError, ValueError):  # `_take_images` says so, if the file needs a rule
        return "", None
    if isinstance(processor, TileProcessor):  # a model of tiles has the size of one
        return "", None
    return rule_file(folder).name, processor.size


def _advice(folder: Path) -> str:
    """The end of an error about a folder's rule for pictures."""
    from keras_tfm.checkpoints.image_settings import rule_file

    return f"the rule for pictures is that of {rule_file(folder)}: images= gives another one"


def size_of_images(images: object) -> tuple[int, int] | None:
    """The size of the caller's `images`, as given to an export; None: left open, or several."""
    found = images.values() if isinstance(images, Mapping) else [images]
    sizes = {x.size for x in found if isinstance(x, ImageProcessor)}
    return sizes.pop() if len(sizes) == 1 else None


def _of_keras_hub(model: keras.Model | str | Path, segments: bool | None) -> Checkpoint:
    from keras_tfm.checkpoints.keras_hub.conversion import from_keras_hub
    from keras_tfm.checkpoints.keras_hub.families import FAMILIES

    if isinstance(model, keras.Model):
        backbone = getattr(model, "backbone", model)
        if type(backbone).__name__ not in FAMILIES:
            return Checkpoint(model, "task")
    source = "task" if isinstance(model, keras.Model) else "preset"
    options: Arguments = {} if segments is None or segments else {"segments": False}
    found = from_keras_hub(model, **options)
    return Checkpoint(
        found.model,
        source,
        preprocessing=found.preprocessing,
        preprocessing_error=found.preprocessing_error,
        notes=list(found.notes),
    )


def keras_model(model: Any, images: object = None, peft: str | Path | None = None) -> Any:
    """The Keras model of a folder or of KerasHub; anything else as it is.

    Args:
        model: what an export takes.
        images: the rules for pictures of a file, whose size the model of a folder gets.
        peft: the adapters of an export.

    Raises:
        ValueError: adapters for a model that is no folder; or as `load_checkpoint`.
    """
    if not is_checkpoint(model):
        check_no_peft(model, peft)
        return model
    return load_checkpoint(model, image_size=size_of_images(images), lazy=None, peft=peft).model


def accept_checkpoints(
    options: type[object], is_litertlm: bool = False
) -> Callable[[Callable[Concatenate[M, P], R]], Callable[Concatenate[M | str | Path, P], R]]:
    """Decorator of an export, which then takes folders, and tasks and backbones of KerasHub.

    Args:
        options: the `TypedDict` of the export's further keyword arguments.
        is_litertlm: whether it writes a .litertlm file.
    """

    def decorate(
        function: Callable[Concatenate[M, P], R],
    ) -> Callable[Concatenate[M | str | Path, P], R]:
        names = list(inspect.signature(function).parameters)
        call: Any = function

        @functools.wraps(function)
        def export(model: M | str | Path, *args: P.args, **kwargs: P.kwargs) -> R:
            if not is_checkpoint(model):
                return function(model, *args, **kwargs)  # type: ignore[arg-type]
            assert isinstance(model, keras.Model | str | Path)
            given: Arguments = {**dict(zip(names[1:], args, strict=False)), **kwargs}
            size = size_of_images(given.get("images"))
            peft = given.pop("peft", None)
            checkpoint = load_checkpoint(model, image_size=size, lazy=None, peft=peft)
            taken = export_arguments(checkpoint, given, is_litertlm)
            given |= taken.arguments
            known = {*names, *options.__annotations__}
            report: R = call(checkpoint.model, **{k: x for k, x in given.items() if k in known})
            report.notes += checkpoint.notes
            if taken.said:
                report.notes.append(f"of the {checkpoint.source}: {taken.describe()}")
            alone = len(checkpoint.model.inputs) == 1
            if checkpoint.preprocessing is not None and alone and "end_id" in taken.arguments:
                report.notes += [_NO_TEMPLATE] if given.get("chat_template") is None else []
            return report

        return export

    return decorate


@dataclass
class Taken:
    """What an export takes from a checkpoint.

    Attributes:
        arguments: dict, arguments of the export by name. The `strategy` is the caller's with the
            folder's processors, or the folder's.
        said: list of what was taken or not, in order: an argument's name, its value and a remark,
            or "" and a sentence.

    >>> from keras_tfm.export.checkpoints import Taken
    >>> taken = Taken()
    >>> taken.take("max_length", 1024, " (of 131072)")
    >>> taken.describe(), taken.describe({"max_length": "--max-length"})
    ('max_length=1024 (of 131072)', '--max-length 1024 (of 131072)')
    """

    arguments: Arguments = field(default_factory=dict)
    said: list[tuple[str, Any, str]] = field(default_factory=list)

    def take(self, name: str, value: object, remark: str = "") -> None:
        """Takes an argument."""
        self.arguments[name] = value
        self.said.append((name, value, remark))

    def say(self, text: str) -> None:
        """Adds a sentence."""
        self.said.append(("", text, ""))

    def describe(self, options: Mapping[str, str] | None = None) -> str:
        """What was taken, in one line.

        Args:
            options: the command-line option of each argument. Default: arguments of Python.
        """
        texts = {"tokenizer": "its tokenizer", "chat_template": "its chat template"}
        texts["images"] = "its rule for pictures"
        parts = []
        for name, value, remark in self.said:
            if not name or name in texts:
                parts.append(texts.get(name, value))
            elif options is None:
                parts.append(f"{name}={value}{remark}")
            else:
                shown = ",".join(map(str, value)) if isinstance(value, list) else value
                parts.append(f"{options[name]} {shown}{remark}")
        return "; ".join(parts) or "nothing"


def export_arguments(checkpoint: Checkpoint, given: Arguments, is_litertlm: bool = False) -> Taken:
    """The arguments of an export that a checkpoint tells, where the caller leaves them open.

    Args:
        checkpoint: the checkpoint.
        given: dict, the arguments of the export by name; None, or missing: left open.
        is_litertlm: whether the export is a .litertlm file.

    Raises:
        ValueError: the preprocessor of KerasHub cannot be stored, or a tokenizer or a rule for
            pictures of the folder; max_length is more than LongRoPE's short factors are for.
    """
    given = {name: x for name, x in given.items() if x is not None}
    made = Taken()
    trained = quantization_of(checkpoint.model)
    if trained is not None and "quantization" not in given:
        made.take("quantization", trained.quantization)
    if checkpoint.folder is None:
        _take_preprocessing(made, checkpoint, given, is_litertlm)
    else:
        _take_folder(made, checkpoint, checkpoint.folder, given, is_litertlm)
    prompt = given.get("default_prompt", made.arguments.get("default_prompt"))
    if prompt and "prompt_length" not in {**given, **made.arguments} and not is_litertlm:
        made.arguments["prompt_length"] = len(prompt)
    _check_length(checkpoint, {**made.arguments, **given})
    return made


def _length_of_short_factors(model: keras.Model) -> int | None:
    """The most tokens of a model with LongRoPE's short factors; None for others."""
    own: Arguments = getattr(model, "arguments", None) or {}
    scaling = own.get("rope_scaling")
    if not isinstance(scaling, LongRoPEScaling) or own.get("long_texts"):
        return None
    return scaling.original_length


def _check_length(checkpoint: Checkpoint, arguments: Arguments) -> None:
    """Raises if texts are longer than LongRoPE's short factors are for, and says who has others."""
    longest, length = _length_of_short_factors(checkpoint.model), arguments.get("max_length")
    if longest is None or list(arguments.get("signatures") or []) == ["predict"]:
        return
    if isinstance(length, int) and length > longest:
        load = "from_keras_hub(..., long_texts=True).model"
        if checkpoint.folder is not None:
            load = "load_huggingface(..., long_texts=True)"
        raise ValueError(
            f"max_length must be at most {longest} with LongRoPE's short factors, got {length}: "
            f"checkpoints.{load} has the factors of longer texts"
        )


# What a preprocessor may tell, in the order in which it is said.
_OF_PREPROCESSORS = (
    "tokenizer", "images", "signatures", "source_length", "max_length", "prompt_length",
    "default_prompt", "start_id", "end_id",
)  # fmt: skip


def _take_preprocessing(
    made: Taken, checkpoint: Checkpoint, given: Arguments, is_litertlm: bool
) -> None:
    """What the preprocessor of a task or preset of KerasHub tells."""
    if checkpoint.preprocessing is None:
        error = checkpoint.preprocessing_error
        if error is not None and "tokenizer" not in given:
            raise ValueError(f"{error}; or give tokenizer=")
        if checkpoint.source == "preset":
            made.say("nothing, as it has no preprocessor")
        return
    model, found = checkpoint.model, Arguments()
    if _writes(model) and "signatures" not in given:
        found["signatures"] = _signatures(model, given)
    found |= checkpoint.preprocessing.export_arguments(model, {**given, **found})
    for name in _OF_PREPROCESSORS:
        if name in found and (not is_litertlm or name in _OF_LITERTLM):
            made.take(name, found[name])


def _take_folder(
    made: Taken, checkpoint: Checkpoint, folder: Path, given: Arguments, is_litertlm: bool
) -> None:
    """What the files of a folder of transformers or sentence-transformers tell."""
    model = checkpoint.model
    folders = [x for x in (checkpoint.adapters, folder) if x is not None]
    texts = _inputs_of_text(model)
    own: Arguments = getattr(model, "arguments", None) or {}
    writes = _writes(model)
    ids = _ids(folder, own, checkpoint.adapters) if writes else {}
    if writes and "signatures" not in given and not is_litertlm:
        made.take("signatures", _signatures(model, given))
    roles = made.arguments.get("signatures") or given.get("signatures") or []
    _take_tokenizers(made, folders, texts, given, writes)
    has_tokenizer = "tokenizer" in given or "tokenizer" in made.arguments
    if writes and "chat_template" not in given and len(texts) == 1 and has_tokenizer:
        _take_template(made, folders, model, is_litertlm)
    reads_placeholders = any(x.placeholder for x in interface_of(model).inputs.values())
    if "images" not in given and (reads_placeholders or not is_litertlm):
        _take_images(made, folder, model)
    if writes:
        if "end_id" not in given:
            _take_end(made, ids, model)
        _take_generation(made, ids, own, model, roles, given, is_litertlm)
        _take_strategy(made, folder, model, roles, given.get("strategy"), is_litertlm)
    if is_litertlm and writes and "start_id" not in given:
        _take_start(made, ids)
    of_sources = _with_open_length(model, writes)
    if "source_length" not in given and of_sources and not (is_litertlm and writes):
        lengths = _source_lengths(model, of_sources, _longest_text(folder, own))
        made.take("source_length", lengths)


def _writes(model: keras.Model) -> bool:
    """Whether a model generates texts."""
    head = getattr(model, "head", None)
    return head is not None and head.kind == "language_model"


def _inputs_of_text(model: keras.Model) -> list[str]:
    """The inputs of ids that a tokenizer writes: not the segments of BERT."""
    inputs = interface_of(model).inputs
    return [name for name, x in inputs.items() if x.takes_ids and name != "segments"]


def _signatures(model: keras.Model, given: Arguments) -> list[str]:
    """Those for chats and generated texts: a decoder's, or an encoder-decoder's."""
    if len(interface_of(model).inputs) == 1:
        return ["prefill", "decode"]
    return ["encode", "decode"] if given.get("accelerator") == "gpu" else ["generate"]


def _ids(folder: Path, own: Arguments, adapters: Path | None) -> Arguments:
    """Special ids: those of `generation_config.json`, then of the model, then of `config.json`.

    The end token of the adapters' tokenizer is one, too.
    """
    from keras_tfm.checkpoints.generation_config import end_ids, with_decoder
    from keras_tfm.checkpoints.huggingface import read_config

    config = read_config(folder)
    fields = with_decoder(config.fields)
    ids = {key: fields.get(key) for key in ("bos_token_id", "eos_token_id")}
    for name in ("decoder_start_token_id", "forced_decoder_ids"):
        ids[name] = fields.get(name)
    for name, value in (("eos_token_id", "end_id"), ("decoder_start_token_id", "start_id")):
        if own.get(value) is not None:
            ids[name] = own[value]
    ids |= {k: v for k, v in (config.generation_fields or {}).items() if v is not None}
    return {**ids, "eos_token_id": end_ids(ids.get("eos_token_id"), folder, adapters)}


def _first(folders: Sequence[Path], load: Callable[[Path], T]) -> T:
    """What `load` finds in the first folder that has it; FileNotFoundError if none does."""
    for folder in folders[:-1]:
        with contextlib.suppress(FileNotFoundError):
            return load(folder)
    return load(folders[-1])


def _take_tokenizers(
    made: Taken, folders: Sequence[Path], texts: list[str], given: Arguments, writes: bool
) -> None:
    from keras_tfm import checkpoints

    if not texts or "tokenizer" in given:
        return
    try:
        tokenizer = _first(folders, checkpoints.load_tokenizer)
    except FileNotFoundError:
        made.say("no tokenizer, which it lacks: the file takes ids")
        return
    value: Arguments = dict.fromkeys(texts, tokenizer)
    if "target" in value and "detokenizer" not in given and (folders[-1] / "target.spm").is_file():
        value["target"] = checkpoints.load_tokenizer(folders[-1], target=True)
    made.take("tokenizer", tokenizer if len(texts) == 1 and writes else value)


def _take_template(
    made: Taken, folders: Sequence[Path], model: keras.Model, is_litertlm: bool
) -> None:
    try:
        template = _first(folders, lambda folder: read_template(folder, model, is_litertlm))
    except FileNotFoundError:
        return
    except ValueError as error:  # a file without it still continues texts
        made.say(f"no chat template: {error}")
        return
    made.take("chat_template", template)


def read_template(
    folder: Path, model: keras.Model, is_litertlm: bool
) -> ChatTemplate | JinjaTemplate:
    """The chat template of a folder for a file of `model`, as the texts around messages.

    LiteRT-LM runs Jinja, so its files take the program where texts cannot represent it, and where
    conversations may begin with a picture or without.

    Raises:
        FileNotFoundError: the folder is not there, or has no chat template.
        ValueError: texts cannot represent it, and a .litertlm file cannot have it, either.
    """
    from keras_tfm.checkpoints import load_chat_template, load_jinja_template

    image = any(x.placeholder for x in interface_of(model).inputs.values())
    if image and is_litertlm:
        return load_jinja_template(folder)
    try:
        return load_chat_template(folder, image)
    except ValueError:
        if not is_litertlm:
            raise
        program, message = load_jinja_template(folder), {"role": "user", "content": "Hi there"}
        if "Hi there" not in program.prompt([message]):
            raise
        return program


def _take_images(made: Taken, folder: Path, model: keras.Model) -> None:
    from keras_tfm.checkpoints.image_settings import FILE, load_image_processor

    if not any(x.is_pixels for x in interface_of(model).inputs.values()):
        return
    try:
        processor = load_image_processor(folder)
    except FileNotFoundError:
        made.say(f"no rule for pictures, as it has no {FILE}: images= gives one")
        return
    except ValueError as error:
        raise ValueError(f"{error}; images= gives another rule") from None
    if isinstance(processor, TileProcessor):  # of as many images as the model reads
        count = identity_of(model).arguments.get("num_images")
        processor = dataclasses.replace(processor, num_images=count)
    try:
        image_processors(model, processor)
    except ValueError as error:
        raise ValueError(f"{error}; {_advice(folder)}") from None
    made.take("images", processor)


def _take_end(made: Taken, ids: Arguments, model: keras.Model) -> None:
    value = ids.get("eos_token_id")
    if value is None:
        return
    several = value if isinstance(value, list) else [value]
    size = model.outputs[0].shape[-1]
    if not several or not all(type(x) is int and 0 <= x < size for x in several):
        made.say(f"no end token: its eos_token_id is {value}, and ids are below {size}")
        return
    made.take("end_id", several)


def _take_start(made: Taken, ids: Arguments) -> None:
    """The token that LiteRT-LM puts before the first text: the one of the tokenizer or template."""
    tokenizer, template = (made.arguments.get(x) for x in ("tokenizer", "chat_template"))
    if tokenizer is None:
        return
    first = tokenizer.encode("").ids[:1]
    ends = made.arguments.get("end_id") or []
    start = ids.get("bos_token_id")
    if first and first[0] not in ends:
        made.take("start_id", first[0])
    elif template is not None and type(start) is int:
        text = tokenizer.id_to_token(start)
        if text and any(x.startswith(text) for x in _beginnings(template)):
            made.take("start_id", start)


def _beginnings(template: Any) -> list[str]:
    """What conversations begin with, in a `ChatTemplate` or a `JinjaTemplate`."""
    if isinstance(template, ChatTemplate):
        return [template.first, *(template.system or ())[:1]]
    try:
        return [template.prompt([{"role": "user", "content": [{"type": "text", "text": "a"}]}])]
    except ValueError:  # the export says so
        return []


def _take_generation(
    made: Taken,
    ids: Arguments,
    own: Arguments,
    model: keras.Model,
    roles: list[str],
    given: Arguments,
    is_litertlm: bool,
) -> None:
    """Lengths of generated texts, start tokens and prompts."""
    inputs = interface_of(model).inputs
    alone = len(inputs) == 1
    limit = own.get("max_length")
    places = [x.placeholder for x in inputs.values() if x.placeholder is not None]
    prompt = 0
    if places and places[0].features:  # of pictures, with some tokens around each
        images = own.get("num_images") or 1
        prompt = places[0].features + 4 * images + 2 * PROMPT
    longest = min(CONVERSATION if alone else TARGET + prompt, limit or CONVERSATION)
    longest = min(longest, _length_of_short_factors(model) or longest)
    if "max_length" not in given:
        made.take("max_length", longest, f" (of {limit})" if limit and limit > longest else "")
    longest = given.get("max_length") or longest
    if is_litertlm:
        return
    steps = {"prefill", "generate"} & set(roles)
    prompted = "prompt_length" in given or "default_prompt" in given
    if any(x.audio is not None for x in inputs.values()) and "generate" in steps:
        _take_transcription(made, ids, given)
    elif prompt and steps and not prompted:
        made.take("prompt_length", min(prompt, longest - 1))
    elif alone and steps and not prompted:
        length = max(1, min(PROMPT, longest // 2))
        made.take("prompt_length", length)
    elif not alone and "start_id" not in given and not prompted:
        start, first = ids.get("decoder_start_token_id"), own.get("forced_first_id")
        if type(start) is int and first is not None and "generate" in steps:
            made.take("default_prompt", [start, first])
        elif (
            type(start) is int and "generate" in steps and getattr(model, "family", "") == "m2m_100"
        ):
            raise ValueError(
                "the folder translates into several languages: default_prompt must be the ids of "
                f"the start, {start}, and of the language, whose token the tokenizer has"
            )
        elif type(start) is int:
            made.take("start_id", start)


def _take_transcription(made: Taken, ids: Arguments, given: Arguments) -> None:
    """Whisper's first tokens."""
    start, languages = ids.get("decoder_start_token_id"), ids.get("lang_to_id")
    if "default_prompt" in given or "prompt_length" in given or start is None:
        return
    tasks = ids.get("task_to_id") or {}
    silent = [x for x in [ids.get("no_timestamps_token_id")] if x is not None]
    forced = _forced_ids(ids)
    if languages and not forced:
        english = [start, next(iter(languages.values())), *list(tasks.values())[:1], *silent]
        raise ValueError(
            "the folder knows several languages: default_prompt must be the ids of the start, "
            f"the language and the task, such as {','.join(map(str, english))}, of "
            f"{json.dumps(languages)[:200]}"
        )
    first = [start, *forced]
    made.take("default_prompt", first + [x for x in silent if x != first[-1]])


def _forced_ids(ids: Arguments) -> list[int]:
    """The ids after the start in an older folder of Whisper; none where it has a language."""
    pairs = ids.get("forced_decoder_ids")
    if ids.get("language") or ids.get("task") or not isinstance(pairs, list):
        return []
    forced = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    at = [pair[0] for pair in pairs if isinstance(pair, list)]
    known = at == [*range(1, len(pairs) + 1)] and all(type(x) is int for x in forced)
    return forced if known else []


def _take_strategy(
    made: Taken,
    folder: Path,
    model: keras.Model,
    roles: list[str],
    given: Strategy | None,
    is_litertlm: bool,
) -> None:
    """What a file has of the search or sampling in `generation_config.json`.

    A loop has its processors, also with another search of the caller's, as in `generate` of
    transformers; "decode" or a .litertlm file has its sampling. A strategy of the caller's that has
    processors is complete. The caller's `processors=[lambda logits, context: logits]` thus leaves
    the folder's out.
    """
    from keras_tfm.checkpoints import generation_config

    if given is not None and not isinstance(given, Strategy):  # the export says so
        return
    config = generation_config.read_generation_config(folder)
    if len(made.arguments.get("default_prompt", ())) > 1:  # the prompt has the forced token
        config.fields.pop("forced_bos_token_id", None)
    for name in generation_config.ENDINGS:
        value = config.fields.pop(name, None)
        if value is not None:
            made.say(f"not its {name} {value!r}")
    try:
        own: Strategy = generation_config.strategy_of(config)
    except ValueError as error:
        made.say(f"not its strategy: {error}")
        try:
            own = Greedy(generation_config.processors_of(config))
        except ValueError:
            own = Greedy(processors.transcription(model))
    rules, search = list(own.processors), _with_processors(own, ())
    takes_search = given is None and _is_sampled(search, roles, is_litertlm)
    chosen = given or (search if takes_search else Greedy())
    allowed: Any = ()  # the kinds of processors that the file runs
    if "generate" in roles:
        allowed = object
    elif _is_sampled(chosen, roles, is_litertlm) and not is_litertlm:
        allowed = processors.RepetitionPenalty
    kept = [x for x in rules if isinstance(x, allowed)]
    left_out = [x for x in rules if not isinstance(x, allowed)]
    if chosen.processors:
        if rules:
            made.say(f"not its processors {_names(rules)}, as strategy has processors")
        return
    if takes_search:
        made.say(f"its {_label(search)}" + (f" with {_names(kept)}" if kept else ""))
    elif kept:
        made.say(f"its processors {_names(kept)}")
    if left_out:
        made.say(f"not its processors {_names(left_out)}")
    if given is None and not takes_search and search != Greedy():
        made.say(f"not its {_label(search)}")
    if takes_search or kept:
        made.arguments["strategy"] = _with_processors(chosen, kept)


def _with_processors(strategy: Strategy, rules: Sequence[Any]) -> Strategy:
    """The strategy with these processors instead of its own."""
    if isinstance(strategy, Drafted):  # they are those of the strategy inside
        return dataclasses.replace(strategy, strategy=_with_processors(strategy.strategy, rules))
    changed = copy.copy(strategy)  # a class of the caller's need not be a dataclass
    object.__setattr__(changed, "processors", tuple(rules))
    return changed


def _is_sampled(strategy: Strategy, roles: list[str], is_litertlm: bool) -> bool:
    """Whether the runtime of the file draws tokens as a strategy does, instead of a loop."""
    if not isinstance(strategy, Sample) or "generate" in roles:
        return False
    known = strategy.min_p is None if is_litertlm else "decode" in roles
    return known and strategy.hypotheses == 1


def _names(rules: Sequence[Any]) -> str:
    return ", ".join(type(x).__name__ for x in rules)


def _label(strategy: Strategy) -> str:
    """A strategy with the arguments that are not the default."""
    own = dataclasses.fields(strategy)  # type: ignore[arg-type]
    given = {x.name: getattr(strategy, x.name) for x in own if x.name != "processors"}
    defaults = {x.name: x.default for x in own}
    parts = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
    return f"{type(strategy).__name__}({', '.join(parts)})"


def _longest_text(folder: Path, own: Arguments) -> int:
    """The longest text that the model reads, in tokens, as far as its files say."""
    from keras_tfm.checkpoints.tensors import read_json

    found = [own.get("max_length"), SOURCE]
    names = {
        "tokenizer_config.json": "model_max_length",
        "sentence_bert_config.json": "max_seq_length",
    }
    for file, name in names.items():
        if (folder / file).is_file():
            found.append(read_json(folder / file).get(name))
    return min(x for x in found if isinstance(x, int) and x > 0)


def _with_open_length(model: keras.Model, writes: bool) -> list[str]:
    """The inputs of an open length that are not stepped, and whose layers do not set it."""
    interface = interface_of(model)
    stepped = interface.find_target() if writes else None
    return [
        name
        for name, x in interface.inputs.items()
        if x.is_open and not (x.audio and x.audio.length) and name != stepped
    ]


def _source_lengths(model: keras.Model, names: list[str], longest: int) -> list[int]:
    """Several lengths for a model that masks padding, otherwise the longest; of audio, samples."""
    readers = [x.audio for x in interface_of(model).inputs.values() if x.name in names and x.audio]
    if readers:
        return [seconds * readers[0].sample_rate for seconds in SECONDS]
    masked = names and interface_of(model).invisibly_padded(names) >= set(names)
    return [*(n for n in SHORT if masked and n < longest), longest]
