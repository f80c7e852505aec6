"""A chat template as strings around the messages, which any device can join without Jinja."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# The errors; the Jinja program of a .litertlm file has the same.
ROLES = (
    "messages must be of the roles user, assistant, user, ... in turn, with user last and "
    "optionally system first"
)
NO_SYSTEM = "the model's chat template has no system message, got one"
CONTENT = "the content of a message must be a text, or a list of parts of the type text"
# What a message may have besides a text, and no template of strings can write.
UNSUPPORTED = ("tool_calls", "function_call", "images", "videos", "audio")

# A role and a content, as in transformers.
Message = Mapping[str, Any]


class ChatTemplate(NamedTuple):
    """The text around the messages of a conversation.

    A prompt is `first` + text + `answer` for one message of the user. Each earlier answer is
    followed by `next`, the user's next text and `answer`. With a system message, the prompt begins
    with `system[0]` + system text + `system[1]` instead of `first`.

    Attributes:
        first: str, before the user's first text.
        answer: str, between the user's text and the model's answer.
        next: str, between an answer and the user's next text.
        system: tuple of str, the texts before and after a system message, or None: the model takes
            none.
        gap: str, between `answer` and an answer that was given before, such as a space with which
            the model begins its answers.
        trim: tuple of str, the roles, of "system", "user" and "assistant", whose texts are written
            without the blanks at their ends.

    Example:

    >>> from keras_tfm.runtime import ChatTemplate
    >>> template = ChatTemplate("<user>", "<model>", "<end><user>", ("<system>", "<user>"))
    >>> template.prompt("Hi")
    '<user>Hi<model>'
    >>> template.prompt([
    ...     {"role": "system", "content": "Be brief."},
    ...     {"role": "user", "content": "Hi"},
    ...     {"role": "assistant", "content": "Hello."},
    ...     {"role": "user", "content": "Bye"},
    ... ])
    '<system>Be brief.<user>Hi<model>Hello.<end><user>Bye<model>'
    """

    first: str
    answer: str
    next: str
    system: tuple[str, str] | None = None
    gap: str = ""
    trim: tuple[str, ...] = ()

    def turn(self, text: str) -> str:
        """The text between the model's last answer and its next one, for a `Session`.

        Args:
            text: str, the user's next text.

        Raises:
            TypeError: `text` is not a str.
        """
        return f"{self.next}{self._write('user', text)}{self.answer}"

    def prompt(self, messages: str | Sequence[Message]) -> str:
        """The text that the model continues with its answer.

        Args:
            messages: str, the user's text; or, as in `transformers`, dictionaries with a "role" and
                a "content": optionally "system" first, then "user" and "assistant" in turn, and
                "user" last. A content is a str, or a list of `{"type": "text", "text": str}`.

        Raises:
            ValueError: the roles are others or in another order; the model takes no system message;
                a message has tool calls or media.
            TypeError: a message is not a dictionary of texts.
        """
        if isinstance(messages, str):
            return f"{self.first}{self._write('user', messages)}{self.answer}"
        texts = [self._content(message) for message in messages]
        roles = [str(message["role"]) for message in messages]
        begin = self.first
        if roles[:1] == ["system"]:
            if self.system is None:
                raise ValueError(NO_SYSTEM)
            begin = self.system[0] + texts.pop(0) + self.system[1]
        turns = roles[len(roles) - len(texts) :]
        if turns != ["user", "assistant"] * (len(turns) // 2) + ["user"]:
            raise ValueError(f"{ROLES}, got {', '.join(roles) or 'none'}")
        between = [self.answer + self.gap, self.next] * (len(texts) // 2) + [self.answer]
        return begin + "".join(x + y for x, y in zip(texts, between, strict=True))

    def _content(self, message: object) -> str:
        """The text of a message, as it is written."""
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise TypeError(
                f"a message must be a dictionary with role and content, got {message!r}"
            )
        for key in UNSUPPORTED:
            if message.get(key):
                raise ValueError(f"the chat template has no {key}, got {message[key]!r}")
        content = message["content"]
        if not isinstance(content, str | list | tuple) or content in ([], ()):
            raise TypeError(f"{CONTENT}, got {content!r}")
        texts = [content] if isinstance(content, str) else map(_part, content)
        return "".join(self._write(message["role"], text) for text in texts)

    def _write(self, role: str, text: object) -> str:
        return _text(text).strip() if role in self.trim else _text(text)


def _part(part: object) -> object:
    """The text of a part of a content."""
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise TypeError(f"{CONTENT}, got a part of the type {kind!r}")
    return part.get("text")


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"expected a text (str), got {type(text).__name__}")
    return text
