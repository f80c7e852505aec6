"""Packs a .tflite file, a tokenizer and metadata as a .litertlm file, the format of LiteRT-LM.

Example:

>>> from keras_tfm.export.litertlm.package import jinja
>>> from keras_tfm.runtime import ChatTemplate
>>> print(jinja(ChatTemplate("<user>", "<model>", "<end><user>"), end="<end>")[:60])
{% if tools %}{{ raise_exception("the chat template has no t
"""

import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_tfm.generation.strategies import Greedy, Sample, Strategy
from keras_tfm.generation.tokenizers.tokenizer_forms import Form
from keras_tfm.optional_package import missing_package
from keras_tfm.runtime.tokenizers.chat_template import (
    CONTENT,
    NO_SYSTEM,
    ROLES,
    UNSUPPORTED,
    ChatTemplate,
)
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer
from keras_tfm.version import __version__

# A text that no template has, in the place of a message.
_PLACE = "\ue000message\ue001"


class Sampler(NamedTuple):
    """LiteRT-LM's sampler: the default of sessions that set none."""

    k: int
    p: float
    temperature: float
    seed: int | None


class Picture(NamedTuple):
    """A picture as LiteRT-LM gives it to a model.

    Attributes:
        size: (height, width) in pixels.
        prefix, suffix: str, the texts before and after its features in a prompt.
    """

    size: tuple[int, int]
    prefix: str
    suffix: str


class Chat(NamedTuple):
    """A conversation as LiteRT-LM writes it.

    Attributes:
        template: `ChatTemplate` or `checkpoints.JinjaTemplate`.
        program: str, the Jinja program of the file.
        start: str, the start token, which the runtime adds by itself.
        user: tuple of str, the texts before and after a message of the user in a session.
        image: str, the token of a picture; "" of a model that reads none.
        reads_parts: bool, whether the program of a `JinjaTemplate` reads contents as lists.
    """

    template: Any
    program: str
    start: str
    user: tuple[str, str]
    image: str = ""
    reads_parts: bool = False

    def prompt(self, messages: Sequence[Any], **others: Any) -> str:
        """The text of a conversation, without the start token.

        A part of the type image is the token of a picture there, or where the template has it.
        """
        template = self.template
        if self.reads_parts:
            messages = [{**x, "content": _parts(x.get("content"))} for x in messages]
        elif self.image:
            first: Any = next((x for x in messages if x["role"] == "user"), {})
            is_pictured = any(x["type"] == "image" for x in _parts(first.get("content")))
            places_it = isinstance(template, ChatTemplate) and self.image in template.first
            if places_it and not is_pictured:
                template = _without(template, self.image)
            messages = [
                {**x, "content": self._content(x, "" if places_it and x is first else self.image)}
                for x in messages
            ]
        text: str = template.prompt(messages, **others)
        return text.removeprefix(self.start)

    def _content(self, message: Mapping[str, Any], image: str) -> Any:
        """A content with the token of a picture for one.

        As parts for a `ChatTemplate`, which trims each; as one text for a program of texts.
        """
        parts = _parts(message.get("content"))
        texts = [image if x["type"] == "image" else x["text"] for x in parts]
        if isinstance(self.template, ChatTemplate):
            return [{"type": "text", "text": x} for x in texts]
        return "".join(texts)


def _parts(content: Any) -> list[Any]:
    """A content as LiteRT-LM gives it: a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _without(template: ChatTemplate, image: str) -> ChatTemplate:
    """A template that begins without a picture."""
    system = template.system
    if system is not None:
        system = (system[0].replace(image, ""), system[1].replace(image, ""))
    return template._replace(first=template.first.replace(image, ""), system=system)


def chat_of(
    template: Any,
    tokenizer: Tokenizer,
    start_id: int | None,
    end_ids: Sequence[int],
    image: str = "",
) -> Chat:
    """The conversation of a chat template.

    Args:
        template: `ChatTemplate` or `JinjaTemplate`.
        tokenizer: that of the file.
        start_id, end_ids: its start and end tokens.
        image: str, the token of a picture; "" of a model that reads none.

    Raises:
        ValueError: a text of a `ChatTemplate` has a variable of Jinja, or a picture where LiteRT-LM
            gives none; or a program cannot write the message of a user, or a picture.
    """
    start = "" if start_id is None else tokenizer.token(start_id)
    ends = [tokenizer.token(one) for one in end_ids]
    if not isinstance(template, ChatTemplate):
        return _chat_of_program(template, start, ends, image)
    texts = {**template._asdict(), "system": "".join(template.system or ())}
    del texts["trim"]  # roles
    for name, text in texts.items():
        found = re.search(r"{{.*?}}|{%.*?%}", text, re.DOTALL)
        if found:
            raise ValueError(
                f"chat_template.{name} has the variable {found[0]}, but a ChatTemplate holds the "
                "texts around messages: checkpoints.load_chat_template makes them of a Jinja file"
            )
    system = template.system
    if system is not None:
        system = (system[0].removeprefix(start), system[1])
    template = template._replace(first=template.first.removeprefix(start), system=system)
    end = next((x for x in ends if x and template.next.startswith(x)), "")
    if image:
        _check_places(template, image)
    first = _without(template, image).first if image else template.first
    return Chat(template, jinja(template, end, image), start, (first, template.answer), image)


def _check_places(template: ChatTemplate, image: str) -> None:
    """Raises ValueError unless a template begins with at most one picture, and has no other."""
    begins = [template.first.count(image)]
    if template.system is not None:
        begins.append("".join(template.system).count(image))
    others = template.answer + template.next
    if max(begins) > 1 or min(begins) != max(begins) or image in others:
        raise ValueError(
            f"chat_template may have {image} once, before the user's first text, with and without "
            f"a system message, got {template}"
        )


# LiteRT-LM gives a program each content as a list of parts, also a plain text; most programs of
# transformers expect texts, those of models that read pictures expect lists.
_CONTENTS = """\
{%- set all = namespace(messages=[], pictures=0) -%}
{%- for m in messages -%}
{%- set one = namespace(content=NONE) -%}
{%- if m.content is string -%}
{%- set one.content = TEXT(m.content) -%}
{%- elif m.content is defined and m.content is not none -%}
{%- for part in m.content -%}
{%- if part.type == 'text' -%}
{%- set one.content = one.content + TEXT(part.text) -%}
{%- elif part.type == 'tool_response' and part.response is string -%}
{%- set one.content = one.content + TEXT(part.response) -%}
{%- elif part.type == 'tool_response' -%}
{%- set one.content = one.content + TEXT(part.response|tojson) -%}
IMAGE{%- else -%}
REFUSAL
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- set all.messages = all.messages + [dict(m, content=one.content)] -%}
{%- endfor -%}
{%- set messages = all.messages -%}
"""
_IMAGE = """\
{%- elif part.type == 'image' and not all.pictures -%}
{%- set all.pictures = 1 -%}
{%- set one.content = one.content + PICTURE -%}
{%- elif part.type == 'image' -%}
REFUSAL
"""
_ONE_PICTURE = "the model reads one picture in a conversation, got another"


def _contents(image: str, reads_parts: bool) -> str:
    """What a program starts with: the contents of messages as lists of parts, or as texts."""
    picture, none, text = json.dumps(image, ensure_ascii=False), "''", r"\1"
    if reads_parts:
        picture, none, text = "[{'type': 'image'}]", "[]", r"[{'type': 'text', 'text': \1}]"
    on_image = _IMAGE.replace("PICTURE", picture).replace("REFUSAL", _refusal(_ONE_PICTURE))
    refusal = _refusal(CONTENT, "'a part of the type ' ~ part.type")
    program = re.sub(r"TEXT\((.*?)\)", text, _CONTENTS.replace("NONE", none))
    return program.replace("IMAGE", on_image if image else "").replace("REFUSAL", refusal)


def _reads_parts(template: Any, image: str) -> bool:
    """Whether a program writes a picture and a text, given as a list of parts.

    Raises:
        ValueError: it does not, and cannot write a text with the token of a picture, either.
    """
    parts = [{"type": "image"}, {"type": "text", "text": _PLACE}]
    reasons = []
    for content in (parts, image + _PLACE):
        try:
            text: str = template.prompt([{"role": "user", "content": content}])
        except ValueError as error:
            reasons.append(str(error))
            continue
        if (text.count(image), text.count(_PLACE)) == (1, 1):
            return content is parts
    raise ValueError(
        f"the chat template cannot be used: it does not write a picture as {image}"
        + (f" ({reasons[0]})" if reasons else "")
    )


def _chat_of_program(template: Any, start: str, ends: Sequence[str], image: str) -> Chat:
    """The conversation of a `JinjaTemplate`.

    What such a program writes behind the end token of an answer, such as a line break, is left to
    the next message: the runtime has read the tokens that the model generated, and reads only what
    the text of the conversation has more.
    """
    reads_parts = bool(image) and _reads_parts(template, image)

    def message(role: str, text: str = _PLACE) -> dict[str, Any]:
        return {"role": role, "content": _parts(text) if reads_parts else text}

    user, answer = message("user"), message("assistant")
    before, found, after = template.prompt([user]).removeprefix(start).partition(_PLACE)
    if not found or _PLACE in after:
        raise ValueError("the chat template cannot be used: it changes or omits a user's message")
    spoken = [message("user", "a"), answer]
    rest = template.prompt(spoken, add_generation_prompt=False).rpartition(_PLACE)[2]
    rest = next((rest.removeprefix(x) for x in ends if x and rest.startswith(x)), "")
    names = [name for name in template.tokens if name in template.source]
    tokens = "".join(f"{{%- set {x} = {json.dumps(template.tokens[x])} -%}}" for x in names)
    program = (
        _contents(image, reads_parts)
        + tokens
        + "{%- set text -%}"
        + template.source
        + "{%- endset -%}"
    )
    if start:
        program += (
            f"{{%- if text[:{len(start)}] == {json.dumps(start)} -%}}"
            f"{{%- set text = text[{len(start)}:] -%}}{{%- endif -%}}"
        )
    if rest:
        program += (
            "{%- if messages and messages[messages|length - 1].role == 'assistant'"
            " and not add_generation_prompt -%}"
            f"{{%- set text = text[:text|length - {len(rest)}] -%}}{{%- endif -%}}"
        )
    program += "{{ text }}"
    return Chat(template, program, start, (before, after), image, reads_parts)


# What a `ChatTemplate` begins with depends on whether the user does so with a picture.
_PICTURES = """\
{% set seen = namespace(pictures=0, first='') %}{% for m in messages %}\
{% set number = loop.index0 %}\
{% if m.content is not string and m.content is not mapping and m.content is sequence %}\
{% for part in m.content %}{% if part.type == 'image' %}\
{% set seen.pictures = seen.pictures + 1 %}\
{% if number == 0 or messages[number - 1].role == 'system' %}\
{% set seen.first = IMAGE %}{% endif %}{% endif %}{% endfor %}{% endif %}{% endfor %}\
{% if seen.pictures > 1 %}REFUSAL{% endif %}"""


def jinja(template: ChatTemplate, end: str, image: str = "") -> str:
    """The Jinja program that writes a conversation as `template.prompt` does.

    LiteRT-LM keeps what it has read, the end token that the model generated included, and reads
    only the text that a new message adds. So the end belongs to the answer, and the rest of
    `template.next` to the user's message. The program writes parts of conversations, too: one that
    ends with an answer is an error only with `add_generation_prompt`. Otherwise it refuses what
    `prompt` refuses.

    Args:
        template: `ChatTemplate`, without a start token.
        end: str, the text of the end token, a prefix of `template.next`, or "".
        image: str, the token of a picture; "": a part of the type image is refused. A picture with
            the user's first text stands where the template has the token, otherwise, as a later
            one, in its own place among the parts. Without a picture the template's token is left
            out.
    """
    if template.gap:
        raise ValueError(
            "chat_template must have no gap before earlier answers, as LiteRT-LM keeps what it has "
            f"read, got {template.gap!r}: give a checkpoints.JinjaTemplate"
        )

    def content_with(picture: str | None, role: str = "user") -> str:
        """Writes a content; a picture is a text, or refused."""
        trim = "|trim" if role in template.trim else ""
        on_image = "" if picture is None else "{% elif part.type == 'image' %}" + _quote(picture)
        return (
            "{% if m.content is string %}{{ m.content" + trim + " }}"
            "{% elif m.content is mapping or m.content is not sequence or not m.content %}"
            + _refusal(CONTENT, "m.content|string")
            + "{% else %}{% for part in m.content %}"
            "{% if part.type == 'text' and part.text is string %}{{ part.text"
            + trim
            + " }}"
            + on_image
            + "{% else %}"
            + _refusal(CONTENT, "'a part of the type ' ~ part.type")
            + "{% endif %}{% endfor %}{% endif %}"
        )

    def begin(text: str) -> str:
        """Writes a text before the user's first one."""
        if not image:
            return _quote(text)
        return "{{ seen.first }}".join(map(_quote, text.split(image)))

    later = content_with(image or None)
    first = content_with("") if image and image in template.first else later
    if template.system is None:
        system = _refusal(NO_SYSTEM)
    else:
        system = begin(template.system[0])
        system += content_with(None, "system") + begin(template.system[1])
    roles = "messages|map(attribute='role')|join(', ')"
    token = json.dumps(image, ensure_ascii=False)
    pictures = _PICTURES.replace("IMAGE", token).replace("REFUSAL", _refusal(_ONE_PICTURE))
    return (
        (pictures if image else "")
        + "{% if tools %}"
        + _refusal("the chat template has no tools")
        + "{% endif %}{% for m in messages %}"
        + "".join(
            f"{{% if m.{key} %}}" + _refusal(f"the chat template has no {key}") + "{% endif %}"
            for key in UNSUPPORTED
        )
        + "{% if m.role == 'system' and loop.first %}"
        + system
        + "{% elif m.role == 'user' and loop.first %}"
        + begin(template.first)
        + first
        + _quote(template.answer)
        + "{% elif m.role == 'user' and messages[loop.index0 - 1].role == 'system' %}"
        + first
        + _quote(template.answer)
        + "{% elif m.role == 'user' and messages[loop.index0 - 1].role == 'assistant' %}"
        + _quote(template.next.removeprefix(end))
        + later
        + _quote(template.answer)
        + "{% elif m.role == 'assistant' and not loop.first"
        + " and messages[loop.index0 - 1].role == 'user' %}"
        + content_with(None, "assistant")
        + _quote(end)
        + "{% else %}"
        + _refusal(ROLES, roles)
        + "{% endif %}{% if loop.last and add_generation_prompt and m.role != 'user' %}"
        + _refusal(ROLES, roles)
        + "{% endif %}{% endfor %}{% if add_generation_prompt and not messages %}"
        + _refusal(f"{ROLES}, got none")
        + "{% endif %}"
    )


def _refusal(message: str, received: str = "") -> str:
    """An error, with the value of an expression."""
    text = json.dumps(f"{message}, got " if received else message)
    return "{{ raise_exception(" + text + (f" ~ ({received})" if received else "") + ") }}"


def _quote(text: str) -> str:
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if text else ""


def sampler_of(strategy: Strategy | None, vocabulary_size: int) -> Sampler:
    """LiteRT-LM's sampler for a strategy; None is greedy search.

    Raises:
        TypeError: the strategy is neither `Greedy` nor `Sample`.
        ValueError: the strategy has a setting that LiteRT-LM lacks.
    """
    if strategy is None:
        strategy = Greedy()
    if not isinstance(strategy, Greedy | Sample):
        raise TypeError(
            f"strategy must be generation.Greedy or Sample for LiteRT-LM, got {strategy!r}"
        )
    if strategy.processors:
        raise ValueError("strategy must have no processors: LiteRT-LM does not run them")
    if isinstance(strategy, Greedy):
        return Sampler(1, 1.0, 1.0, None)
    for name, default in (("min_p", None), ("hypotheses", 1)):
        if getattr(strategy, name) != default:
            raise ValueError(
                "LiteRT-LM's sampler has temperature, top_k, top_p and seed, "
                f"got {name}={getattr(strategy, name)}"
            )
    k = min(strategy.top_k or vocabulary_size, vocabulary_size)
    return Sampler(k, strategy.top_p or 1.0, strategy.temperature, strategy.seed)


def import_builder(module: str) -> Any:
    """A module of litert_lm_builder, or an error that says how to install it."""
    try:
        return importlib.import_module(f"litert_lm_builder.{module}")
    except ModuleNotFoundError as error:
        raise missing_litert_lm(error.name) from None


def missing_litert_lm(name: str | None) -> ModuleNotFoundError:
    """The error without LiteRT-LM's builder, what it imports, or the runtime that verifies."""
    return missing_package(
        "writing .litertlm files needs LiteRT-LM",
        "litert-lm-api",
        "litert-lm-builder",
        extra="litertlm",
        name=name,
    )


def write_package(
    path: Path,
    models: Mapping[str, Path],
    tokenizer: Form,
    *,
    max_length: int,
    start_id: int | None,
    end_ids: Sequence[int],
    sampler: Sampler,
    chat: Chat | None,
    picture: Picture | None = None,
) -> None:
    """Writes a .litertlm file.

    Args:
        path: Path of the file, which does not exist yet. Files with the parts are written beside.
        models: paths of .tflite files by the name of their section's type.
        tokenizer: `Form`, a tokenizer.json or a SentencePiece model.
        max_length: int, maximum number of tokens, prompt included.
        start_id: int or None, id of the token that begins every text.
        end_ids: ids of the tokens that end an answer.
        sampler: `Sampler`, the default.
        chat: `Chat` or None, the format of conversations.
        picture: `Picture` or None, of a model that reads pictures, with a `chat`.
    """
    messages = import_builder("runtime.proto.llm_metadata_pb2")
    parameters = import_builder("runtime.proto.sampler_params_pb2").SamplerParameters
    metadata = messages.LlmMetadata(
        max_num_tokens=max_length,
        supports_thinking=getattr(chat and chat.template, "thinks", False),
        supports_function_calling=getattr(chat and chat.template, "takes_tools", False),
    )
    model = metadata.llm_model_type.generic_model
    model.SetInParent()
    if picture is not None and chat is not None:
        token = re.escape(chat.image)
        model.image_enabled, model.delimiter_regex = True, f"({token})"
        model.image_token_regex = token
        model.image_tensor_height, model.image_tensor_width = picture.size
        model.image_prefix, model.image_suffix = picture.prefix, picture.suffix
    if start_id is not None:
        metadata.start_token.token_ids.ids.append(start_id)
    for one in end_ids:
        metadata.stop_tokens.add().token_ids.ids.append(one)
    # Its CPU sampler has no other type: greedy search is k = 1.
    metadata.sampler_params.CopyFrom(
        parameters(type=parameters.TOP_P, k=sampler.k, p=sampler.p, temperature=sampler.temperature)
    )
    if sampler.seed is not None:
        metadata.sampler_params.seed = sampler.seed
    if chat is not None:
        # Conversations are written by Jinja, single prompts of sessions by prefix and suffix.
        metadata.jinja_prompt_template = chat.program
        metadata.prompt_templates.user.prefix, metadata.prompt_templates.user.suffix = chat.user
    _write(
        path,
        tokenizer,
        models,
        lambda package, file: package.add_llm_metadata(file),
        metadata.SerializeToString(),
    )


def write_embedder(
    path: Path,
    model: Path,
    lookup: Path,
    tokenizer: Form,
    *,
    start_id: int | None,
    end_id: int | None,
) -> None:
    """Writes a .litertlm file for LiteRT-LM's `EmbeddingEngine`.

    Args:
        path: Path of the file, which does not exist yet. Files with the parts are written beside.
        model: Path of the .tflite file with the signatures `encoder_<N>`.
        lookup: Path of the .tflite file that takes an id to what the encoders take.
        tokenizer: `Form`, a tokenizer.json or a SentencePiece model.
        start_id, end_id: int or None, the tokens before and behind every text.
    """
    messages = import_builder("runtime.proto.embedding_metadata_pb2")
    metadata = messages.EmbeddingMetadata()
    metadata.embedding_model_type.generic_model.SetInParent()
    for token, one in ((metadata.bos_token, start_id), (metadata.eos_token, end_id)):
        if one is not None:
            token.token_ids.ids.append(one)
    _write(
        path,
        tokenizer,
        {"TEXT_ENCODER": model, "EMBEDDER": lookup},
        lambda package, file: package.add_embedding_metadata(file),
        metadata.SerializeToString(),
    )


def _write(
    path: Path,
    tokenizer: Form,
    models: Mapping[str, Path],
    add_metadata: Callable[[Any, str], object],
    metadata: bytes,
) -> None:
    """Writes a package; `add_metadata` is a function of the builder and the metadata's path."""
    builder = import_builder("litertlm_builder")
    metadata_path = path.with_name("metadata.pb")
    metadata_path.write_bytes(metadata)
    tokenizer_path = path.with_name(f"tokenizer{tokenizer.ending}")
    tokenizer_path.write_bytes(tokenizer.content)

    package = builder.LitertLmFileBuilder()
    package.add_system_metadata(
        builder.Metadata(key="keras_tfm", value=__version__, dtype=builder.DType.STRING)
    )
    add_metadata(package, str(metadata_path))
    if tokenizer.ending == ".json":
        package.add_hf_tokenizer(str(tokenizer_path))
    else:
        package.add_sentencepiece_tokenizer(str(tokenizer_path))
    for kind, file in models.items():
        package.add_tflite_model(str(file), builder.TfLiteModelType[kind])
    with path.open("xb") as stream:
        package.build(stream, validate_metadata=True)
        stream.flush()
        os.fsync(stream.fileno())
