"""Commands for a .tflite file: benchmark, inspect, generate."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import numpy as np

from keras_tfm import runtime
from keras_tfm.cli import rows
from keras_tfm.cli.console import (
    Accelerator,
    Adapter,
    AsJson,
    FilePath,
    app,
    numbers,
    print_result,
    typer,
    work,
)
from keras_tfm.cli.pictures import as_json_line
from keras_tfm.runtime.loaded_file import MAX_THREADS

Threads = Annotated[
    int, typer.Option(help="Number of threads.", min=1, max=MAX_THREADS, show_default=True)
]


def _seconds(value: float) -> float:
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"expected a number above 0, got {value}")
    return value


@app.command()
def benchmark(
    file: FilePath,
    threads: Annotated[str, typer.Option(help="Numbers of threads to measure: 1,2,4.")] = "1,2",
    seconds: Annotated[
        float,
        typer.Option(help="Seconds per signature and number of threads.", callback=_seconds),
    ] = 1.0,
    weight_cache: Annotated[
        bool, typer.Option(help="Also measure XNNPACK's weight cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measures latency, tokens per second, memory and load time on this machine."""
    counts = numbers(threads, "--threads", 1, MAX_THREADS) or ()
    # Of the runtime: a device has neither Keras nor TensorFlow.
    from keras_tfm.runtime.inspection.benchmark import benchmark as measure

    with work(f"running {file.name}", {"threads": "--threads", "seconds": "--seconds"}):
        result = measure(file, counts, seconds=seconds, weight_cache=weight_cache)
    print_result(result, as_json)


@app.command()
def inspect(
    file: FilePath,
    depth: Annotated[int, typer.Option(help="Depth of nested layers.", min=1)] = 1,
    accelerator: Annotated[
        Accelerator,
        typer.Option(help="gpu: print what LiteRT's GPU delegate refuses, and why, instead."),
    ] = Accelerator.cpu,
    as_json: AsJson = False,
) -> None:
    """Prints the signatures, sizes, operators, partitions and manifest of a .tflite file."""
    from keras_tfm.runtime.inspection import inspect_file
    from keras_tfm.runtime.inspection.gpu_support import check_file

    if accelerator is Accelerator.gpu:
        with work(f"inspecting {file.name}"):
            found = check_file(file)
        lines = [str(x) for x in found] or [
            f"{file}: no operator that the GPU delegate refuses by its source; compare its outputs "
            "on the delegate, which computes some graphs wrongly"
        ]
        print(json.dumps([asdict(x) for x in found], indent=2) if as_json else "\n".join(lines))
        return

    with work(f"inspecting {file.name}"):
        result = inspect_file(file)
    print_result(result if as_json else result.table(depth), as_json)


@app.command()
def generate(
    file: FilePath,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; by default lines of standard input.")
    ] = None,
    ids: Annotated[
        bool, typer.Option(help="Read and print ids separated by commas, not text.")
    ] = False,
    stream: Annotated[
        bool, typer.Option(help="Print each piece as soon as it is generated.")
    ] = False,
    threads: Threads = 1,
    adapter: Adapter = None,
    as_json: AsJson = False,
) -> None:
    """Generates text with a .tflite file; needs neither Keras nor TensorFlow.

    With --ids, columns after the end token hold the padding id.
    """
    if stream and (ids or as_json):
        raise typer.BadParameter(
            "it prints text: leave out --ids and --json", param_hint="--stream"
        )
    roles = ("generate", "decode")
    model = (
        load(file, threads, adapter, roles)
        if ids
        else load_with_tokenizers(file, threads, adapter, roles, "or pass ids with --ids")
    )

    def answer(text: str) -> str:
        if stream:
            for piece in model.stream_text(text):
                print(piece, end="", flush=True)
            return ""
        if ids:
            generated = model.generate([_ids(text)])
            output, shown = _of_ids(generated.tokens[0], generated.scores)
            return as_json_line(text, output) if as_json else shown
        found = model.generate_text(text)
        if isinstance(found, str):
            return as_json_line(text, found) if as_json else found
        hypotheses = cast("list[runtime.Hypothesis]", found)  # of one text
        if as_json:
            return as_json_line(text, [x._asdict() for x in hypotheses])
        return "\n".join(f"{x.text}\t{x.score:.6g}" for x in hypotheses)

    rows.run(texts, answer)


def load(
    file: Path,
    threads: int,
    adapter: Path | None,
    roles: tuple[str, ...],
    several: Callable[[runtime.Model], bool] = lambda model: False,
) -> runtime.Model:
    """The file, which must have a signature of one of `roles`, if there are any.

    `several` tells whether the command runs this file of several models.
    """
    with work(f"loading {file.name}"):
        model = runtime.load(file, threads, adapter=adapter)
    if model.models and not several(model):
        raise ValueError(
            f"{file} holds the models {list(model.models)}, and this command runs files of one: "
            f"use them in Python, as runtime.load({file.name!r}).models"
        )
    if roles:
        check_roles(model, roles)
    return model


def check_roles(model: runtime.Model, roles: tuple[str, ...], advice: str = "") -> None:
    """Raises unless the file has a signature of one of `roles`."""
    if not any(x.role in roles for x in model.file.signatures.values()):
        raise ValueError(
            f"{model.path} has no signature {' or '.join(map(repr, roles))}, it has "
            f"{list(model.signatures)}{advice}"
        )


def load_with_tokenizers(
    file: Path, threads: int, adapter: Path | None, roles: tuple[str, ...], otherwise: str
) -> runtime.Model:
    """As `load`; raises before the first row if there is no tokenizer: every row would fail."""
    model = load(file, threads, adapter, roles)
    check_tokenizers(model, otherwise)
    return model


def check_tokenizers(model: runtime.Model, otherwise: str) -> None:
    """Raises, if the file has no tokenizer, what its export lacked."""
    if model.tokenizers:
        return
    signatures = model.file.signatures.values()
    if any(x.is_pixels for signature in signatures for x in signature.inputs.values()):
        raise ValueError(
            f"{model.path} has no image processor: export it with --images, {otherwise}"
        )
    raise ValueError(f"{model.path} has no tokenizer: export it with --tokenizer, {otherwise}")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"expected ids separated by commas, such as 3,4,5, got {text!r}") from None


def _of_ids(
    tokens: np.ndarray, scores: np.ndarray | None
) -> tuple[list[int] | list[dict[str, float]], str]:
    """The output for one row (T,) or several hypotheses (n, T): for JSON, and as text."""
    if tokens.ndim == 1 or scores is None:
        return tokens.tolist(), ",".join(map(str, tokens))
    pairs = list(zip(tokens.tolist(), scores[0].tolist(), strict=True))
    lines = (f"{','.join(map(str, row))}\t{score:.6g}" for row, score in pairs)
    return [{"ids": row, "score": score} for row, score in pairs], "\n".join(lines)
