"""The command `keras-tfm chat`: a conversation with a language model in a .tflite file."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from keras_tfm import runtime
from keras_tfm.cli import rows
from keras_tfm.cli.console import FAILED, FilePath, app, messages, typer, work
from keras_tfm.cli.file_commands import Adapter, Threads, check_roles, check_tokenizers, load
from keras_tfm.runtime.tasks.session_text import checked_stops

NEW, UNDO = "/new", "/undo"


@app.command()
def chat(
    file: FilePath,
    system: Annotated[
        str | None, typer.Option(help="A system message, for a file with a chat template.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Temperature; 0 takes the most probable token. Default: the file's, or 0.7.", min=0
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most probable tokens.", min=1)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from tokens with this total probability.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens this probable, relative to the most probable one."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1, repeated tokens are less probable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For the same answers each time.", min=0)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens of an answer.", min=1)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text before which an answer ends; repeatable.")
    ] = None,
    threads: Threads = 1,
    adapter: Adapter = None,
) -> None:
    """Chats with a language model in a .tflite file; needs neither Keras nor TensorFlow.

    Messages are lines of the terminal or of standard input. Answers go to standard output as they
    are generated, tokens per second to standard error. Ctrl-C stops an answer and keeps the
    conversation; /undo removes the last message and its answer, /new begins another conversation,
    Ctrl-D ends. A file without a chat template continues the text as it is. Without the options of
    sampling, tokens are chosen as the file says.
    """
    options: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    with work("sampling", {name: f"--{name.replace('_', '-')}" for name in (*options, "stop")}):
        runtime.Sampler(**chosen)
        stops = checked_stops(stop or [])
    model = load(file, threads, adapter, ())
    check_roles(model, ("decode",), ": for chats, export it with --signatures prefill,decode")
    check_tokenizers(model, "which chats need")
    sampler = replace(model.sampler or runtime.Sampler(temperature=0.7), **chosen)
    conversation = _Conversation(model, system)
    failed = False
    for line in _lines():
        try:
            message = line if isinstance(line, str) else line.decode("utf-8")
            if message == NEW:
                conversation = _Conversation(model, system)
            elif message == UNDO:
                conversation.undo()
            elif message.strip():
                conversation.add(message)
                _answer(conversation.session, sampler, max_tokens, stops)
        except (ValueError, TypeError, RuntimeError) as error:
            failed = True
            messages.print(f"keras-tfm: {error}", soft_wrap=True)
    if failed and not _is_terminal():
        raise typer.Exit(FAILED)


class _Conversation:
    """A session, and how long it was before each message."""

    def __init__(self, model: runtime.Model, system: str | None):
        self.session = model.session()
        self._template, self._system = model.chat_template, system
        if system is not None and (self._template is None or self._template.system is None):
            raise ValueError(f"{model.path} has no chat template with a system message: --system")
        self._lengths: list[int] = []

    def add(self, message: str) -> None:
        """Appends a message, in the chat template if there is one."""
        text = message
        if self._template is not None and len(self.session):
            text = self._template.turn(message)
        elif self._template is not None:
            first = [{"role": "user", "content": message}]
            if self._system is not None:
                first = [{"role": "system", "content": self._system}, *first]
            text = self._template.prompt(first)
        length = len(self.session)
        with work("reading"):
            self.session.append(text)
        self._lengths.append(length)

    def undo(self) -> None:
        """Removes the last message and its answer."""
        if not self._lengths:
            raise ValueError("there is no message to undo")
        self.session.rewind(len(self.session) - self._lengths.pop())


def _answer(
    session: runtime.Session, sampler: runtime.Sampler, max_tokens: int | None, stops: list[str]
) -> None:
    """Prints an answer piece by piece, and its speed."""
    before, begun, note = len(session), time.perf_counter(), ""
    stream = session.stream(max_tokens, sampler, stop=stops)
    try:
        for piece in stream:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        note = ", stopped"
    count, seconds = len(session) - before, time.perf_counter() - begun
    print(flush=True)
    messages.print(
        f"[{count} tokens{note}, {count / seconds:.1f} per second; {session.remaining} more fit]",
        style="dim",
        markup=False,
    )


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _lines() -> Iterator[str | bytes]:
    """Lines of the terminal, or those of standard input."""
    if not _is_terminal():
        yield from rows.lines()
        return
    while True:
        try:
            yield messages.input("> ")
        except EOFError:
            messages.print()
            return
