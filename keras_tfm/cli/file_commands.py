"""Commands for a .tflite file: benchmark, inspect, generate, predict."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from keras_tfm import runtime
from keras_tfm.cli import pictures, recordings, rows
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
from keras_tfm.cli.image_options import labels_of
from keras_tfm.cli.pictures import as_json_line, of_classes
from keras_tfm.runtime.checked_inputs import is_pixels
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
        return as_json_line(text, output) if as_json else shown

    rows.run(texts, answer)


@app.command()
def predict(
    file: FilePath,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts, or paths of pictures or WAV files for a file that reads them; by default "
            "lines of standard input."
        ),
    ] = None,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="Read each row as JSON: an array, a text or the path of a picture for the first "
            "input, or an object of them by input.",
        ),
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Names of the classes in order, negative,positive, or a file with one a line; "
            "by default those in the file."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Of a picture: the N most probable classes, a line each.", min=1),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help=f"The least probability of an object in a picture; {pictures.THRESHOLD} if not "
            "given.",
            min=0,
            max=1,
        ),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Draw boxes or the most probable class into a copy of the picture: a .png file, "
            "or a folder for several pictures. Small pictures are enlarged."
        ),
    ] = None,
    threads: Threads = 1,
    adapter: Adapter = None,
    as_json: AsJson = False,
) -> None:
    """Prints a model's outputs for each text, picture or recording, without Keras or TensorFlow.

    For an output of several classes: the class with the largest value, and the value; for one
    class per token, the class of each token; with --top, classes and their probabilities. For a
    detector, a line per object: label, probability, left, top, right and bottom in pixels of the
    picture. For a WAV file and a model of speech, its text. With several pictures or recordings,
    each line begins with the path. With --json: all
    values, by output, or the list of classes or objects.
    """
    options = pictures.Options(top, threshold, draw)
    model = _load(file, threads, adapter, ())
    reads_audio = bool(model.sample_rates) and not from_json
    if not (reads_audio and model.tokenizers):
        _check_roles(model, ("predict",))
    names = labels_of(labels)
    if names is not None:
        _check_labels(model, names)
        _ = model.tokenizers  # read before, as they compare the manifest with the file's
        model.manifest = {**model.manifest, "labels": names}
    if model.image_processors and not model.tokenizers and not from_json:
        rows.run(texts, pictures.answerer(model, texts, options, as_json))
        return
    pictures.refuse(options, "it is for pictures, without --from-json")
    if reads_audio:
        rows.run(texts, recordings.answerer(model, texts, as_json))
        return
    if not from_json:
        _check_tokenizers(model, "or pass arrays with --from-json")

    def answer(text: str) -> str:
        row = _from_json(text, model) if from_json else text
        values = list(row.values()) if isinstance(row, dict) else [row]
        run = model.predict_text if any(isinstance(x, str) for x in values) else model.predict
        outputs = {name: x[0] for name, x in run(row).items()}
        if as_json:
            return as_json_line(
                json.loads(text) if from_json else text,
                {name: x.tolist() for name, x in outputs.items()},
            )
        length = len(model.tokenizers[_first_text(model)].encode(row)) if row is text else None
        shown = {name: of_classes(x, model.labels, length) for name, x in outputs.items()}
        if len(shown) == 1:
            return next(iter(shown.values()))
        return "\t".join(f"{name}: {x}" for name, x in shown.items())

    rows.run(texts, answer)


def _load(file: Any, threads: int, adapter: Path | None, roles: tuple[str, ...]) -> runtime.Model:
    """The file, which must have a signature of one of `roles`, if there are any."""
    with work(f"loading {file.name}"):
        model = runtime.load(file, threads, adapter=adapter)
    if model.models:
        raise ValueError(
            f"{file} holds the models {list(model.models)}, and this command runs files of one: "
            f"use them in Python, as runtime.load({file.name!r}).models"
        )
    if roles:
        _check_roles(model, roles)
    return model


def _check_roles(model: runtime.Model, roles: tuple[str, ...]) -> None:
    if not any(x["role"] in roles for x in model.signatures.values()):
        raise ValueError(
            f"{model.path} has no signature {' or '.join(map(repr, roles))}, it has "
            f"{list(model.signatures)}"
        )


def load_with_tokenizers(
    file: Any, threads: int, adapter: Path | None, roles: tuple[str, ...], otherwise: str
) -> runtime.Model:
    """As `_load`; raises before the first row if there is no tokenizer: every row would fail."""
    model = _load(file, threads, adapter, roles)
    _check_tokenizers(model, otherwise)
    return model


def _check_tokenizers(model: runtime.Model, otherwise: str) -> None:
    if model.tokenizers:
        return
    inputs = [x for signature in model.signatures.values() for x in signature["inputs"].values()]
    if any(map(is_pixels, inputs)):
        raise ValueError(
            f"{model.path} has no image processor: export it with --images, {otherwise}"
        )
    raise ValueError(f"{model.path} has no tokenizer: export it with --tokenizer, {otherwise}")


def _first_text(model: runtime.Model) -> str:
    """The input that reads a text given without a name."""
    signature = next(x for x in model.signatures.values() if x["role"] == "predict")
    return next(name for name in signature["inputs"] if name in model.tokenizers)


def _check_labels(model: runtime.Model, labels: list[str]) -> None:
    signature = next(x for x in model.signatures.values() if x["role"] == "predict")
    sizes = {name: x["shape"][-1] for name, x in signature["outputs"].items()}
    if pictures.is_detector(model):
        sizes = {"logits": sizes["logits"] - 1}  # the last class is "no object"
    if len(labels) not in sizes.values():
        raise typer.BadParameter(
            f"the number of labels must be an output's number of classes, {sizes}, "
            f"got {len(labels)}",
            param_hint="'--labels'",
        )


def _from_json(text: str, model: runtime.Model) -> Any:
    """A row of JSON, with pictures as pixels."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {text[:40]!r} ({error})") from None
    if not isinstance(row, dict | list | str):
        raise ValueError(f"expected a JSON object, array or string, got {text[:40]!r}")
    processors = model.image_processors
    if isinstance(row, str) and processors and not model.tokenizers:
        return {next(iter(processors)): next(iter(processors.values()))(row)}
    if isinstance(row, dict):
        return {
            name: processors[name](x) if name in processors and isinstance(x, str) else x
            for name, x in row.items()
        }
    return row


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
