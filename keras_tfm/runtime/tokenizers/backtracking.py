"""How long a regular expression may take: tokenizers bring them, in other people's files.

Engines that backtrack, Oniguruma in `tokenizers` and JavaScript's, take exponential time for a
repeated group that can match a text in several ways, and n^k steps where k repetitions give back
what they took. A pattern may have one of the latter in each alternative, as the published ones of
GPT-2, Llama 3, Qwen, DeepSeek and o200k do. keras_tfm/web/runtime/tokenizer_check.js has the same
rules.
"""

import re
from typing import NamedTuple

# Groups and atoms with this number of repetitions count as unbounded.
_MANY = 16
_LONGEST, _DEEPEST = 20_000, 40
_UNBALANCED = "its brackets are not closed, or not opened"


class _Repeated(NamedTuple):
    """The numbers of repetitions of a quantifier."""

    least: int
    most: float


class _Parser:
    """Reads a pattern and adds up what its alternatives may cost."""

    def __init__(self, pattern: str):
        self.pattern, self.at = pattern, 0

    def refuse(self, reason: str) -> None:
        excerpt = self.pattern if len(self.pattern) <= 60 else f"{self.pattern[:60]}..."
        raise ValueError(f"the regular expression {excerpt!r} may take forever: {reason}")

    def alternatives(self, depth: int = 0) -> list[list["_Item"]]:
        if depth > _DEEPEST:
            self.refuse(f"its groups are nested more than {_DEEPEST} deep")
        found: list[list[_Item]] = [[]]
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char == ")":
                break
            if char == "|":
                self.at += 1
                found.append([])
            else:
                found[-1].append(self.item(depth))
        return found

    def item(self, depth: int) -> "_Item":
        char, begin = self.pattern[self.at], self.at
        inside: list[list[_Item]] = []
        looks = False
        if char == "(":
            looks = self.group_begins()
            inside = self.alternatives(depth + 1)
            if self.at >= len(self.pattern):
                self.refuse(_UNBALANCED)
            self.at += 1
        elif char == "[":
            self.skip_class()
        elif char == "\\":
            self.skip_escape()
        else:
            self.at += 1
            looks = char in "^$"
        text = self.pattern[begin : self.at]
        looks = looks or text in ("\\b", "\\B", "\\A", "\\z", "\\Z", "\\G")
        return _Item(text, inside, looks, self.quantifier())

    def group_begins(self) -> bool:
        """Reads how a group starts: whether it only looks around.

        The flag x is unknown: in its patterns, spaces and comments match nothing.
        """
        rest = self.pattern[self.at :]
        found = re.match(r"\((\?(<?[=!]|[:>]|<[A-Za-z_]\w*>|[a-wyz-]*:))?", rest)
        assert found is not None
        if rest.startswith("(?") and found[1] is None:
            flags = re.match(r"\(\?[a-wyz-]*(?=\))", rest)
            if flags is None:
                self.refuse(f"{rest[:5]!r} is unknown here")
            else:
                self.at += len(flags[0])
                return False
        self.at += len(found[0])
        return bool(found[2]) and found[2] in ("=", "!", "<=", "<!")

    def skip_class(self) -> None:
        depth, first = 0, True
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char == "\\":
                self.at += 1
            elif char == "[" and (depth == 0 or self.pattern.find("]", self.at) >= 0):
                depth, first = depth + 1, True
                if self.pattern[self.at + 1 : self.at + 2] == "^":
                    self.at += 1
                self.at += 1
                continue
            elif char == "]" and not first:
                depth -= 1
            self.at, first = self.at + 1, False
            if depth == 0:
                return
        self.refuse(_UNBALANCED)

    def skip_escape(self) -> None:
        found = re.match(r"\\(?:[pPxu]\{[^}]*\}|x\w{2}|u\w{4}|.)", self.pattern[self.at :], re.S)
        if found is None:
            self.refuse(_UNBALANCED)
        elif found[0][1] in "123456789kg":
            self.refuse(f"it refers to what it has matched, {found[0]!r}")
        else:
            self.at += len(found[0])

    def quantifier(self) -> _Repeated:
        rest = self.pattern[self.at :]
        found = re.match(r"(?:[*+?]|\{(\d*)(,?)(\d*)\})[?+]?", rest)
        if found is None or rest.startswith(("{}", "{,}")):
            return _Repeated(1, 1)
        self.at += len(found[0])
        if re.match(r"[*+?]|\{\d*,?\d*\}", self.pattern[self.at :]):
            self.refuse("it repeats a repetition")
        if found[0][0] in "*+?":
            return {"*": _Repeated(0, 1e9), "+": _Repeated(1, 1e9), "?": _Repeated(0, 1)}[
                found[0][0]
            ]
        least = int(found[1][:9] or 0)
        most = int(found[3][:9]) if found[3] else 1e9 if found[2] else least
        return _Repeated(least, most)


class _Item(NamedTuple):
    """An atom or a group with its quantifier.

    Attributes:
        text: the atom or group as it is written.
        inside: the alternatives of a group, each a list of items; empty for an atom.
        looks: whether it matches a place and no text.
        times: the numbers of repetitions.
    """

    text: str
    inside: list[list["_Item"]]
    looks: bool
    times: _Repeated

    @property
    def varies(self) -> bool:
        """Whether it can match a text in several ways, or texts of several lengths."""
        if self.times.least != self.times.most:
            return True
        first = [branch[0].text if branch else "" for branch in self.inside]
        literal = all(len(x) == 1 and x not in ".[(^$" for x in first)
        # "a" and "A" may match the same text, as may "\xdf" and "ss": there are flags.
        distinct = literal and len({x.casefold()[0] for x in first}) == len(first)
        if len(self.inside) > 1 and not distinct:
            return True
        return any(x.varies for branch in self.inside for x in branch)


def _cost(parser: _Parser, items: list[_Item], may_fail: bool) -> int:
    """The number of repetitions in a sequence that may give back what they took.

    `may_fail`: whether something that follows it may not match.
    """
    total = 0
    for item in reversed(items):
        least, most = item.times
        if most > 1 and any(x.varies for branch in item.inside for x in branch):
            parser.refuse(f"it repeats {item.text[:40]!r}, which can match in several ways")
        inside = item._replace(times=_Repeated(1, 1))
        if most > 1 and inside.varies:
            parser.refuse(f"it repeats {item.text[:40]!r}, which can match in several ways")
        after = may_fail or item.looks
        total += max((_cost(parser, branch, after) for branch in item.inside), default=0)
        total += least != most and most >= _MANY and may_fail
        may_fail = may_fail or item.looks or least > 0
    return total


def check_regex(pattern: str) -> None:
    """Raises ValueError if a pattern could take more than some n^2 steps for n characters.

    >>> from keras_tfm.runtime.tokenizers.backtracking import check_regex
    >>> check_regex(r"'s|'t| ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+")
    >>> check_regex("(a+)+b")
    Traceback (most recent call last):
    ValueError: the regular expression '(a+)+b' may take forever: it repeats '(a+)', which can \
match in several ways
    """
    parser, alternatives = _parse(pattern)
    for items in alternatives:
        if _cost(parser, items, may_fail=False) > 1:
            parser.refuse("several of its repetitions give back what they took")


def least_length(pattern: str) -> int:
    """The least number of characters that a pattern matches, at most 1 for each of its atoms.

    >>> from keras_tfm.runtime.tokenizers.backtracking import least_length
    >>> least_length(" {2,}"), least_length("a*"), least_length("ab|")
    (2, 0, 0)
    """
    return _least(_parse(pattern)[1])


def _parse(pattern: str) -> tuple[_Parser, list[list[_Item]]]:
    parser = _Parser(pattern)
    if len(pattern) > _LONGEST:
        parser.refuse(f"it has {len(pattern)} characters, more than {_LONGEST}")
    alternatives = parser.alternatives()
    if parser.at < len(pattern):
        parser.refuse(_UNBALANCED)
    return parser, alternatives


def _least(alternatives: list[list[_Item]]) -> int:
    def of_item(item: _Item) -> int:
        once = _least(item.inside) if item.inside else 1
        return 0 if item.looks else item.times.least * once

    return min(sum(map(of_item, items)) for items in alternatives)
