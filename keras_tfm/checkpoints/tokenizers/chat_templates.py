"""Reads the chat template of a Hugging Face folder as plain strings."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from keras_tfm.checkpoints.config import Fields
from keras_tfm.checkpoints.quantized.gguf_file import is_gguf
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.tokenizers.gguf_tokenizer import gguf_settings
from keras_tfm.checkpoints.tokenizers.jinja.meter import TemplateError
from keras_tfm.checkpoints.tokenizers.jinja.program import LARGEST_SOURCE, Program
from keras_tfm.checkpoints.tokenizers.tokenizer_files import class_of, load_tokenizer
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import TokenizerSettings
from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate

# Texts that no template has, in the places of messages.
_SYSTEM, _USER, _ANSWER, _LAST = (f"\ue000{name}\ue001" for name in "SUAL")
# By model type, what templates write for a picture, the text around its placeholder, and the
# defaults of the tokens in both.
_PLACES = {
    "gemma3": (
        "{boi}",
        "\n\n{boi}{image}{eoi}\n\n",
        {"boi": "<start_of_image>", "image": "<image_soft_token>", "eoi": "<end_of_image>"},
    ),
    "lfm2_vl": (
        "{image}",
        "{image_start}{image}{image_end}",
        {
            "image": "<image>",
            "image_start": "<|image_start|>",
            "image_end": "<|image_end|>",
        },
    ),
}


def load_chat_template(folder: str | Path, image: bool = False) -> ChatTemplate:
    """Loads the chat template of a folder saved by `transformers`.

    The template is a Jinja program: `chat_template.jinja`, or `chat_template` in
    `chat_template.json` or `tokenizer_config.json`. It is rendered with placeholders, with the
    settings of `transformers`, and what stands around the messages is kept, so that a device needs
    no Jinja.
    `export_tflite(chat_template=...)` stores it in the file, and
    `runtime.Model.chat_prompt(messages)` uses it. A start token that the tokenizer adds by itself
    is not part of the strings. The program is a stranger's: its steps are counted, and it reaches
    nothing but the messages. Dates in a template are those of the day of loading. Texts are used
    as they are, or without the blanks at their ends, as the templates of Llama 3 and Gemma write
    them (`trim`).

    Args:
        folder: str or Path, contains the template and the tokenizer; or a GGUF file.
        image: bool, whether the first message of the user begins with a picture, as in
            conversations with SmolVLM: `first` then ends with its place, such as `<image>`, and the
            tokens around it.

    Returns:
        A `runtime.ChatTemplate`. Its `system` is None if the template refuses a system message.

    Raises:
        FileNotFoundError: the folder does not exist, or has no chat template.
        ValueError: the template is damaged; it takes more steps, text or depth than a chat template
            needs; or its text depends on the messages in another way than by their order: strings
            cannot represent it.
        ModuleNotFoundError: jinja2 is not installed; the message names the extra.

    Example:

    >>> import json, pathlib, tempfile
    >>> from keras_tfm import checkpoints
    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\\n{% endfor %}"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "chat_template.jinja").write_text(
    ...         template + "{% if add_generation_prompt %}<assistant>{% endif %}"
    ...     )
    ...     checkpoints.load_chat_template(folder).prompt("Hi")
    '<user>Hi\\n<assistant>'
    """
    folder = Path(folder)
    source, tokens = read_template(folder)
    program = _compile(folder, source, tokens)
    error: ValueError | None = None
    # Some templates write only contents that are lists of parts.
    place, text = _place_of_picture(folder, tokens) if image else ("", "")

    def render(write: Callable[[list[Fields]], list[Fields]], messages: list[Fields]) -> str:
        written = program(write(messages))
        return written.replace(place, text) if place else written

    for write in (_with_image,) if image else (_as_texts, _as_parts):
        try:
            return _strings(folder, partial(render, write), tokens)
        except ValueError as problem:
            error = error or problem
    assert error is not None
    raise error


def _as_texts(messages: list[Fields]) -> list[Fields]:
    return messages


def _as_parts(messages: list[Fields]) -> list[Fields]:
    return [{**x, "content": [{"type": "text", "text": x["content"]}]} for x in messages]


def _with_image(messages: list[Fields]) -> list[Fields]:
    """The messages as lists of parts, with a picture before the first text of the user."""
    written = _as_parts(messages)
    first = next(x for x in written if x["role"] == "user")
    first["content"].insert(0, {"type": "image"})
    return written


def _place_of_picture(folder: Path, tokens: dict[str, str]) -> tuple[str, str]:
    """What the template writes for a picture, and what a processor then puts there."""
    file = folder / "config.json"
    fields: Fields = read_json(file) if file.is_file() else {}
    place, text, defaults = _PLACES.get(str(fields.get("model_type")), ("", "", {}))
    names = {name: tokens.get(f"{name}_token", default) for name, default in defaults.items()}
    return place.format(**names), text.format(**names)


def _strings(folder: Path, render: Callable[..., str], tokens: dict[str, str]) -> ChatTemplate:
    """The texts around messages; raises a ValueError if there are none."""
    user, answer, last = (
        {"role": role, "content": content}
        for role, content in (("user", _USER), ("assistant", _ANSWER), ("user", _LAST))
    )
    system = {"role": "system", "content": _SYSTEM}
    first, between, after, _ = _between(folder, render([user, answer, last]), _USER, _ANSWER, _LAST)
    # Some end the prompt without the space that they put before an answer.
    ending = render([user]).partition(_USER)[2]
    gap = between.removeprefix(ending) if between.startswith(ending) else ""
    template = ChatTemplate(first, between.removesuffix(gap), after, gap=gap)
    try:
        with_system = render([system, user])
        before, after, _ = _between(folder, with_system, _SYSTEM, _USER)
        complete = template._replace(system=(before, after))
        _check(folder, complete, render)
        template = complete
    except ValueError:
        # It raises an error at a system message, or puts its text elsewhere, as Mistral's does,
        # which writes it in the last turn.
        _check(folder, template, render)
    template = template._replace(trim=_trimmed_roles(template, render))
    return _without_start(folder, template, tokens.get("bos_token"))


def _trimmed_roles(template: ChatTemplate, render: Callable[..., str]) -> tuple[str, ...]:
    """The roles whose texts the template writes without the blanks at their ends."""
    roles = ("system", "user", "assistant", "user")[template.system is None :]
    trimmed = []
    for role in dict.fromkeys(roles):
        messages = [{"role": x, "content": "\n\t a \n" if x == role else "b"} for x in roles]
        if template._replace(trim=(role,)).prompt(messages) == render(messages):
            trimmed.append(role)
    return tuple(trimmed)


def read_template(folder: Path) -> tuple[str, dict[str, str]]:
    """The Jinja program of a folder or a GGUF file, and its special tokens by name."""
    if is_gguf(folder):
        settings = TokenizerSettings(folder, gguf_settings(folder))
        return _source(folder, settings.fields), settings.special_tokens(None)
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    settings = TokenizerSettings(folder)
    return _source(folder, settings.fields), settings.special_tokens(class_of(settings))


def _source(folder: Path, settings: Fields) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        size = file.stat().st_size
        if size > LARGEST_SOURCE:
            raise ValueError(
                f"{file}: the chat template cannot be read: it has {size:,} bytes, more than "
                f"{LARGEST_SOURCE:,}"
            )
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: the chat template cannot be read: {error}") from None
    source = settings.get("chat_template")
    if (file := folder / "chat_template.json").is_file():  # of a processor for pictures and texts
        source = read_json(file).get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {x.get("name"): x.get("template") for x in source if isinstance(x, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        raise FileNotFoundError(
            f"{folder} has no tokenizer.chat_template"
            if is_gguf(folder)
            else f"{folder} has no chat_template.jinja, and no chat_template in "
            "chat_template.json or tokenizer_config.json"
        )
    return source


def _compile(folder: Path, source: str, tokens: dict[str, str]) -> Callable[..., str]:
    """A function of messages that renders the template, with the variables of `transformers`."""
    optional_package("jinja2", "chat templates need jinja2", "jinja2", extra="checkpoints")
    try:
        program = Program(source, {"tools": None, "documents": None, **tokens})
    except TemplateError as error:
        raise ValueError(f"{folder}: the chat template cannot be read: {error}") from None

    def render(messages: list[dict[str, str]]) -> str:
        try:
            return program.render(messages=messages, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(f"{folder}: the chat template failed: {error}") from None

    return render


def _between(folder: Path, text: str, *contents: str) -> list[str]:
    """The parts of a text before, between and after contents, each of which occurs once."""
    parts = []
    for content in contents:
        part, found, text = text.partition(content)
        if not found:
            raise ValueError(
                f"{folder}: the chat template cannot be written as strings around the messages: "
                "it changes, repeats or omits a message"
            )
        parts.append(part)
    return [*parts, text]


def _check(folder: Path, template: ChatTemplate, render: Callable[..., str]) -> None:
    """Raises unless the strings give the template's text for conversations of several turns."""
    roles = ["user", "assistant"] * 3 + ["user"]
    messages = [{"role": role, "content": f"message {number}"} for number, role in enumerate(roles)]
    conversations = [messages[:1], messages[:5], messages]
    if template.system is not None:
        conversations.append([{"role": "system", "content": "short"}, *messages[:5]])
    for conversation in conversations:
        if template.prompt(conversation) != render(conversation):
            raise ValueError(
                f"{folder}: the chat template cannot be written as strings around the messages: "
                f"it writes {len(conversation)} messages differently"
            )


def _without_start(folder: Path, template: ChatTemplate, start: str | None) -> ChatTemplate:
    """Without the start token, if the tokenizer puts one before every text."""
    if not isinstance(start, str) or not template.first.startswith(start):
        return template
    tokenizer = load_tokenizer(folder)
    added = tokenizer.encode(start, add_special_tokens=False).ids
    if len(added) != 1 or tokenizer.encode("a").ids[:1] != added:
        return template
    system = template.system
    if system is not None:
        system = (system[0].removeprefix(start), system[1])
    shorter = template._replace(first=template.first.removeprefix(start), system=system)
    # Some tokenizers put a space before a text, but not after a start token that is written in it.
    ids = tokenizer.encode(template.prompt("a"), add_special_tokens=False).ids
    same = tokenizer.encode(shorter.prompt("a")).ids[: len(ids)] == ids
    return shorter if same else template
