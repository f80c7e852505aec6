"""Commands for a .tflite file: benchmark, inspect, generate, predict."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
from keras_tfm.runtime.signature_runner import MAX_THREADS

Threads = Annotated[
    int, typer.Option(help="Number of threads.", min=1, max=MAX_THREADS, show_default=True)
]


@app.command()
def benchmark(
    file: FilePath,
    threads: Annotated[str, typer.Option(help="Numbers of threads to measure: 1,2,4.")] = "1,2",
    seconds: Annotated[
        float, typer.Option(help="Seconds per signature and number of threads.")
    ] = 1.0,
    weight_cache: Annotated[
        bool, typer.Option(help="Also measure XNNPACK's weight cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measures latency, tokens per second, memory and load time on this machine."""
    counts = numbers(threads, "--threads") or ()
    with work("loading TensorFlow"):
        from keras_tfm.export import benchmark as measure
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
    from keras_tfm.runtime.gpu_support import check_file
    from keras_tfm.runtime.inspection import inspect_file

    if accelerator is Accelerator.gpu:
        with work(f"inspecting {file.name}"):
            found = check_file(file)
        lines = [str(x) for x in found] or [f"{file}: no operator that the GPU delegate refuses"]
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
        _load(file, threads, adapter, roles)
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
        else:
            output = shown = model.generate_text(text)
            if isinstance(output, list):
                shown = "\n".join(f"{x.text}\t{x.score:.6g}" for x in output)
                output = [x._asdict() for x in output]
        return _as_json(text, output) if as_json else shown

    rows.run(texts, answer)


@app.command()
def predict(
    file: FilePath,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; by default lines of standard input.")
    ] = None,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="Read each row as JSON: an array or a text for the first input, or an object of "
            "arrays and texts by input.",
        ),
    ] = False,
    labels: Annotated[
        str | None, typer.Option(help="Names of the classes in order: negative,positive.")
    ] = None,
    threads: Threads = 1,
    adapter: Adapter = None,
    as_json: AsJson = False,
) -> None:
    """Prints a model's outputs for each text; needs neither Keras nor TensorFlow.

    For an output of several classes: the class with the largest value, and the value; for one
    class per token, the class of each token. With --json: all values, by output.
    """
    names = None if labels is None else [name.strip() for name in labels.split(",")]
    model = (
        _load(file, threads, adapter, ("predict",))
        if from_json
        else load_with_tokenizers(
            file, threads, adapter, ("predict",), "or pass arrays with --from-json"
        )
    )
    if names is not None:
        _check_labels(model, names)

    def answer(text: str) -> str:
        row = _from_json(text) if from_json else text
        values = list(row.values()) if isinstance(row, dict) else [row]
        run = model.predict_text if any(isinstance(x, str) for x in values) else model.predict
        outputs = {name: x[0] for name, x in run(row).items()}
        if as_json:
            return _as_json(
                json.loads(text) if from_json else text,
                {name: x.tolist() for name, x in outputs.items()},
            )
        length = len(model.tokenizers[_first_text(model)].encode(row)) if row is text else None
        shown = {name: _of_classes(x, names, length) for name, x in outputs.items()}
        if len(shown) == 1:
            return next(iter(shown.values()))
        return "\t".join(f"{name}: {x}" for name, x in shown.items())

    rows.run(texts, answer)


def _load(file: Any, threads: int, adapter: Path | None, roles: tuple[str, ...]) -> runtime.Model:
    """The file, which must have a signature of one of `roles`."""
    with work(f"loading {file.name}"):
        model = runtime.load(file, threads, adapter=adapter)
    if not any(x["role"] in roles for x in model.signatures.values()):
        raise ValueError(
            f"{file} has no signature {' or '.join(map(repr, roles))}, it has "
            f"{list(model.signatures)}"
        )
    return model


def load_with_tokenizers(
    file: Any, threads: int, adapter: Path | None, roles: tuple[str, ...], otherwise: str
) -> runtime.Model:
    """As `_load`; raises before the first row if there is no tokenizer: every row would fail."""
    model = _load(file, threads, adapter, roles)
    if not model.tokenizers:
        raise ValueError(f"{model.path} has no tokenizer: export it with --tokenizer, {otherwise}")
    return model


def _first_text(model: runtime.Model) -> str:
    """The input that reads a text given without a name."""
    signature = next(x for x in model.signatures.values() if x["role"] == "predict")
    return next(name for name in signature["inputs"] if name in model.tokenizers)


def _check_labels(model: runtime.Model, labels: list[str]) -> None:
    signature = next(x for x in model.signatures.values() if x["role"] == "predict")
    sizes = {name: x["shape"][-1] for name, x in signature["outputs"].items()}
    if len(labels) not in sizes.values():
        raise typer.BadParameter(
            f"the number of labels must be an output's number of classes, {sizes}, "
            f"got {len(labels)}",
            param_hint="'--labels'",
        )


def _of_classes(x: np.ndarray, labels: list[str] | None, length: int | None) -> str:
    """One row of an output as text: the most probable class, or that of each of `length` tokens."""
    if x.ndim == 0 or x.size == 1:
        return f"{x.item():.6g}"
    names = labels if labels is not None and len(labels) == x.shape[-1] else None
    best = x.argmax(-1)
    if x.ndim == 1:
        return f"{best if names is None else names[best]}\t{x[best]:.6g}"
    found = best.ravel() if length is None else best[:length].ravel()
    return " ".join(str(i) if names is None else names[i] for i in found)


def _from_json(text: str) -> Any:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {text[:40]!r} ({error})") from None
    if not isinstance(row, dict | list | str):
        raise ValueError(f"expected a JSON object, array or string, got {text[:40]!r}")
    return row


def _as_json(row: Any, output: Any) -> str:
    """A line of JSON; NaN and infinity, which JSON lacks, raise a ValueError."""
    try:
        return json.dumps({"input": row, "output": output}, allow_nan=False)
    except ValueError:
        raise ValueError("the model returned NaN or an infinite number") from None


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"expected ids separated by commas, such as 3,4,5, got {text!r}") from None


def _of_ids(tokens: Any, scores: Any) -> tuple[Any, str]:
    """The output for one row (T,) or several hypotheses (n, T): for JSON, and as text."""
    if tokens.ndim == 1:
        return tokens.tolist(), ",".join(map(str, tokens))
    pairs = list(zip(tokens.tolist(), scores[0].tolist(), strict=True))
    lines = (f"{','.join(map(str, row))}\t{score:.6g}" for row, score in pairs)
    return [{"ids": row, "score": score} for row, score in pairs], "\n".join(lines)
