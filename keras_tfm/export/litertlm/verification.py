"""Verifies a .litertlm file: its signatures against the model, and the stock runtime's answers."""

import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.export.litertlm.package import Chat, Picture, missing_litert_lm
from keras_tfm.export.litertlm.signatures import draft_count
from keras_tfm.export.litertlm.vision import Vision
from keras_tfm.export.signatures.request import Request
from keras_tfm.export.verification.checks import Check, check, difference, top_1_gaps
from keras_tfm.export.verification.comparison import ModelOutputs
from keras_tfm.export.verification.verify import (
    EXACT,
    STEP,
    Verification,
    VerificationError,
    verify,
)
from keras_tfm.matmul_precision import full_precision
from keras_tfm.runtime.decoding.special_ids import REAL_PAD, TokenRows
from keras_tfm.runtime.inspection.subprocesses import run_module
from keras_tfm.runtime.manifest.records import Json
from keras_tfm.runtime.manifest.storage import import_litert
from keras_tfm.runtime.media.decoded_picture import import_pillow
from keras_tfm.runtime.model import Model, load
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

# The maximum number of tokens to generate after a prompt.
_TOKENS = 32
# The number of pictures that the runtime is asked about.
_PICTURES = 4
# The name of the stock runtime's check.
_NAME = "LiteRT-LM"
# The number of steps that read a padding id, or the token behind one.
_PADDED_STEPS = 5


class _Answer(NamedTuple):
    """A prompt and its greedy answer by the signatures of the file.

    Attributes:
        text: str, the prompt.
        others: dict of arrays, the model's inputs beside the text.
        ids: its ids, the start token included, and the conversation around it.
        tokens: the tokens of the answer, without the end.
        logits: (T, V), those that the tokens, and the end, were chosen by.
    """

    text: str
    others: dict[str, np.ndarray]
    ids: list[int]
    tokens: list[int]
    logits: np.ndarray


class Pictured(NamedTuple):
    """A model that reads pictures, and how they stand in conversations.

    Attributes:
        vision: `Vision` of the model.
        picture: `Picture` of the file.
        chat: `Chat`, the format of conversations.
    """

    vision: Vision
    picture: Picture
    chat: Chat

    def ids(self, messages: Sequence[Json], tokenizer: Tokenizer, request: Request) -> list[int]:
        """The ids of a conversation, with a placeholder for each feature of its picture."""
        image = self.chat.image
        place = self.picture.prefix + image * self.vision.features + self.picture.suffix
        text = self.chat.prompt(messages).replace(image, place)
        return _ids_of(text, tokenizer, request)

    def inputs(self, pixels: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The model's inputs beside a text, by default without a picture."""
        if pixels is None:
            pixels = np.zeros((*self.vision.size, 3), "uint8")
        return {self.vision.pixels: pixels[np.newaxis]}


def check_runtime() -> None:
    """Raises unless the stock runtime is installed. Does not load it."""
    if importlib.util.find_spec("litert_lm") is None:
        raise missing_litert_lm("litert_lm")


@full_precision()
def verify_litertlm(
    model: keras.Model,
    path: Path,
    signatures: Path,
    request: Request,
    tokenizer: Tokenizer,
    chat: Chat | None,
    tolerance: float | None,
    adapters: tuple[Path, Path] | None = None,
    pictured: Pictured | None = None,
    drafting: Path | None = None,
) -> Verification:
    """Compares a .litertlm file with the model.

    The logits of its signatures are compared as `verify` does; if the padding id may be a token,
    also those of steps that read it. The stock runtime, in a separate process, must generate the
    text that they generate greedily, whose tokens must be those of the model, as far as the
    rounding of the weights allows.

    Args:
        model: functional `keras.Model` in float32.
        path: Path of the .litertlm file.
        signatures: Path of its .tflite file, with a manifest and the model's names of inputs.
        request: `Request`, the export.
        tokenizer: `Tokenizer`, the one in the file.
        chat: `Chat` or None, the format of conversations.
        tolerance: as in `verify`.
        adapters: the model's adapter, as a file for our runtime and as one for LiteRT-LM.
        pictured: `Pictured` of a model that reads pictures: the runtime must also answer questions
            about some with the text of the signatures.
        drafting: Path of the .tflite file with the signature "verify", of a model with draft heads.

    Raises:
        VerificationError: something differs.
        RuntimeError: the runtime cannot run the file; the error has its message.
    """
    own, stock = (None, None) if adapters is None else adapters
    verification = verify(model, signatures, None, tolerance, adapter=own)
    _log.info("running %s with LiteRT-LM", path.name)
    prompts = _prompts(request, tokenizer, _lengths(request))
    prompts += _padded_prompts(request, tokenizer, [text for text, _ in prompts])
    decode = next(x for x in verification.checks if x.signature == "decode")
    with load(signatures, adapter=own) as file:

        def answer_to(text: str, ids: list[int], pixels: np.ndarray | None = None) -> _Answer:
            others = {} if pictured is None else pictured.inputs(pixels)
            return _answer(file, request, text, others, ids)

        answers = [answer_to(*x) for x in prompts]
        about = []
        if pictured is not None:
            for text, pixels in _questions(pictured, prompts):
                ids = pictured.ids([_question(text)], tokenizer, request)
                if len(ids) < _longest(request):
                    about.append(answer_to(text, ids, pixels))
        if _may_be_token(request):
            verification.checks.append(_padded_steps(model, request, file, decode))
    if drafting is not None:
        verification.checks.append(_verified_drafts(model, request, drafting, decode))
    conversations = [] if chat is None else _conversations(chat)
    drafts = draft_count(model)
    pictures = []
    for i, x in enumerate(about):
        ((pixels,),) = x.others.values()
        picture = str(path.with_name(f"picture_{i}.png"))
        import_pillow().Image.fromarray(pixels).save(picture)
        message = _question(x.text, path=picture)
        pictures.append({"message": message, "tokens": x.tokens, "count": len(x.logits)})
    found = run_module(
        "running LiteRT-LM",
        "keras_tfm.runtime.inspection.litertlm_process",
        str(path),
        given={
            "prompts": [
                {"text": x.text, "tokens": x.tokens, "count": max(1, len(x.logits))}
                for x in answers
            ],
            "pictures": pictures,
            "conversations": conversations,
            "drafts": drafts,
            "adapter": None if stock is None else str(stock),
        },
    )
    # It runs the same graph: only the rounding of activations differs. Among many logits, the
    # largest errors are six times as large as usual, and those of two tokens add up.
    allowed = 12 * (EXACT + STEP[verification.quantization]) * decode.scale
    failures = []
    for x, answer in zip(answers, found["prompts"], strict=True):
        ids = x.ids if request.start_id is None else x.ids[1:]
        if answer["ids"] != ids:
            failures.append(
                f"LiteRT-LM reads {x.text[:40]!r} as the ids {answer['ids'][:8]}, "
                f"the tokenizer as {ids[:8]}"
            )
            continue
        texts = answer["expected"]
        made = [("", answer["text"], texts[-1:])]
        if drafts:
            found_text, last = answer["drafted"], texts[-1].rstrip("\ufffd")
            if len(x.ids) + len(x.tokens) == _longest(request) and found_text.startswith(last):
                found_text = texts[-1]  # the last step may make more
            made.append((" and drafts", found_text, texts[1:]))
        failures += [
            f"LiteRT-LM continues a prompt of {len(x.ids)} tokens{how} with {text[:40]!r}, "
            f"expected {texts[-1][:40]!r}"
            for how, text, wanted in made
            if text not in wanted and not _is_close(x, text, texts, allowed)
        ]
    for x, answered in zip(about, found["pictures"], strict=True):
        text, texts = answered["text"], answered["expected"]
        if text != texts[-1] and not _is_close(x, text, texts, allowed):
            failures.append(
                f"LiteRT-LM answers {x.text[:40]!r} about a picture with {text[:40]!r}, expected "
                f"{texts[-1][:40]!r}"
            )
    for conversation, text in zip(conversations, found["conversations"], strict=True):
        assert chat is not None
        wanted = chat.prompt(**conversation)
        if not text and wanted:  # the runtime logs no reason
            failures.append(
                "LiteRT-LM's Jinja cannot run the chat template on a conversation that begins with "
                f"{wanted[:40]!r}: checkpoints.load_chat_template makes strings of it"
            )
        elif text != wanted:
            failures.append(f"LiteRT-LM writes a conversation as {text!r}, expected {wanted!r}")
    row = _against_model(model, request, answers, decode, [x["ms"] for x in found["prompts"]])
    verification.checks.append(row)
    if about:
        ms_of_pictures = [x["ms"] for x in found["pictures"]]
        row = _against_model(model, request, about, decode, ms_of_pictures)
        verification.checks.append(replace(row, signature=f"{_NAME} pictures"))
    if drafts:
        ms = float(np.median([x["drafted_ms"] for x in found["prompts"]]))
        verification.checks.append(replace(row, signature=f"{_NAME} drafts", ms=ms))
    failures = [*verification.failures, *failures]
    if failures:
        raise VerificationError(f"the file differs from {model.name}: {failures[0]}", verification)
    return verification


def _lengths(request: Request) -> list[int]:
    """Lengths of prompts: one token, around the shortest prefill, and near the end of the cache."""
    shortest, longest = min(request.prompt_lengths), _longest(request)
    lengths = {1, shortest - 1, shortest, shortest + 1, shortest + 2, longest - 2}
    return sorted(n for n in lengths if 0 < n < longest)


def _longest(request: Request) -> int:
    """The maximum number of tokens of a conversation in the runtime."""
    assert request.max_length is not None
    return request.max_length - draft_count(request.model)


def _prompts(
    request: Request, tokenizer: Tokenizer, lengths: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Texts with these numbers of tokens, or slightly fewer, and their ids with the start token."""
    return texts_of_lengths(tokenizer, lambda text: _ids_of(text, tokenizer, request), lengths)


def _may_be_token(request: Request) -> bool:
    """Whether the model masks a padding id, but not where it is a token between others."""
    return request.interface.inputs[request.target].padding is not None


def _padded_prompts(
    request: Request, tokenizer: Tokenizer, texts: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Texts in which the padding id is a token, between others and at the end, and their ids.

    Empty if the id is only padding, or if the tokenizer does not read it in a text.
    """
    pad = tokenizer.token(request.pad_id)
    if not _may_be_token(request) or not pad:
        return []
    text = next(filter(None, texts), "a")
    made = [f"{text}{pad}{text}", f"{text}{pad}"]
    prompts = [(text, _ids_of(text, tokenizer, request)) for text in made]
    return [x for x in prompts if request.pad_id in x[1] and len(x[1]) < _longest(request)]


def _padded_row(request: Request, length: int) -> np.ndarray:
    """Random ids (length,), every other one the padding id if it may be a token."""
    known = request.interface.inputs[request.target]
    size = known.vocabulary_size or request.model.outputs[0].shape[-1]
    others = np.setdiff1d(np.arange(size), [request.pad_id, *request.end_ids])
    row = np.random.default_rng(0).choice(others, length)
    if _may_be_token(request):
        row[1::2] = request.pad_id
    return row


def _logits_of(model: keras.Model, request: Request, ids: np.ndarray) -> np.ndarray:
    """The model's logits (T, V) after each of the ids (T,), none of which is padding."""
    inputs = {request.target: _as_tokens(request, ids[np.newaxis])}
    logits: np.ndarray = ModelOutputs(model).logits(inputs)[0]
    return logits


def _as_tokens(request: Request, ids: np.ndarray) -> np.ndarray:
    """Ids for a full pass, which reads a padding id that may be a token as one, as a step does."""
    if _may_be_token(request):
        ids = np.where(ids == request.pad_id, REAL_PAD, ids)
    return ids.astype("int32")


def _padded_steps(model: keras.Model, request: Request, file: Model, decode: Check) -> Check:
    """The check of a prompt with padding ids, and of steps that read them as generated tokens."""
    prompt = min(min(request.prompt_lengths) + 2, _longest(request) - 1) // 2 * 2 or 1
    row = _padded_row(request, min(prompt + _PADDED_STEPS, _longest(request)))
    logits: list[np.ndarray] = []

    def choose(x: np.ndarray) -> np.ndarray:
        logits.append(x[0])
        # Padding ids in turn with others: an end token that is one ends the answer.
        return row[prompt - 1 + len(logits) :][:1]

    begun = time.perf_counter()
    for _ in file.stream({request.target: TokenRows([row[:prompt].tolist()])}, choose):
        if prompt + len(logits) == len(row):
            break
    ms = 1e3 * (time.perf_counter() - begun) / len(logits)
    full = _logits_of(model, request, row)[prompt - 1 :][: len(logits)]
    return _check_logits("padding id", np.stack(logits), full, ms, decode)


def _verified_drafts(model: keras.Model, request: Request, drafting: Path, decode: Check) -> Check:
    """The check of the logits of "verify", of which the first draft may be the padding id."""
    interpreter = import_litert("interpreter").Interpreter(str(drafting))
    verify_drafts = interpreter.get_signature_runner("verify")
    row = _padded_row(request, draft_count(model) + 1)
    given = {
        name: np.zeros(x["shape"], x["dtype"])
        for name, x in verify_drafts.get_input_details().items()
    }
    given["embeddings"][0, :, 0] = row
    given["input_pos"][:] = np.arange(len(row))
    begun = time.perf_counter()
    logits = verify_drafts(**given)["logits"][0]
    ms = 1e3 * (time.perf_counter() - begun)
    return _check_logits("verify", logits, _logits_of(model, request, row), ms, decode)


def _check_logits(
    name: str, found: np.ndarray, full: np.ndarray, ms: float, decode: Check
) -> Check:
    """The check of logits (T, V) of a row, with a tolerance by that of "decode"."""
    errors, gaps = difference(found, full), top_1_gaps(found, full)
    result = check(name, 1, [errors], [full.ravel()], [gaps], [ms])
    result.tolerance = 2 * decode.tolerance  # of few logits, the error is more a matter of chance
    return result


def _ids_of(text: str, tokenizer: Tokenizer, request: Request) -> list[int]:
    """The ids of a text, with the start token."""
    start = [] if request.start_id is None else [request.start_id]
    ids = tokenizer.encode_prompt(text, request.end_ids)
    return start + (ids[1:] if start and ids[:1] == start else ids)


def _questions(
    pictured: Pictured, prompts: Sequence[tuple[str, list[int]]]
) -> list[tuple[str, np.ndarray]]:
    """Texts, and the pixels of a picture of the model's size for each."""
    random = np.random.default_rng(0)
    height, width = pictured.vision.size
    result = []
    for i, text in enumerate([text for text, _ in prompts][:_PICTURES]):
        # Blocks of colour, since features of fine noise are alike.
        rows, columns = -(-height // (2 + i)), -(-width // (3 + i))
        blocks = random.integers(0, 256, (2 + i, 3 + i, 3), "uint8")
        pixels = blocks.repeat(rows, 0).repeat(columns, 1)[:height, :width]
        result.append((text, pixels))
    return result


def _question(text: str, **picture: str) -> Json:
    """A message with a picture and a text."""
    return {"role": "user", "content": [{"type": "image", **picture}, _text(text)]}


def texts_of_lengths(
    tokenizer: Tokenizer, ids_of: Callable[[str], list[int]], lengths: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Random texts with these numbers of tokens, ascending, or slightly fewer, and their ids."""
    random = np.random.default_rng(0)
    some = random.permutation(tokenizer.size)[:1000].tolist()
    pieces = [text for text in (tokenizer.decode([i]) for i in some) if text.isprintable()]
    pieces = [text for text in pieces if text.strip() and "\ufffd" not in text] or ["a"]
    text = ""
    result: list[tuple[str, list[int]]] = []
    for length in lengths:
        longer: str | None = text
        while longer is not None and len(ids_of(longer)) < length:
            text, chosen = longer, random.permutation(len(pieces))[:20]
            candidates = [text + space + pieces[i] for i in chosen for space in (" ", "")]
            counted = ((x, len(ids_of(x))) for x in candidates)
            fitting = (x for x, count in counted if len(ids_of(text)) < count <= length)
            longer = next(fitting, None)
        text = text if longer is None else longer
        ids = ids_of(text)
        if ids and ids not in [x for _, x in result]:
            result.append((text, ids))
    return result


def _answer(
    file: Model, request: Request, text: str, others: dict[str, np.ndarray], ids: list[int]
) -> _Answer:
    """The greedy answer of the file's signatures."""
    logits: list[np.ndarray] = []

    def choose(x: np.ndarray) -> np.ndarray:
        logits.append(x[0])
        return np.argmax(x, axis=-1)

    tokens = []
    known = request.interface.inputs[request.target].placeholder
    for chosen in file.stream({**others, request.target: TokenRows([ids])}, choose):
        if chosen[0] in request.end_ids:
            break
        tokens.append(int(chosen[0]))
        if len(tokens) == _TOKENS or len(ids) + len(tokens) == _longest(request):
            break
        if known is not None and tokens[-1] == known.token_id:  # which is no text
            break
    return _Answer(text, others, ids, tokens, np.stack(logits))


def _is_close(expected: _Answer, text: str, texts: Sequence[str], allowed: float) -> bool:
    """Whether the runtime's text is the expected one up to a step whose best tokens are close.

    Args:
        expected: the answer of the signatures.
        text: the runtime's.
        texts: those of the first 0, 1, 2... tokens of the answer.
        allowed: the difference of logits within which either token may be chosen.
    """
    same = max(n for n, x in enumerate(texts) if text.startswith(x))
    # A character may have up to four tokens, and an incomplete one is shown differently.
    steps = expected.logits[same : same + 4]
    best = np.sort(steps, axis=-1)[:, -2:]
    return bool(len(best)) and float(np.min(best[:, 1] - best[:, 0])) <= allowed


def _against_model(
    model: keras.Model,
    request: Request,
    answers: Sequence[_Answer],
    decode: Check,
    ms: list[float],
) -> Check:
    """The check of the generated tokens: where they are not the model's, how much it prefers its.

    `decode`: the check whose tolerance is used; `ms`: milliseconds per token of the runtime.
    """
    wanted, gaps = [], []
    is_hidden = request.masked_target and not _may_be_token(request)
    pads = [request.pad_id] if is_hidden else []
    for x in answers:
        # Keras hides such a padding id, also a generated one; the file takes it for a token.
        count = next((n for n, token in enumerate(x.tokens) if token in pads), len(x.logits))
        read = [*x.ids, *x.tokens][: len(x.ids) + len(x.logits) - 1]
        inputs = {**x.others, request.target: _as_tokens(request, np.array([read]))}
        full = ModelOutputs(model).logits(inputs)[0, len(x.ids) - 1 :][:count]
        wanted.append(full.ravel())
        gaps.append(top_1_gaps(x.logits[:count], full))
    result = check(_NAME, len(answers), gaps, wanted, gaps, ms)
    result.tolerance = decode.tolerance
    return result


# A tool, as LiteRT-LM describes a function of Python.
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "a number"}},
            "required": ["a"],
        },
    },
}


def _conversations(chat: Chat) -> list[Json]:
    """Conversations of one turn, of several, with what the chat may have: system messages, pictures
    and tools.

    Each is what `Chat.prompt` takes: "messages", and for a program "tools" and other variables.
    """
    turns = [
        {"role": role, "content": f"message {number}"}
        for number, role in enumerate(["user", "assistant"] * 2 + ["user"])
    ]
    system = {"role": "system", "content": "be brief"}
    image = {"type": "image"}
    pictured = [
        {**turns[0], "content": [image, _text("a picture")]},
        {**turns[0], "content": [_text("a picture "), image, _text(" behind")]},
    ]
    pictures = [[x] for x in pictured] + [[*turns[:2], x] for x in pictured]
    pictures = [*pictures, [system, pictured[0]]] if chat.image else []
    if isinstance(chat.template, ChatTemplate):
        several = [turns[:1], turns[:3], turns, *pictures]
        if chat.template.system is not None:
            several.append([system, *turns[:3]])
        else:
            several = [x for x in several if system not in x]
        return [{"messages": messages} for messages in several]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    called = [turns[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    answered = [*called, {"role": "tool", "name": "add", "content": "2"}]
    several = [turns[:1], turns[:3], turns, [system, *turns[:3]]]
    result: list[Json] = [{"messages": messages} for messages in [*several, *pictures]]
    if chat.template.takes_tools:
        with_tools = [*several[::3], answered, [*answered, turns[1], turns[2]]]
        result += [{"messages": messages, "tools": [_TOOL]} for messages in with_tools]
    if "enable_thinking" in chat.template.source:
        result.append({"messages": turns[:1], "enable_thinking": False})
    return [x for x in result if _is_written(chat, x)]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _is_written(chat: Chat, conversation: Json) -> bool:
    """Whether the program takes a conversation, and does not refuse its roles, say."""
    try:
        chat.prompt(**conversation)
    except ValueError:
        return False
    return True
