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


class Chat(NamedTuple):
    """A conversation as LiteRT-LM writes it.

    Attributes:
        template: `ChatTemplate` or `checkpoints.JinjaTemplate`.
        program: str, the Jinja program of the file.
        start: str, the start token, which the runtime adds by itself.
        user: tuple of str, the texts before and after a message of the user in a session.
    """

    template: Any
    program: str
    start: str
    user: tuple[str, str]

    def prompt(self, messages: Sequence[Any], **others: Any) -> str:
        """The text of a conversation, without the start token."""
        text: str = self.template.prompt(messages, **others)
        return text.removeprefix(self.start)


def chat_of(
    template: Any, tokenizer: Tokenizer, start_id: int | None, end_ids: Sequence[int]
) -> Chat:
    """The conversation of a chat template.

    Raises:
        ValueError: a text of a `ChatTemplate` has a variable of Jinja, or a program cannot write
            the message of a user.
    """
    start = "" if start_id is None else tokenizer.token(start_id)
    ends = [tokenizer.token(one) for one in end_ids]
    if not isinstance(template, ChatTemplate):
        return _chat_of_program(template, start, ends)
    texts = {**template._asdict(), "system": "".join(template.system or ())}
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
    return Chat(template, jinja(template, end), start, (template.first, template.answer))


# LiteRT-LM gives a program each content as a list of parts, also a plain text; programs of
# transformers expect texts.
_TEXTS = """\
{%- set all = namespace(messages=[]) -%}
{%- for m in messages -%}
{%- set one = namespace(text='') -%}
{%- if m.content is string -%}
{%- set one.text = m.content -%}
{%- elif m.content is defined and m.content is not none -%}
{%- for part in m.content -%}
{%- if part.type == 'text' -%}
{%- set one.text = one.text + part.text -%}
{%- elif part.type == 'tool_response' and part.response is string -%}
{%- set one.text = one.text + part.response -%}
{%- elif part.type == 'tool_response' -%}
{%- set one.text = one.text + part.response|tojson -%}
{%- else -%}
REFUSAL
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- set all.messages = all.messages + [dict(m, content=one.text)] -%}
{%- endfor -%}
{%- set messages = all.messages -%}
"""


def _chat_of_program(template: Any, start: str, ends: Sequence[str]) -> Chat:
    """The conversation of a `JinjaTemplate`.

    What such a program writes behind the end token of an answer, such as a line break, is left to
    the next message: the runtime has read the tokens that the model generated, and reads only what
    the text of the conversation has more.
    """
    user, answer = ({"role": role, "content": _PLACE} for role in ("user", "assistant"))
    before, found, after = template.prompt([user]).removeprefix(start).partition(_PLACE)
    if not found or _PLACE in after:
        raise ValueError("the chat template cannot be used: it changes or omits a user's message")
    spoken = [{**user, "content": "a"}, answer]
    rest = template.prompt(spoken, add_generation_prompt=False).rpartition(_PLACE)[2]
    rest = next((rest.removeprefix(x) for x in ends if x and rest.startswith(x)), "")
    names = [name for name in template.tokens if name in template.source]
    tokens = "".join(f"{{%- set {x} = {json.dumps(template.tokens[x])} -%}}" for x in names)
    program = (
        _TEXTS.replace("REFUSAL", _refusal(CONTENT, "'a part of the type ' ~ part.type"))
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
    return Chat(template, program + "{{ text }}", start, (before, after))


def jinja(template: ChatTemplate, end: str) -> str:
    """The Jinja program that writes a conversation as `template.prompt` does.

    LiteRT-LM keeps what it has read, the end token that the model generated included, and reads
    only the text that a new message adds. So the end belongs to the answer, and the rest of
    `template.next` to the user's message. The program writes parts of conversations, too: one that
    ends with an answer is an error only with `add_generation_prompt`. Otherwise it refuses what
    `prompt` refuses.

    Args:
        template: `ChatTemplate`, without a start token.
        end: str, the text of the end token, a prefix of `template.next`, or "".
    """
    if template.gap:
        raise ValueError(
            "chat_template must have no gap before earlier answers, as LiteRT-LM keeps what it has "
            f"read, got {template.gap!r}: give a checkpoints.JinjaTemplate"
        )
    content = (
        "{% if m.content is string %}{{ m.content }}"
        "{% elif m.content is mapping or m.content is not sequence or not m.content %}"
        + _refusal(CONTENT, "m.content|string")
        + "{% else %}{% for part in m.content %}"
        "{% if part.type == 'text' and part.text is string %}{{ part.text }}{% else %}"
        + _refusal(CONTENT, "'a part of the type ' ~ part.type")
        + "{% endif %}{% endfor %}{% endif %}"
    )
    if template.system is None:
        system = _refusal(NO_SYSTEM)
    else:
        system = _quote(template.system[0]) + content + _quote(template.system[1])
    roles = "messages|map(attribute='role')|join(', ')"
    return (
        "{% if tools %}"
        + _refusal("the chat template has no tools")
        + "{% endif %}{% for m in messages %}"
        + "".join(
            f"{{% if m.{key} %}}" + _refusal(f"the chat template has no {key}") + "{% endif %}"
            for key in UNSUPPORTED
        )
        + "{% if m.role == 'system' and loop.first %}"
        + system
        + "{% elif m.role == 'user' and loop.first %}"
        + _quote(template.first)
        + content
        + _quote(template.answer)
        + "{% elif m.role == 'user' and messages[loop.index0 - 1].role == 'system' %}"
        + content
        + _quote(template.answer)
        + "{% elif m.role == 'user' and messages[loop.index0 - 1].role == 'assistant' %}"
        + _quote(template.next.removeprefix(end))
        + content
        + _quote(template.answer)
        + "{% elif m.role == 'assistant' and not loop.first"
        + " and messages[loop.index0 - 1].role == 'user' %}"
        + content
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
    """
    messages = import_builder("runtime.proto.llm_metadata_pb2")
    parameters = import_builder("runtime.proto.sampler_params_pb2").SamplerParameters
    metadata = messages.LlmMetadata(
        max_num_tokens=max_length,
        supports_thinking=getattr(chat and chat.template, "thinks", False),
        supports_function_calling=getattr(chat and chat.template, "takes_tools", False),
    )
    metadata.llm_model_type.generic_model.SetInParent()
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
    """Writes a package.

    Args:
        path: as in `write_package`.
        tokenizer: as in `write_package`.
        models: paths of .tflite files by the name of their section's type.
        add_metadata: function of the builder and the path of the metadata.
        metadata: the bytes of that message.
    """
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
