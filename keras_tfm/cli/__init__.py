"""The command `keras-tfm`.

Exit codes: 0, success; 1, an error, described on standard error; 2, wrong usage; 3, the file
differs from the model; 130, interrupted. If a row of `generate` or `predict` fails, the other rows
still run; its error goes to standard error with the row's number, and the exit code is 1.
"""

import io
import sys
from typing import Annotated

from keras_tfm.cli.console import (
    DIFFERENT,
    FAILED,
    INTERRUPTED,
    USER_ERRORS,
    app,
    messages,
    print_result,
    typer,
)

# isort: split
from keras_tfm.cli import model_commands  # first: `--help` lists commands in this order

# isort: split
from keras_tfm.cli import import_command

# isort: split
from keras_tfm.cli import file_commands

# isort: split
from keras_tfm.cli import predict_command

# isort: split
from keras_tfm.cli import chat_command

# isort: split
from keras_tfm.cli import page_command
from keras_tfm.version import __version__

__all__ = [
    "app",
    "chat_command",
    "file_commands",
    "import_command",
    "main",
    "model_commands",
    "page_command",
    "predict_command",
]


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"keras-tfm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def _set_output_encoding() -> None:
    """Writes UTF-8 to files and pipes; a terminal of another encoding shows "?" where it must.

    Otherwise an answer would end at a character that the system's encoding lacks, such as that of
    a pipe on Windows.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")


def main() -> None:
    """The command `keras-tfm`."""
    _set_output_encoding()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # as Typer does
    except BrokenPipeError:
        sys.exit(FAILED)
    except USER_ERRORS as error:
        verification = getattr(error, "verification", None)
        if verification is not None:
            print_result(verification, "--json" in sys.argv)
        messages.print(f"keras-tfm: {error}", soft_wrap=True)
        sys.exit(FAILED if verification is None else DIFFERENT)
