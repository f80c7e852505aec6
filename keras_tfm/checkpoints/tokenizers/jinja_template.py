"""The chat template of a Hugging Face folder as the Jinja program that it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_tfm.checkpoints.tokenizers.chat_templates import read_template
from keras_tfm.checkpoints.tokenizers.jinja.meter import TemplateError
from keras_tfm.checkpoints.tokenizers.jinja.program import Program
from keras_tfm.optional_package import optional_package

Message = Mapping[str, Any]


class JinjaTemplate(NamedTuple):
    """A chat template as a Jinja program, with the settings and variables of `transformers`.

    For LiteRT-LM, which runs Jinja: `export_litertlm(chat_template=)`. Unlike the strings of a
    `runtime.ChatTemplate`, a program writes tools, tool calls, thinking and any role it knows.

    Attributes:
        source: str, the program.
        tokens: dict of str, special tokens by the names of variables, such as "bos_token".

    Example:

    >>> from keras_tfm.checkpoints import JinjaTemplate
    >>> template = JinjaTemplate(
    ...     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    ...     "{% if add_generation_prompt %}<model>{% endif %}", {"eos_token": "</s>"}
    ... )
    >>> template.prompt([{"role": "developer", "content": "Be brief."}])
    '<developer>Be brief.</s><model>'
    """

    source: str
    tokens: Mapping[str, str] = MappingProxyType({})

    @property
    def takes_tools(self) -> bool:
        """Whether the program reads descriptions of tools."""
        return "tools" in self.source

    @property
    def thinks(self) -> bool:
        """Whether the program knows of thinking before an answer."""
        return "enable_thinking" in self.source or "<think>" in self.source

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a conversation, as of `apply_chat_template(tokenize=False)`.

        Args:
            messages: list of dicts with a "role" and a "content", as in `transformers`.
            tools: list of dicts, descriptions of functions as JSON schemas. Default: none.
            add_generation_prompt: bool, whether the text ends where the model answers.
            variables: object, further variables of the program, such as `enable_thinking=False`.

        Raises:
            ValueError: the program is damaged, takes too much work, or refuses the messages.
            ModuleNotFoundError: jinja2 is not installed.
        """
        optional_package("jinja2", "chat templates need jinja2", "jinja2", extra="checkpoints")
        given = {"tools": tools, "documents": None, **self.tokens, **variables}
        try:
            return Program(self.source, given).render(
                messages=messages, add_generation_prompt=add_generation_prompt
            )
        except TemplateError as error:
            raise ValueError(f"the chat template failed: {error}") from None


def load_jinja_template(folder: str | Path) -> JinjaTemplate:
    """Loads the chat template of a folder saved by `transformers`, or of a GGUF file, as Jinja.

    Args:
        folder: str or Path, as of `load_chat_template`.

    Raises:
        FileNotFoundError: the folder does not exist, or has no chat template.
        ValueError: the template is too long or not UTF-8.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tfm import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "chat_template.jinja").write_text("{{ messages[0].content }}")
    ...     checkpoints.load_jinja_template(folder).prompt([{"role": "user", "content": "Hi"}])
    'Hi'
    """
    return JinjaTemplate(*read_template(Path(folder)))
