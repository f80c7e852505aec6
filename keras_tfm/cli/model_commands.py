"""Commands for a Keras model: export, verify."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from keras_tfm.cli.console import (
    Accelerator,
    Adapter,
    AsJson,
    Cache,
    FilePath,
    app,
    lengths_by_input,
    messages,
    numbers,
    print_result,
    typer,
    with_options,
    work,
)
from keras_tfm.cli.image_options import RULE, channels_of, labels_of, processor_of
from keras_tfm.cli.model_loading import (
    Architecture,
    Custom,
    ModelPath,
    Peft,
    is_checkpoint,
    load_folder,
    load_model,
)


class Quantization(StrEnum):
    """The presets of `export_tflite`."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"
    int8_full = "int8_full"
    int4 = "int4"


class Format(StrEnum):
    """The file formats that `export` writes."""

    tflite = "tflite"
    litertlm = "litertlm"


def _tolerance(value: float | None) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise typer.BadParameter(f"expected a number of at least 0, got {value}")
    return value


Inputs = Annotated[
    Path | None,
    typer.Option(help="An .npz file of rows by input to compare with; by default random rows."),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="The largest allowed relative error; the default depends on the quantization.",
        callback=_tolerance,
    ),
]
# The option of `export` for each argument of `export_tflite`.
EXPORT_OPTIONS = {
    "quantization": "--quantize",
    "signatures": "--signatures",
    "source_length": "--lengths",
    "prompt_length": "--prompt-lengths",
    "prefill_lengths": "--prompt-lengths",
    "default_prompt": "--prompt",
    "max_length": "--max-length",
    "start_id": "--start",
    "end_id": "--end",
    "batch_size": "--batch-size",
    "target": "--target",
    "accelerator": "--accelerator",
    "cache": "--cache",
    "length_penalty": "--length-penalty",
    "keep_float": "--keep-float",
    "keep_int8": "--keep-int8",
    "representative_data": "--data",
    "tokenizer": "--tokenizer",
    "detokenizer": "--detokenizer",
    "chat_template": "--chat-template",
    "images": "--images",
    "labels": "--labels",
    "verify_inputs": "--inputs",
    "tolerance": "--tolerance",
    "overwrite": "--force",
}


@app.command()
def export(
    model: ModelPath,
    output: Annotated[Path, typer.Argument(help="The .tflite or .litertlm file to write.")],
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="litertlm: a language model for LiteRT-LM; by default that of OUTPUT's ending.",
        ),
    ] = None,
    quantize: Annotated[
        Quantization | None,
        typer.Option(
            help="The format of the weights; by default float32, or that of a quantized checkpoint."
        ),
    ] = None,
    signatures: Annotated[
        str | None,
        typer.Option(help="predict, generate, encode, prefill, decode; separated by commas."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Length of the source in ids, or several: 32,128; or a length for each input: "
            "text=32,frames=100. Of a .litertlm file, of a model of embeddings alone."
        ),
    ] = None,
    prompt_lengths: Annotated[
        str | None,
        typer.Option(
            help="Maximum length of a prompt in ids, or several: 16,64; by default that of "
            "--prompt. Of a .litertlm file, numbers of tokens that are read at once."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of tokens per row, with the start token or prompt.", min=1
        ),
    ] = None,
    start: Annotated[int | None, typer.Option(help="Id of the start token.", min=0)] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="In the place of --start: the first ids of an answer, separated by commas, such "
            "as language and task of a Whisper."
        ),
    ] = None,
    end: Annotated[str | None, typer.Option(help="Id of the end token, or several: 2,3.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per call.", min=1)] = 1,
    target: Annotated[
        str | None, typer.Option(help='The stepped input; by default "target", or the only one.')
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam width; 1 is greedy search.", min=1)] = 1,
    length_penalty: Annotated[float, typer.Option(help="Length penalty of the beam search.")] = 1.0,
    hypotheses: Annotated[
        int, typer.Option(help="Hypotheses that the beam search returns.", min=1)
    ] = 1,
    accelerator: Annotated[
        Accelerator,
        typer.Option(
            help="gpu: a graph for LiteRT's GPU delegate, without generate; compare it there."
        ),
    ] = Accelerator.cpu,
    cache: Annotated[
        Cache, typer.Option(help="int8: KV caches in int8, for long texts and long sources.")
    ] = Cache.float32,
    keep_float: Annotated[
        list[str] | None, typer.Option(help="A layer whose weights stay float32; repeatable.")
    ] = None,
    keep_int8: Annotated[
        list[str] | None,
        typer.Option(help="A layer whose weights get 8 bits in int4; repeatable."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Calibration data for int8_full: an .npz file of a few hundred rows."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json, a SentencePiece .model or a folder with a tokenizer."),
    ] = None,
    detokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer of the generated text, if different.")
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face folder whose chat template is stored."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="How pictures become pixels: a folder with preprocessor_config.json, or "
            f"{RULE} such as 224x224, 224x224:fit or 224x224:256:bicubic (the shorter edge to 256, "
            "cropped in the centre)."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Names of the classes in order, a,b,c, or a file with one a line; by default "
            "those of the model's head."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare the file with the model before keeping it.")
    ] = True,
    inputs: Inputs = None,
    tolerance: Tolerance = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is not an earlier export.")
    ] = False,
    custom: Custom = None,
    architecture: Architecture = None,
    peft: Peft = None,
    segments: Annotated[
        bool | None,
        typer.Option(
            help="Of a folder: keep the input of segments; by default where the head may read "
            "pairs of texts."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Exports a model to one file, and verifies the file against the model.

    Of a folder, what the options leave open is the folder's: tokenizer, chat template, start and
    end tokens, lengths, logits processors (also with --beam), rules for pictures; the command
    prints what it took. --max-length is then at most 1024, and --lengths are 32, 128 and the
    longest text, of at most 512 tokens.

    Rows shorter than --lengths are padded with the padding id of their embedding.
    """
    if output.suffix not in (".tflite", ".litertlm"):
        raise typer.BadParameter(
            f"must end in .tflite or .litertlm, got {output}", param_hint="'OUTPUT'"
        )
    if format_ is None:
        format_ = Format.litertlm if output.suffix == ".litertlm" else Format.tflite
    if hypotheses > beam:
        raise typer.BadParameter(
            f"{hypotheses} must be at most --beam, got {beam}", param_hint="'--hypotheses'"
        )
    source_length, names_of_classes = lengths_by_input(lengths, "--lengths"), labels_of(labels)
    # A rule; a folder's is read when TensorFlow is loaded.
    of_folder = images is not None and Path(images).is_dir()
    processor = None if images is None or of_folder else processor_of(images)
    prompt_length = numbers(prompt_lengths, "--prompt-lengths", minimum=1)
    default_prompt = numbers(prompt, "--prompt")
    end_id = numbers(end, "--end")
    verify_inputs, rows = _arrays(inputs, "--inputs"), None if data is None else _rows_of(data)
    if format_ is Format.litertlm:
        others: dict[str, str | Path | None] = {
            "--signatures": signatures,
            "--target": target,
            "--prompt": prompt,
        }
        others |= {"--detokenizer": detokenizer, "--data": data, "--inputs": inputs}
        others |= {"--labels": labels}
        given = [option for option, value in others.items() if value is not None]
        given += ["--accelerator"] * (accelerator is Accelerator.gpu)
        given += ["--cache"] * (cache is Cache.int8)
        given += ["--beam"] * (beam > 1) + ["--batch-size"] * (batch_size > 1)
        if given:
            raise typer.BadParameter(f"is not for --format {format_}", param_hint=f"'{given[0]}'")
    with work("loading TensorFlow", EXPORT_OPTIONS):
        from keras_tfm.export import export_litertlm, export_tflite
        from keras_tfm.export.checkpoints import export_arguments, read_template, size_of_images
        from keras_tfm.export.litertlm.embedder import is_embedder
        from keras_tfm.export.signatures.request import ROLES
        from keras_tfm.export.signatures.text import TEXT
        from keras_tfm.generation import Beam

        strategy = Beam(beam, length_penalty, hypotheses) if beam > 1 else None
    roles = None if signatures is None else [name.strip() for name in signatures.split(",")]
    for role in roles or ():
        if role.removesuffix(TEXT) not in ROLES:
            raise typer.BadParameter(
                f"expected some of {', '.join(ROLES)}, got {role!r}", param_hint="'--signatures'"
            )
    if images is not None and of_folder:
        processor = processor_of(images)
    options = {
        "architecture": architecture,
        "peft": peft,
        "segments": segments,
        "image_size": size_of_images(processor),
        "lazy": None,
    }
    checkpoint = load_folder(model, custom, **options) if is_checkpoint(model) else None
    loaded = load_model(model, custom, **options) if checkpoint is None else checkpoint.model
    embeds = format_ is Format.litertlm and is_embedder(loaded)
    told = checkpoint is not None or embeds or (max_length is not None and end_id is not None)
    if format_ is Format.litertlm and not told:
        raise typer.BadParameter(
            f"--format {format_} needs it", param_hint="'--max-length', '--end'"
        )
    template = None
    if chat_template is not None:
        template = read_template(chat_template, loaded, format_ is Format.litertlm)
    arguments: dict[str, Any] = {
        "signatures": roles,
        "source_length": source_length,
        "prompt_length": prompt_length,
        "default_prompt": default_prompt,
        "max_length": max_length,
        "start_id": start,
        "end_id": end_id,
        "tokenizer": _tokenizer_of(tokenizer),
        "detokenizer": _tokenizer_of(detokenizer),
        "chat_template": template,
        "images": None if images is None else processor_of(images, channels_of(loaded)),
        "accelerator": accelerator.value,
        "quantization": None if quantize is None else quantize.value,
        "strategy": strategy,
    }
    if checkpoint is not None:
        with work(f"reading {model}", EXPORT_OPTIONS):
            taken = export_arguments(checkpoint, arguments, format_ is Format.litertlm)
        said = with_options(taken.describe(EXPORT_OPTIONS), EXPORT_OPTIONS)
        messages.print(f"of the {checkpoint.source}: {said}", soft_wrap=True)
        arguments |= taken.arguments
    if arguments["default_prompt"] and arguments["prompt_length"] is None:
        arguments["prompt_length"] = len(arguments["default_prompt"])
    common: dict[str, Any] = {
        "quantization": arguments.pop("quantization") or Quantization.float32.value,
        "keep_float": keep_float or (),
        "keep_int8": keep_int8 or (),
        "verify": verify,
        "tolerance": tolerance,
        "overwrite": force,
    }
    with work(f"exporting {model.name}", EXPORT_OPTIONS):
        if format_ is Format.litertlm:
            names = ["max_length", "start_id", "end_id", "tokenizer", "chat_template", "images"]
            names += ["strategy", *["source_length"] * (embeds or lengths is not None)]
            chosen = {name: arguments[name] for name in names}
            report = export_litertlm(
                loaded, output, prefill_lengths=prompt_length, **chosen, **common
            )
        else:
            report = export_tflite(
                loaded,
                output,
                batch_size=batch_size,
                target=target,
                cache=cache.value,
                representative_data=rows,
                labels=names_of_classes,
                verify_inputs=verify_inputs,
                **arguments,
                **common,
            )
    print_result(report, as_json)


@app.command()
def verify(
    model: ModelPath,
    file: FilePath,
    inputs: Inputs = None,
    tolerance: Tolerance = None,
    custom: Custom = None,
    architecture: Architecture = None,
    peft: Peft = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
) -> None:
    """Compares every signature of a .tflite file with its model.

    With --adapter, the file runs with the adapter, and the model must have been saved with it.
    """
    verify_inputs = _arrays(inputs, "--inputs")
    with work("loading TensorFlow"):
        from keras_tfm.export import verify as verify_file
        from keras_tfm.export.checkpoints import size_of_images
        from keras_tfm.runtime.manifest import storage
    # Of a folder, the model of the file's size.
    size = size_of_images(storage.read(file).images) if is_checkpoint(model) else None
    loaded = load_model(
        model, custom, architecture=architecture, peft=peft, image_size=size, lazy=None
    )
    with work(f"comparing {file.name} with {model.name}"):
        result = verify_file(loaded, file, verify_inputs, tolerance, adapter=adapter)
    print_result(result, as_json)


def _tokenizer_of(path: Path | None) -> Any:
    """The tokenizer of a folder or GGUF file; the path of another, which the export reads."""
    if path is None or not is_checkpoint(path):
        return path
    from keras_tfm.checkpoints import load_tokenizer

    return load_tokenizer(path)


def _arrays(path: Path | None, option: str) -> dict[str, np.ndarray] | None:
    """The arrays of an .npz file."""
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"{option}: no such file: {path}")
    try:
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        if not all(isinstance(x, np.ndarray) for x in arrays.values()):  # some other zip file
            raise TypeError("its members are not arrays")
    except Exception as error:  # several types: not a zip file, pickled objects, a bare array
        raise ValueError(f"{option}: {path} must be an .npz file of arrays by input") from error
    return arrays


def _rows_of(path: Path) -> list[dict[str, np.ndarray]]:
    """The rows of an .npz file one by one, for `representative_data`."""
    arrays = _arrays(path, "--data")
    assert arrays is not None
    count = min(map(len, arrays.values()), default=0)
    return [{name: x[i : i + 1] for name, x in arrays.items()} for i in range(count)]
