"""What all commands share: the application, messages on standard error, and option types."""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

from keras_tfm.optional_package import install_command

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich"):
        raise
    sys.exit(f"keras-tfm needs typer and rich: {install_command('typer', 'rich')}")

# Set before TensorFlow is imported: log only errors; use the backend that exports.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# oneDNN's own allocator keeps the memory of the largest tensors until the process ends.
os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")

from keras_tfm.runtime import native_log

FAILED, DIFFERENT, INTERRUPTED = 1, 3, 130
# Errors that the user's input can cause; any other error is a bug and keeps its traceback.
USER_ERRORS = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError)

app = typer.Typer(
    help="Exports Keras transformers to LiteRT (.tflite) files; verifies and runs them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
messages = Console(stderr=True, highlight=False, markup=False)


class Accelerator(StrEnum):
    """What a file is for."""

    cpu = "cpu"
    gpu = "gpu"


class Cache(StrEnum):
    """The formats of KV caches."""

    float32 = "float32"
    int8 = "int8"


Adapter = Annotated[
    Path | None, typer.Option(help="A LoRA adapter for the file, written by save_adapter.")
]
FilePath = Annotated[Path, typer.Argument(help="A .tflite file that keras_tfm wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def numbers(
    text: str | None, option: str, minimum: int = 0, maximum: int = 2**31 - 1
) -> list[int] | None:
    """ "32,128" -> [32, 128]; integers outside the range are wrong usage."""
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"expected integers separated by commas, such as 32,128, got {text!r}",
            param_hint=f"'{option}'",
        ) from None
    for one in found:
        if not minimum <= one <= maximum:
            raise typer.BadParameter(
                f"expected integers from {minimum} to {maximum}, got {one}",
                param_hint=f"'{option}'",
            )
    return found


def lengths_by_input(text: str | None, option: str) -> list[int] | dict[str, list[int]] | None:
    """ "32,128" -> [32, 128]; "text=8,text=32,frames=9" -> {"text": [8, 32], "frames": [9]}."""
    if text is None or "=" not in text:
        return numbers(text, option, minimum=1)
    result: dict[str, list[int]] = {}
    for part in text.split(","):
        name, is_named, length = part.rpartition("=")
        if not is_named or not name:
            raise typer.BadParameter(
                f"expected a length for each input, such as text=32,frames=30, got {text!r}",
                param_hint=f"'{option}'",
            )
        result.setdefault(name, []).extend(numbers(length, option, minimum=1) or [])
    return result


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuses options, values by name, that were given for something else."""
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(reason, param_hint=f"'--{name.replace('_', '-')}'")


class Result(Protocol):
    """What a command prints as a text, or with `asdict` as JSON."""

    def asdict(self) -> dict[str, Any]:
        """Everything as dictionaries, lists and numbers."""


def print_result(result: Result | str, as_json: bool) -> None:
    """Prints a report, a verification or another result to standard output."""
    if as_json and not isinstance(result, str):
        result = json.dumps(result.asdict(), indent=2)
    print(result, flush=True)


@contextmanager
def work(text: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Shows what the command is doing on standard error and, for an export, each step.

    Args:
        text: what the command is doing.
        options: the command-line option for each Python argument, for error messages.
    """
    with native_log.remove(), messages.status(text) as status:

        class Steps(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                line = f"{text}: {record.getMessage()}"
                status.update(line)
                if not messages.is_terminal:
                    messages.print(line, soft_wrap=True)

        logger, handler = logging.getLogger("keras_tfm"), Steps()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # otherwise TensorFlow's handler prints them, too
        try:
            yield
        except USER_ERRORS as error:
            if len(error.args) == 1 and options:
                error.args = (with_options(str(error), options),)
            raise
        finally:
            logger.removeHandler(handler)


def with_options(message: str, options: Mapping[str, str]) -> str:
    """An error message with command-line options in place of a function's arguments.

    >>> from keras_tfm.cli.console import with_options
    >>> with_options("start_id must be in 0..12, got 99", {"start_id": "--start"})
    '--start must be in 0..12, got 99'

    A name that is also an English word is replaced only where it must be the argument:

    >>> with_options("target must be a target: name it with target=", {"target": "--target"})
    '--target must be a target: name it with --target'

    A value becomes one of the command line:

    >>> with_options("export it with quantization='int4'", {"quantization": "--quantize"})
    "export it with --quantize 'int4'"
    """
    for name, option in options.items():
        message = re.sub(rf"\b{name}=(?!True\b)(?=['\"\[\w])", f"{option} ", message)
        if "_" in name:
            message = re.sub(rf"\b{name}s?\b=?", option, message)
        else:
            message = re.sub(rf"^{name}(?= (for \S+ )?must )|\b{name}=(True\b)?", option, message)
    return message
