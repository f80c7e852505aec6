"""Runs rows from arguments or standard input; one bad row does not stop the others."""

import codecs
import sys
from collections.abc import Callable, Iterator, Sequence

from keras_tfm.cli.console import FAILED, messages, typer


def run(texts: Sequence[str] | None, answer: Callable[[str], str | None]) -> None:
    """Prints the answer to each text, or to each line of standard input if there are no texts.

    None prints nothing.

    An error in a row goes to standard error with the row's number; after the last row, the command
    then exits with code 1.
    """
    count = failed = 0
    for place, row in _rows(texts):
        count += 1
        try:
            text = row if isinstance(row, str) else row.decode("utf-8")
            line = answer(text)
            if line is not None:
                print(line, flush=True)
        except BrokenPipeError:  # nobody reads the answers
            raise
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            failed += 1
            messages.print(f"keras-tfm: {place}: {error}", soft_wrap=True)
    if failed:
        if count > 1:
            messages.print(f"keras-tfm: {failed} of {count} rows failed")
        raise typer.Exit(FAILED)


def lines() -> Iterator[bytes]:
    """The lines of standard input, which may not be valid UTF-8; without a byte order mark."""
    if sys.stdin is None:  # Python's, where a process has none
        raise ValueError("expected lines on standard input, which is closed")
    for i, line in enumerate(sys.stdin.buffer):
        # Programs on Windows write the mark, which would be a part of the first text.
        line = line if i else line.removeprefix(codecs.BOM_UTF8)
        yield line.rstrip(b"\r\n")


def _rows(texts: Sequence[str] | None) -> Iterator[tuple[str, str | bytes]]:
    """Each row with its place."""
    if texts:
        yield from ((f"argument {i}", text) for i, text in enumerate(texts, 1))
        return
    for i, line in enumerate(lines(), 1):
        yield f"line {i}", line
