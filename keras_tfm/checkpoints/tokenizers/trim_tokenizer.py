"""A tokenizer with some of its tokens only, which writes the same tokens.

It rewrites the JSON of `tokenizers`. Why texts of kept tokens have the same tokens afterwards:

- WordPiece takes the longest piece at each place: a kept piece that was the longest one still is.
- Unigram takes the sequence with the largest sum of scores: a kept sequence that was the best one
  still is. A character without a piece has the score of the worst piece minus 10, so the worst
  piece is kept.
- BPE merges the pair of the lowest rank. In a text, a token is built by the same merges as from its
  own characters alone, since no merge crosses its ends. So these merges, and the tokens that
  they build on the way, are kept for each token; each of them still has the lowest rank when it
  had it among all.

Example:

>>> from tokenizers import Tokenizer, models
>>> from keras_tfm.checkpoints.tokenizers.trim_tokenizer import TokenizerParts
>>> vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5}
>>> merges = [("b", "c"), ("a", "b"), ("a", "bc")]
>>> parts = TokenizerParts(Tokenizer(models.BPE(vocabulary, merges)))
>>> sorted(parts.closure({4}))  # "abc" is "a" and "bc"
[0, 1, 2, 4, 5]
>>> parts.trim([0, 1, 2, 4, 5]).encode("abcb").ids
[3, 1]
"""

import functools
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from keras_tfm.checkpoints.tokenizers.tokenizer_settings import Tokenizer, import_package

_BYTE = re.compile("<0x[0-9A-F]{2}>")
# Numbers of ids in the JSON of post-processors and of padding.
_ID, _IDS = "pad_id", "ids"


class TokenizerParts:
    """A `tokenizers.Tokenizer` as its JSON.

    Attributes:
        ids: dict from each token to its id, added tokens included.
        kind: str, "BPE", "WordPiece", "Unigram" or "WordLevel".
    """

    def __init__(self, tokenizer: Tokenizer):
        package = import_package("tokenizers")
        if not isinstance(tokenizer, package.Tokenizer):
            raise TypeError(
                "tokenizer must be a tokenizers.Tokenizer, as load_tokenizer returns, got "
                f"{type(tokenizer).__name__}"
            )
        self._package, self._tokenizer = package, tokenizer
        self._content = json.loads(tokenizer.to_str())
        self._model: dict[str, Any] = self._content["model"]
        self.kind = str(self._model.get("type", "BPE"))
        if self.kind not in ("BPE", "WordPiece", "Unigram", "WordLevel"):
            raise ValueError(
                f"tokenizer must be of BPE, WordPiece, Unigram or WordLevel, got {self.kind}"
            )
        if self._model.get("continuing_subword_prefix") and self.kind == "BPE":
            prefix = self._model["continuing_subword_prefix"]
            raise ValueError(f"a BPE tokenizer with a continuing_subword_prefix, {prefix!r}")
        self.ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        vocabulary = self._model["vocab"]
        own = (x for x, _ in vocabulary) if self.kind == "Unigram" else vocabulary
        self._own = {token: self.ids[token] for token in own}

    def special_ids(self) -> set[int]:
        """The ids that are always kept: special tokens, bytes, what stands for unknown text."""
        kept = {x["id"] for x in self._content["added_tokens"] if x["special"]}
        if isinstance(self._model.get("unk_token"), str) and self._model["unk_token"] in self.ids:
            kept.add(self.ids[self._model["unk_token"]])
        if self.kind == "Unigram":
            vocabulary = self._model["vocab"]
            if self._model.get("unk_id") is not None:
                kept.add(self._model["unk_id"])
            kept.add(min(range(len(vocabulary)), key=lambda i: vocabulary[i][1]))
        if self._model.get("byte_fallback"):
            kept |= {i for token, i in self._own.items() if _BYTE.fullmatch(token)}
        if self._parts_of("ByteLevel"):
            alphabet = self._package.pre_tokenizers.ByteLevel.alphabet()
            kept |= {self._own[x] for x in alphabet if x in self._own}
        for part in self._parts_of("TemplateProcessing"):
            kept |= {i for x in part["special_tokens"].values() for i in x["ids"]}
        for part in (*self._parts_of("BertProcessing"), *self._parts_of("RobertaProcessing")):
            kept |= {part[x][1] for x in ("sep", "cls")}
        return kept

    def ids_of(self, texts: Iterable[str]) -> set[int]:
        """The ids in texts, with the tokens that the tokenizer adds around each."""
        kept: set[int] = set()
        unknown = self.ids.get(str(self._model.get("unk_token")))
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be str, got {type(text).__name__}")
            found = self._tokenizer.encode(text).ids
            kept.update(found)
            if self.kind == "WordPiece" and unknown in found:
                kept |= self._beginnings(text)
        return kept

    def _beginnings(self, text: str) -> set[int]:
        """The pieces of the words of a text up to where no piece matches.

        Such a word is unknown as a whole. Without these pieces, other ones might match further.
        """
        normalizer, words = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = text if normalizer is None else normalizer.normalize_str(text)
        split = [(text, None)] if words is None else words.pre_tokenize_str(text)
        prefix, kept = self._model["continuing_subword_prefix"], set()
        for word, _ in split:
            start = 0
            while start < len(word):
                first = prefix if start else ""
                ends = range(len(word), start, -1)
                end = next((x for x in ends if first + word[start:x] in self._own), None)
                if end is None:
                    break
                kept.add(self._own[first + word[start:end]])
                start = end
        return kept

    def closure(self, ids: Iterable[int]) -> set[int]:
        """The ids, and those of the tokens that BPE builds on the way to theirs."""
        kept = set(ids)
        if self.kind == "BPE":
            for pair in self._merges_of(kept):
                kept |= {self._own[x] for x in (*pair, "".join(pair))}
        return kept

    def trim(self, kept: Sequence[int]) -> Tokenizer:
        """The tokenizer with the ids `kept`, which become 0, 1, ... in this order.

        Args:
            kept: ascending, with their closure.

        Raises:
            ValueError: a token would have another id.
        """
        new = {old: i for i, old in enumerate(kept)}
        model = {**self._model}
        if self.kind == "Unigram":
            model["vocab"] = [x for i, x in enumerate(model["vocab"]) if i in new]
            if model.get("unk_id") is not None:
                model["unk_id"] = new[model["unk_id"]]
        else:
            model["vocab"] = {token: new[i] for token, i in self._own.items() if i in new}
        if self.kind == "BPE":
            model["merges"] = [list(pair) for pair in self._merges_of(kept)]
        added = [{**x, "id": new[x["id"]]} for x in self._content["added_tokens"] if x["id"] in new]
        numbered = ("post_processor", "padding")
        content = {
            **self._content,
            **{key: _renumber(self._content.get(key), new) for key in numbered},
            "model": model,
            "added_tokens": added,
        }
        result = self._package.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
        found = result.get_vocab(with_added_tokens=True)
        for token, i in self.ids.items():
            if i in new and found.get(token) != new[i]:
                raise ValueError(
                    f"the tokenizer cannot be rewritten: {token!r} must have the id {new[i]}, got "
                    f"{found.get(token)}"
                )
        return result

    def _merges_of(self, kept: Iterable[int]) -> list[tuple[str, ...]]:
        """The merges that build tokens from their characters, by rank."""
        suffix = self._model.get("end_of_word_suffix") or ""
        wanted, used = set(kept), set[tuple[str, ...]]()
        for token, i in self._own.items():
            if i in wanted:
                used.update(_derivation(token, self._ranks, suffix))
        return sorted(used, key=self._ranks.__getitem__)

    @functools.cached_property
    def _ranks(self) -> dict[tuple[str, ...], int]:
        """The place of each merge."""
        merges = self._model["merges"]
        pairs = (x.split(" ") if isinstance(x, str) else x for x in merges)
        return {tuple(pair): i for i, pair in enumerate(pairs)}

    def _parts_of(self, kind: str) -> list[dict[str, Any]]:
        """The parts of a type, such as "ByteLevel", anywhere around the model."""
        found, waiting = [], [x for key, x in self._content.items() if key != "model"]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if part.get("type") == kind:
                    found.append(part)
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        return found


def _derivation(
    token: str, ranks: dict[tuple[str, ...], int], suffix: str
) -> list[tuple[str, ...]]:
    """The merges that make a token of its characters; none if they make several tokens."""
    text = token.removesuffix(suffix) if suffix else token
    symbols = list(text)
    if symbols and text != token:
        symbols[-1] += suffix
    merges = list[tuple[str, ...]]()
    while len(symbols) > 1:
        pairs = list(itertools.pairwise(symbols))
        place = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], len(ranks)))
        if pairs[place] not in ranks:
            return []
        merges.append(pairs[place])
        symbols[place : place + 2] = ["".join(pairs[place])]
    return merges


def _renumber(part: Any, new: dict[int, int]) -> Any:
    """A part of the JSON with new ids: of templates, of [token, id] pairs, of padding."""
    if isinstance(part, list):
        return [_renumber(x, new) for x in part]
    if not isinstance(part, dict):
        return part
    result: dict[str, Any] = {}
    for key, x in part.items():
        if key == _IDS:
            result[key] = [new[i] for i in x]
        elif key == _ID:
            result[key] = new.get(x, 0)
        elif key in ("sep", "cls") and isinstance(x, list) and len(x) == 2:
            result[key] = [x[0], new[x[1]]]
        else:
            result[key] = _renumber(x, new)
    return result
