"""What a folder of transformers, sentence-transformers or KerasHub says about an export."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tfm.cli.console import messages, refuse
from keras_tfm.cli.image_options import channels_of, processor_of

if TYPE_CHECKING:
    import keras

# Arguments of an export, of a builder, or fields of a configuration, by name.
Arguments = dict[str, Any]
# The most tokens of a chat or a continued text, of a generated target, and of a text that is read,
# unless the options say otherwise: a folder's own limit may be 131,072.
CONVERSATION, TARGET, SOURCE = 1024, 128, 512
# Shorter lengths of texts and prompts: a short text need not be computed as a long one.
SHORT, PROMPT = (32, 128), 64
# Architectures of transformers, by their endings, that read pairs of texts.
_OF_PAIRS = ("ForSequenceClassification", "ForQuestionAnswering", "ForNextSentencePrediction")


def load_folder(
    folder: Path,
    architecture: str | None = None,
    segments: bool | None = None,
    image_size: tuple[int, int] | None = None,
    lazy: bool | None = False,
) -> keras.Model:
    """The model of a folder.

    Args:
        folder: a folder saved by transformers or sentence-transformers, or a preset of KerasHub.
        architecture: the class in transformers; None: that of `config.json`, and for
            sentence-transformers its pooling.
        segments: whether the model keeps the input of segments, if it can have one. None: only if
            its head may read pairs of texts.
        image_size: the height and width of the model's images; None: those of the folder.
        lazy: as in `load_huggingface`.
    """
    from keras_tfm import checkpoints
    from keras_tfm.checkpoints.config import Config
    from keras_tfm.checkpoints.huggingface import FAMILIES
    from keras_tfm.checkpoints.keras_hub.source import is_preset

    if is_preset(folder):
        refuse({"architecture": architecture}, "it is for a folder of transformers")
        given: Arguments = {} if segments is None or segments else {"segments": False}
        found = checkpoints.from_keras_hub(folder, **given)
        for note in found.notes:
            messages.print(f"{folder}: {note}", soft_wrap=True)
        return found.model
    if (folder / "modules.json").is_file() and architecture is None:
        return checkpoints.load_sentence_transformer(folder)
    config = Config(folder)
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
    return checkpoints.load_huggingface(folder, architecture, lazy=lazy, **options)


@dataclass
class _Taken:
    """Arguments by name, and what was taken, in the words of the options."""

    arguments: Arguments = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, name: str, value: object, note: str) -> None:
        self.arguments[name] = value
        self.notes.append(note)


def folder_arguments(
    folder: Path, model: keras.Model, given: Arguments, is_litertlm: bool
) -> Arguments:
    """The arguments of an export that a folder and its model tell; prints them as options.

    Args:
        folder: the folder.
        model: its model.
        given: the arguments of the export by name; None, where an option was left out.
        is_litertlm: whether the export is a .litertlm file.

    Returns:
        Arguments by name, and for a model of speech `processors`, those of its strategy.
    """
    from keras_tfm.checkpoints.keras_hub.source import is_preset

    made = _Taken()
    if is_preset(folder):
        _take_preset(made, folder, model, given, is_litertlm)
        messages.print(f"of the preset: {'; '.join(made.notes) or 'nothing'}", soft_wrap=True)
        return made.arguments
    open_ = {name for name, value in given.items() if value is None}
    texts = _inputs_of_text(model)
    own: Arguments = getattr(model, "arguments", None) or {}
    head = getattr(model, "head", None)
    writes = head is not None and head.kind == "language_model"
    ids = _ids(folder, own)
    if writes and "signatures" in open_ and not is_litertlm:
        roles = _signatures(model, given)
        made.take("signatures", roles, f"--signatures {','.join(roles)}")
    roles = made.arguments.get("signatures") or given["signatures"] or []
    _take_tokenizers(made, folder, texts, open_, writes)
    has_tokenizer = "tokenizer" not in open_ or "tokenizer" in made.arguments
    if writes and "chat_template" in open_ and len(texts) == 1 and has_tokenizer:
        _take_template(made, folder)
    if "images" in open_ and not is_litertlm:
        _take_images(made, folder, model)
    if writes:
        _take_end(made, ids, model, open_)
        _take_generation(made, ids, own, model, roles, given, is_litertlm)
    if is_litertlm:
        _take_start(made, ids, open_)
    of_sources = _with_open_length(model, writes)
    if "source_length" in open_ and of_sources and not is_litertlm:
        lengths = _source_lengths(model, of_sources, _longest_text(folder, own))
        made.take("source_length", lengths, f"--lengths {','.join(map(str, lengths))}")
    messages.print(f"of the folder: {'; '.join(made.notes) or 'nothing'}", soft_wrap=True)
    return made.arguments


# What a preset may tell, as an option.
_OF_PRESETS = {
    "tokenizer": "its tokenizer",
    "images": "its rule for pictures",
    "signatures": "--signatures",
    "source_length": "--lengths",
    "max_length": "--max-length",
    "prompt_length": "--prompt-lengths",
    "default_prompt": "--prompt",
    "start_id": "--start",
    "end_id": "--end",
}
# Those that describe a .litertlm file.
_OF_LITERTLM = ("tokenizer", "max_length", "start_id", "end_id")


def _take_preset(
    made: _Taken, folder: Path, model: keras.Model, given: Arguments, is_litertlm: bool
) -> None:
    """What the preprocessor of a KerasHub preset tells."""
    from keras_tfm.checkpoints.keras_hub.preprocessing import read_preprocessing
    from keras_tfm.checkpoints.keras_hub.source import open_preprocessor

    preprocessor = open_preprocessor(folder)
    if preprocessor is None:
        made.notes.append("nothing, as it has no preprocessor")
        return
    found: Arguments = {}
    head = getattr(model, "head", None)
    if head is not None and head.kind == "language_model" and given["signatures"] is None:
        found["signatures"] = _signatures(model, given)
    found |= read_preprocessing(preprocessor).export_arguments(model, {**given, **found})
    for name, text in _OF_PRESETS.items():
        if name not in found or (is_litertlm and name not in _OF_LITERTLM):
            continue
        value = found[name]
        numbers = ",".join(map(str, value)) if isinstance(value, list) else value
        made.take(name, value, f"{text} {numbers}" if text.startswith("--") else text)


def _inputs_of_text(model: keras.Model) -> list[str]:
    """The inputs of ids that a tokenizer writes: not the segments of BERT."""
    from keras_tfm.generation.interface import interface_of

    inputs = interface_of(model).inputs
    return [name for name, x in inputs.items() if x.takes_ids and name != "segments"]


def _signatures(model: keras.Model, given: Arguments) -> list[str]:
    """Those for chats and generated texts: a decoder's, or an encoder-decoder's."""
    from keras_tfm.generation.interface import interface_of

    if len(interface_of(model).inputs) == 1:
        return ["prefill", "decode"]
    return ["encode", "decode"] if given["accelerator"] == "gpu" else ["generate"]


def _ids(folder: Path, own: Arguments) -> Arguments:
    """Special ids: those of `generation_config.json`, then of the model, then of `config.json`."""
    from keras_tfm.checkpoints.config import Config

    config = Config(folder)
    ids = {key: config.fields.get(key) for key in ("bos_token_id", "eos_token_id")}
    ids["decoder_start_token_id"] = config.fields.get("decoder_start_token_id")
    for name, value in (("eos_token_id", "end_id"), ("decoder_start_token_id", "start_id")):
        if own.get(value) is not None:
            ids[name] = own[value]
    ids |= {k: v for k, v in (config.generation_fields or {}).items() if v is not None}
    return ids


def _take_tokenizers(
    made: _Taken, folder: Path, texts: list[str], open_: set[str], writes: bool
) -> None:
    from keras_tfm import checkpoints

    if not texts or "tokenizer" not in open_:
        return
    try:
        tokenizer = checkpoints.load_tokenizer(folder)
    except FileNotFoundError:
        made.notes.append("no tokenizer, which it lacks: the file takes ids")
        return
    value: Arguments = dict.fromkeys(texts, tokenizer)
    if "target" in value and "detokenizer" in open_ and (folder / "target.spm").is_file():
        value["target"] = checkpoints.load_tokenizer(folder, target=True)
    made.take("tokenizer", tokenizer if len(texts) == 1 and writes else value, "its tokenizer")


def _take_template(made: _Taken, folder: Path) -> None:
    from keras_tfm.checkpoints import load_chat_template

    try:
        template = load_chat_template(folder)
    except FileNotFoundError:
        return
    except ValueError as error:  # a file without it still continues texts
        made.notes.append(f"no chat template: {error}")
        return
    made.take("chat_template", template, "its chat template")


def _take_images(made: _Taken, folder: Path, model: keras.Model) -> None:
    from keras_tfm.checkpoints.image_settings import FILE
    from keras_tfm.generation.interface import interface_of

    if not any(x.is_pixels for x in interface_of(model).inputs.values()):
        return
    if not (folder / FILE).is_file():
        made.notes.append(f"no rule for pictures, as it has no {FILE}: --images gives one")
        return
    try:
        processor = processor_of(str(folder), channels_of(model))
    except ValueError as error:
        raise ValueError(f"{error}; --images gives another rule, such as 480x640:fit") from None
    made.take("images", processor, f"the rule for pictures in {FILE}")


def _take_end(made: _Taken, ids: Arguments, model: keras.Model, open_: set[str]) -> None:
    if "end_id" not in open_ or ids.get("eos_token_id") is None:
        return
    value = ids["eos_token_id"]
    several = value if isinstance(value, list) else [value]
    size = model.outputs[0].shape[-1]
    if not several or not all(type(x) is int and 0 <= x < size for x in several):
        made.notes.append(f"no end token: its eos_token_id is {value}, and ids are below {size}")
        return
    made.take("end_id", several, f"--end {','.join(map(str, several))}")


def _take_start(made: _Taken, ids: Arguments, open_: set[str]) -> None:
    """The token that LiteRT-LM puts before the first text: the one of the tokenizer or template."""
    tokenizer, template = (made.arguments.get(x) for x in ("tokenizer", "chat_template"))
    if "start_id" not in open_ or tokenizer is None:
        return
    first = tokenizer.encode("").ids[:1]
    ends = made.arguments.get("end_id") or []
    start = ids.get("bos_token_id")
    if first and first[0] not in ends:
        made.take("start_id", first[0], f"--start {first[0]}")
    elif template is not None and type(start) is int and tokenizer.id_to_token(start):
        text = tokenizer.id_to_token(start)
        if any(x.startswith(text) for x in (template.first, *(template.system or ())[:1])):
            made.take("start_id", start, f"--start {start}")


def _take_generation(
    made: _Taken,
    ids: Arguments,
    own: Arguments,
    model: keras.Model,
    roles: list[str],
    given: Arguments,
    is_litertlm: bool,
) -> None:
    """Lengths of generated texts, start tokens and prompts."""
    from keras_tfm.generation.interface import interface_of

    inputs = interface_of(model).inputs
    alone = len(inputs) == 1
    limit = own.get("max_length")
    longest = min(CONVERSATION if alone else TARGET, limit or CONVERSATION)
    if given["max_length"] is None:
        of = f" (of {limit})" if limit and limit > longest else ""
        made.take("max_length", longest, f"--max-length {longest}{of}")
    longest = given["max_length"] or longest
    if is_litertlm:
        return
    steps = {"prefill", "generate"} & set(roles)
    prompted = given["prompt_length"] is not None or given["default_prompt"] is not None
    if any(x.audio is not None for x in inputs.values()) and "generate" in steps:
        _take_transcription(made, ids, model, given)
    elif alone and steps and not prompted:
        length = max(1, min(PROMPT, longest // 2))
        made.take("prompt_length", length, f"--prompt-lengths {length}")
    elif not alone and given["start_id"] is None and not prompted:
        start, first = ids.get("decoder_start_token_id"), own.get("forced_first_id")
        if type(start) is int and first is not None and "generate" in steps:
            made.take("default_prompt", [start, first], f"--prompt {start},{first}")
        elif type(start) is int:
            made.take("start_id", start, f"--start {start}")


def _take_transcription(made: _Taken, ids: Arguments, model: keras.Model, given: Arguments) -> None:
    """Whisper's first tokens, and the processors with which transformers generates."""
    from keras_tfm.generation import processors

    prompt = given["default_prompt"]
    if prompt is None and given["prompt_length"] is None:
        start, languages = ids.get("decoder_start_token_id"), ids.get("lang_to_id")
        tasks = ids.get("task_to_id") or {}
        silent = [x for x in [ids.get("no_timestamps_token_id")] if x is not None]
        if start is None:
            return
        if languages:
            english = [start, next(iter(languages.values())), *list(tasks.values())[:1], *silent]
            raise ValueError(
                "the folder knows several languages: --prompt must be the ids of the start, the "
                f"language and the task, such as --prompt {','.join(map(str, english))}, of "
                f"{json.dumps(languages)[:200]}"
            )
        prompt = [start, *silent]
        made.take("default_prompt", prompt, f"--prompt {','.join(map(str, prompt))}")
    made.arguments["processors"] = processors.transcription(model)


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
    from keras_tfm.generation.interface import interface_of

    interface = interface_of(model)
    stepped = interface.find_target() if writes else None
    return [
        name
        for name, x in interface.inputs.items()
        if x.is_open and x.audio is None and name != stepped
    ]


def _source_lengths(model: keras.Model, names: list[str], longest: int) -> list[int]:
    """Several lengths for a model that masks padding, otherwise the longest."""
    from keras_tfm.generation.interface import interface_of

    masked = names and interface_of(model).invisibly_padded(names) >= set(names)
    return [*(n for n in SHORT if masked and n < longest), longest]
