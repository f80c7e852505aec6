"""The settings of a folder's tokenizer: class, special tokens, added tokens."""

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from keras_tfm.checkpoints.config import Fields
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.tokenizers.tokenizer import refusing

# A `Tokenizer` of `tokenizers` or a `SentencePieceProcessor`, and a package that has no types.
Tokenizer: TypeAlias = Any
Package: TypeAlias = Any
# An `AddedToken` of `tokenizers`.
Token: TypeAlias = Any


# In the order in which transformers adds them.
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Of classes that write texts: their special tokens, where the settings name none.
SPECIAL_TOKENS: dict[str, dict[str, str]] = {
    "GPT2Tokenizer": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "GPTNeoXTokenizer": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "Qwen2Tokenizer": dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>"),
    "LlamaTokenizer": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "GemmaTokenizer": {
        "bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"
    },
}  # fmt: skip


class TokenizerSettings:
    """`tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, all optional.

    Args:
        folder: Path, the folder.
        fields: dict, the settings, if they are not in a folder.

    Attributes:
        folder: Path, the folder.
        fields: dict, the settings.
    """

    def __init__(self, folder: Path, fields: Fields | None = None):
        self.folder = folder
        if fields is not None:
            self.fields: Fields = fields
            return
        self.fields = self._read("tokenizer_config.json")
        if "added_tokens_decoder" not in self.fields:  # older folders
            self.fields = {**self.fields, **self._read("special_tokens_map.json")}

    @functools.cached_property
    def package(self) -> Package:
        """The package `tokenizers`."""
        return import_package("tokenizers")

    def get(self, name: str, default: object = None) -> Any:
        """The value of a setting."""
        return self.fields.get(name, default)

    @property
    def tokenizer_class(self) -> str | None:
        """The class of `transformers`, without "Fast", or None."""
        name = self.get("tokenizer_class")
        return None if name is None else str(name).removesuffix("Fast")

    def special_tokens(self, tokenizer_class: str | None) -> dict[str, str]:
        """The texts of the special tokens, with those of a class, by name such as "eos_token"."""
        known = SPECIAL_TOKENS.get(str(tokenizer_class), {})
        tokens = {f"{name}_token": x for name, x in known.items()} | self.fields
        return {
            name: str(x["content"] if isinstance(x, dict) else x)
            for name, x in tokens.items()
            if name.endswith("_token") and isinstance(x, str | dict)
        }

    def text(self, name: str, default: str) -> str:
        """The text of the special token `name`; older settings store a dictionary with it."""
        value = self.get(f"{name}_token")
        if isinstance(value, dict):
            value = value.get("content")
        return default if value is None else str(value)

    def add_tokens(
        self, tokenizer: Tokenizer, special: dict[str, str | None], more: Iterable[Token] = ()
    ) -> None:
        """Adds the tokens of the settings and the special tokens of a class, as transformers does.

        Args:
            tokenizer: `tokenizers.Tokenizer`.
            special: by name ("bos", "eos", "unk", "sep", "pad", "cls", "mask"), the special tokens
                of the class, which the settings may replace.
            more: further `tokenizers.AddedToken`.

        Raises:
            ValueError: a token gets another id than the settings say.
        """
        numbered = self._tokens_by_id()
        tokenizer.add_tokens(self._tokens(numbered, set(), special, more))
        for i, token in numbered.items():
            found = tokenizer.token_to_id(token.content)
            if found != i:
                raise ValueError(
                    f"{self.folder}: the token {token.content!r} must have the id {i}, as its "
                    f"settings say, got {found}"
                )

    def add_missing(self, tokenizer: Tokenizer, rows: int | None) -> None:
        """Adds what the tokenizer of a `tokenizer.json` lacks, as transformers does.

        Its own tokens keep their rules, such as a space that belongs to a mask, where the settings
        name them alone. A token gets the next id, whatever the settings say.

        Args:
            tokenizer: `tokenizers.Tokenizer`.
            rows: int or None, the number of ids of the model; a token beyond stays text.
        """
        present = {x.content for x in tokenizer.get_added_tokens_decoder().values()}
        tokens = self._tokens(self._tokens_by_id(), present, {})
        if not tokens:
            return
        size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        for token in tokens:
            is_new = tokenizer.token_to_id(token.content) is None
            if not is_new or rows is None or size < rows:
                tokenizer.add_tokens([token])
                size += is_new

    def _tokens(
        self,
        numbered: dict[int, Token],
        present: set[str],
        special: dict[str, str | None],
        more: Iterable[Token] = (),
    ) -> list[Token]:
        """Those with a number in its order, then named ones and others, but for `present` ones."""
        known = present | {token.content for token in numbered.values()}
        tokens = [numbered[i] for i in sorted(numbered)]
        for name in _SPECIAL:
            # A null in the settings means no such token.
            value = self.fields.get(f"{name}_token", special.get(name))
            token = self._token(value, special=True)
            if token is not None and token.content not in known:
                known.add(token.content)
                tokens.append(token)
        extra = [] if more else self.extra()
        return tokens + [token for token in (*more, *extra) if token.content not in known]

    def add_ends(self, tokenizer: Tokenizer, begin: str, end: str) -> None:
        """Adds a start and an end token to each text, where the settings ask for it."""
        first = f"{begin}:0 " if self.get("add_bos_token", False) else ""
        last = f" {end}:0" if self.get("add_eos_token", False) else ""
        tokens = [token for token, used in ((begin, first), (end, last)) if used]
        if tokens:
            tokenizer.post_processor = self.package.processors.TemplateProcessing(
                single=f"{first}$A:0{last}",
                pair=f"{first}$A:0{last} {first.replace(':0', ':1')}$B:1{last.replace(':0', ':1')}",
                special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens],
            )

    def add_segments(self, tokenizer: Tokenizer, first: str, last: str) -> None:
        """Puts BERT's tokens around a text or two: [CLS] A [SEP] of segment 0, B [SEP] of 1.

        Args:
            tokenizer: `tokenizers.Tokenizer`, changed in place.
            first, last: the class's "cls" and "sep", which the settings may replace.
        """
        first, last = self.text("cls", first), self.text("sep", last)
        tokenizer.post_processor = self.package.processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
        )

    def _tokens_by_id(self) -> dict[int, Token]:
        """The added tokens by their ids."""
        entries = self.get("added_tokens_decoder")
        with reading(self.folder / "tokenizer_config.json"):
            if entries is not None:
                return {int(i): self._token(x) for i, x in entries.items()}
        names = {self.text(name, "") for name in _SPECIAL} | {x.content for x in self.extra()}
        file = self.folder / "added_tokens.json"
        with reading(file):
            return {
                int(i): self.package.AddedToken(
                    token, normalized=token not in names, special=token in names
                )
                for token, i in self._read(file.name).items()
            }

    def extra(self) -> list[Token]:
        """Special tokens without a name."""
        extra = self.get("extra_special_tokens") or self.get("additional_special_tokens") or []
        values = extra.values() if isinstance(extra, dict) else extra
        return [self._token(value, special=True) for value in values]

    def _token(self, value: object, special: bool = False) -> Token:
        """A token of the settings, a text or a dictionary, as `tokenizers.AddedToken`."""
        if value is None:
            return None
        if isinstance(value, dict):
            known = ("single_word", "lstrip", "rstrip", "normalized", "special")
            options = {key: bool(value[key]) for key in known if key in value}
            options["special"] = options.get("special", False) or special
            return self.package.AddedToken(str(value["content"]), **options)
        return self.package.AddedToken(str(value), special=special)

    def _read(self, name: str) -> Fields:
        file = self.folder / name
        return dict(read_json(file)) if file.is_file() else {}


def reading(file: Path) -> AbstractContextManager[None]:
    """Converts the errors of a package to a ValueError that names the file."""
    return refusing(f"{file} cannot be read")


def import_package(package: str) -> Package:
    """Imports a package of the extra `text`; the error names the extra to install."""
    return optional_package(package, f"this tokenizer needs {package}", package, extra="text")
