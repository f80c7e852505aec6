"""The command line: `keras-tfm export | verify | benchmark | inspect | generate | import`.

Exit codes: 0, success; 1, an error, described on standard error; 2, wrong usage; 3, the file
differs from the model; 130, interrupted.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich"):
        raise
    sys.exit('keras-tfm needs typer and rich: pip install "keras-tfm[cli]"')

# Before TensorFlow is imported: only its errors, and the backend that exports.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from keras_tfm import runtime
from keras_tfm.runtime import native_log

FAILED, DIFFERENT, INTERRUPTED = 1, 3, 130

app = typer.Typer(
    help="Exports Keras transformers to LiteRT (.tflite) files; verifies and runs them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
messages = Console(stderr=True, highlight=False, markup=False)


class Quantization(StrEnum):
    """The presets of `export_tflite`."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"
    int8_full = "int8_full"
    int4 = "int4"


def _numbers(text: str | None) -> list[int] | None:
    """ "32,128" -> [32, 128]."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"expected integers separated by commas, such as 32,128, got {text!r}"
        ) from None


ModelPath = Annotated[Path, typer.Argument(help="A .keras file; loaded in safe mode.")]
FilePath = Annotated[Path, typer.Argument(help="A .tflite file that keras_tfm wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Inputs = Annotated[
    Path | None,
    typer.Option(help="An .npz of rows by input to compare on; by default random rows."),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="The largest relative error; the default depends on the quantization."),
]


@app.command()
def export(
    model: ModelPath,
    output: Annotated[Path, typer.Argument(help="The .tflite file to write.")],
    quantize: Annotated[Quantization, typer.Option(help="The format of the weights.")] = (
        Quantization.float32
    ),
    signatures: Annotated[
        str | None,
        typer.Option(help="predict, generate, encode, prefill, decode; separated by commas."),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Length of the source in ids, or several: 32,128.")
    ] = None,
    prompt_lengths: Annotated[
        str | None, typer.Option(help="Maximum length of a prompt in ids, or several: 16,64.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum tokens of a row, start token or prompt included.")
    ] = None,
    start: Annotated[int | None, typer.Option(help="Id of the start token.")] = None,
    end: Annotated[str | None, typer.Option(help="Id of the end token, or several: 2,3.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per call.")] = 1,
    target: Annotated[
        str | None, typer.Option(help='The stepped input; by default "target", or the only one.')
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam width; 1 is greedy search.", min=1)] = 1,
    length_penalty: Annotated[float, typer.Option(help="Length penalty of the beam search.")] = 0.6,
    hypotheses: Annotated[
        int, typer.Option(help="Hypotheses that the beam search returns.", min=1)
    ] = 1,
    keep_float: Annotated[
        list[str] | None, typer.Option(help="A layer whose weights stay float32; repeatable.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="For int8_full: an .npz of a few hundred rows by input."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or a SentencePiece .model to include.")
    ] = None,
    detokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer of the generated text, if different.")
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare the file with the model before keeping it.")
    ] = True,
    inputs: Inputs = None,
    tolerance: Tolerance = None,
    as_json: AsJson = False,
) -> None:
    """Exports a .keras model to one .tflite file, and verifies the file against the model.

    Rows shorter than --lengths are padded with the padding id of their embedding.
    """
    if hypotheses > beam:
        raise typer.BadParameter(f"--hypotheses {hypotheses} must be at most --beam, got {beam}")
    with _work("loading TensorFlow"), native_log.removed():
        from keras_tfm.export import export_tflite
        from keras_tfm.generation import Beam
    loaded = _load(model)
    with _work(f"exporting {model.name}"):
        report = export_tflite(
            loaded,
            output,
            None if signatures is None else [name.strip() for name in signatures.split(",")],
            quantize.value,
            source_length=_numbers(lengths),
            prompt_length=_numbers(prompt_lengths),
            max_length=max_length,
            start_id=start,
            end_id=_numbers(end),
            batch_size=batch_size,
            target=target,
            strategy=Beam(beam, length_penalty, hypotheses) if beam > 1 else None,
            keep_float=keep_float or (),
            representative_data=None if data is None else _rows_of(data),
            tokenizer=tokenizer,
            detokenizer=detokenizer,
            verify=verify,
            verify_inputs=_arrays(inputs),
            tolerance=tolerance,
        )
    _print(report, as_json)


@app.command()
def verify(
    model: ModelPath,
    file: FilePath,
    inputs: Inputs = None,
    tolerance: Tolerance = None,
    as_json: AsJson = False,
) -> None:
    """Compares every signature of a .tflite file with its .keras model."""
    with _work("loading TensorFlow"), native_log.removed():
        from keras_tfm.export import verify as verify_file
    loaded = _load(model)
    with _work(f"comparing {file.name} with {model.name}"):
        result = verify_file(loaded, file, _arrays(inputs), tolerance)
    _print(result, as_json)


@app.command()
def benchmark(
    file: FilePath,
    threads: Annotated[str, typer.Option(help="Numbers of threads: 1,2,4.")] = "1,2",
    seconds: Annotated[
        float, typer.Option(help="Seconds per signature and number of threads.")
    ] = 1.0,
    weight_cache: Annotated[
        bool, typer.Option(help="Also measure XNNPACK's weight cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measures latency, tokens per second, memory and load time on this machine."""
    with _work("loading TensorFlow"), native_log.removed():
        from keras_tfm.export import benchmark as measure
    with _work(f"running {file.name}"):
        result = measure(file, _numbers(threads) or (), seconds=seconds, weight_cache=weight_cache)
    _print(result, as_json)


@app.command()
def inspect(
    file: FilePath,
    depth: Annotated[int, typer.Option(help="Depth of nested layers.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Prints the signatures, sizes, operators, partitions and manifest of a .tflite file."""
    from keras_tfm.runtime.inspection import inspect_file

    result = inspect_file(file)
    _print(result if as_json else result.table(depth), as_json)


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
    threads: Annotated[int, typer.Option(help="Number of threads.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Generates text with a .tflite file; needs neither Keras nor TensorFlow.

    With --ids, tokens after the end are the padding id of the file.
    """
    if stream and (ids or as_json):
        raise typer.BadParameter("--stream prints text: leave out --ids and --json")
    model = runtime.load(file, threads)
    for text in texts or (line.rstrip("\n") for line in sys.stdin):
        if stream:
            for piece in model.stream_text(text):
                print(piece, end="", flush=True)
            print()
            continue
        if ids:
            generated = model.generate([_numbers(text)])
            answer, shown = _of_ids(generated.tokens[0], generated.scores)
        else:
            answer = shown = model.generate_text(text)
            if isinstance(answer, list):
                shown = "\n".join(f"{x.text}\t{x.score:.6g}" for x in answer)
                answer = [x._asdict() for x in answer]
        print(json.dumps({"input": text, "output": answer}) if as_json else shown, flush=True)


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="A model folder of Hugging Face transformers.")],
    output: Annotated[Path, typer.Argument(help="The .keras file to write.")],
    architecture: Annotated[
        str | None,
        typer.Option(help="The model class; by default that of config.json."),
    ] = None,
    segments: Annotated[
        bool, typer.Option(help="Keep BERT's segments input, for pairs of texts.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Converts a BERT, GPT or T5 with its weights to a .keras file. Downloads nothing."""
    if output.suffix != ".keras":
        raise typer.BadParameter(f"the file to write must end in .keras, got {output}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {output.parent}")
    with _work("loading TensorFlow"), native_log.removed():
        from keras_tfm.checkpoints import load_huggingface
    with _work(f"reading {folder}"), native_log.removed():
        options = {} if segments else {"segments": False}
        model = load_huggingface(folder, architecture, **options)
        new = output.with_name(f".{output.name}.new.keras")
        try:
            model.save(new)
            os.replace(new, output)
        finally:
            new.unlink(missing_ok=True)
    inputs = list(model.input) if isinstance(model.input, dict) else [model.inputs[0].name]
    result = {"path": str(output), "parameters": model.count_params(), "inputs": inputs}
    shown = f"{output}: {model.count_params():,} parameters, inputs {', '.join(inputs)}"
    print(json.dumps(result, indent=2) if as_json else shown, flush=True)


def _of_ids(tokens: Any, scores: Any) -> tuple[Any, str]:
    """The output for one row (T,) or several hypotheses (n, T): for JSON, and as text."""
    if tokens.ndim == 1:
        return tokens.tolist(), ",".join(map(str, tokens))
    pairs = list(zip(tokens.tolist(), scores[0].tolist(), strict=True))
    lines = (f"{','.join(map(str, row))}\t{score:.6g}" for row, score in pairs)
    return [{"ids": row, "score": score} for row, score in pairs], "\n".join(lines)


def _load(path: Path) -> Any:
    import keras_tfm

    with _work(f"loading {path.name}"), native_log.removed():
        return keras_tfm.load_model(path, compile=False)


def _arrays(path: Path | None) -> dict[str, Any] | None:
    """The arrays of an .npz file."""
    if path is None:
        return None
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    if not hasattr(loaded, "files"):
        raise ValueError(f"{path} must be an .npz file of arrays by input, got one array")
    return {name: loaded[name] for name in loaded.files}


def _rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an .npz file one by one, for `representative_data`."""
    arrays = _arrays(path)
    assert arrays is not None
    count = min(map(len, arrays.values()), default=0)
    return [{name: x[i : i + 1] for name, x in arrays.items()} for i in range(count)]


def _print(result: Any, as_json: bool) -> None:
    print(json.dumps(result.asdict(), indent=2) if as_json else result, flush=True)


@contextmanager
def _work(text: str) -> Iterator[None]:
    """Shows the current work on standard error and, for an export, each step."""
    with messages.status(text) as status:

        class Steps(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                line = f"{text}: {record.getMessage()}"
                status.update(line)
                if not messages.is_terminal:
                    messages.print(line)

        logger, handler = logging.getLogger("keras_tfm"), Steps()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # otherwise TensorFlow's handler prints them, too
        try:
            yield
        finally:
            logger.removeHandler(handler)


def main() -> None:
    """The command `keras-tfm`."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # Typer's code, too
    except BrokenPipeError:
        sys.exit(FAILED)
    except Exception as error:
        # Errors of the user's input; any other error is a bug and keeps its traceback.
        if not isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
            raise
        verification = getattr(error, "verification", None)
        if verification is not None:
            _print(verification, "--json" in sys.argv)
        messages.print(f"keras-tfm: {error}", soft_wrap=True)
        sys.exit(FAILED if verification is None else DIFFERENT)


if __name__ == "__main__":
    main()
