"""The command `keras-tfm predict`: what a .tflite file says of texts, pictures and recordings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from keras_tfm import runtime
from keras_tfm.cli import pictures, recordings, rows, text_to_picture
from keras_tfm.cli.console import Adapter, AsJson, FilePath, app, numbers, refuse, typer
from keras_tfm.cli.file_commands import Threads, check_roles, check_tokenizers, load
from keras_tfm.cli.image_options import labels_of
from keras_tfm.cli.pictures import as_json_line, of_classes
from keras_tfm.runtime.manifest.manifest import Predict
from keras_tfm.runtime.tasks.embedding import embeds_sentences
from keras_tfm.runtime.tasks.text_rows import is_pairs


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
            "input, an array of two texts for a pair, or an object of them by input.",
        ),
    ] = False,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Each row is a pair of texts with a tab between them, such as a question and a "
            "passage.",
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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Of a file that draws: where pictures are saved, a .png file, or a folder for "
            "several.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Number of pictures drawn per text. If CLIP's encoders are in the file or in that "
            "of --judge, the best comes first, and is the one that a .png file gets.",
            min=1,
        ),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(help="Scale of classifier-free guidance of a drawing; 1 is none."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Temperature of a drawing; 0 takes the most probable codes.", min=0),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw with codes of this total probability.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="For the same pictures each time.", min=0)
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(help="A .tflite file of CLIP's encoders that sorts the candidates."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace pictures that exist with drawn ones.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Of a file that writes captions or transcripts: what comes before the answer, "
            "such as a language or a question, as a text, or as ids separated by commas. Of "
            "sentence embeddings: the name of a prompt in the file. By default those in the file."
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            help="Of sentence embeddings: how many of their first numbers to take (Matryoshka "
            "embeddings). By default all.",
            min=1,
        ),
    ] = None,
    threads: Threads = 1,
    adapter: Adapter = None,
    as_json: AsJson = False,
) -> None:
    """Prints a model's outputs for each text, picture or recording, without Keras or TensorFlow.

    For an output of several classes: the class with the largest value, and the value; for one
    class per token, the class of each token; with --top, classes and their probabilities. For
    sentence embeddings, the numbers of the vector. For a detector, a line per object: label,
    probability, left, top, right and bottom in pixels of the picture. For a model that writes text
    of pictures, the caption; for a WAV file and a model of speech, its text. With several pictures
    or recordings, each line begins with the path. For a file that draws, such as one of
    models.dalle: saves the pictures of each text, and prints their paths and, if they were judged,
    their scores. With --json: all values, by output, or the list of classes, objects or pictures.
    """
    of_pictures = pictures.Options(top, threshold, draw)
    drawing = text_to_picture.Options(
        output, candidates, guidance, temperature, top_p, seed, judge, force or None
    )
    model = load(file, threads, adapter, (), text_to_picture.draws)
    if not embeds_sentences(model.file) or from_json:
        refuse({"dimensions": dimensions}, "it is for texts and sentence embeddings")
    if text_to_picture.draws(model):
        others = {**of_pictures._asdict(), "labels": labels, "prompt": prompt}
        others |= {"from_json": from_json or None, "pairs": pairs or None}
        refuse(others, "the file draws: give texts and --output")
        rows.run(texts, text_to_picture.answerer(model, texts, drawing, threads, as_json))
        return
    refuse(
        drawing._asdict(), "it is for files that draw, with models.dalle and models.dvae_decoder"
    )
    if from_json:
        refuse({"pairs": pairs or None}, "with --from-json a pair is an array of two texts")
    answer = None if from_json else _writer(model, texts, of_pictures, labels, prompt, as_json)
    if answer is not None:
        refuse({"pairs": pairs or None}, "it is for files with one full pass over texts")
        rows.run(texts, answer)
        return
    embeds = embeds_sentences(model.file)
    if from_json or not embeds:
        refuse({"prompt": prompt}, "it is for files that write captions or transcripts, or embed")
    check_roles(model, ("predict",))
    names = labels_of(labels)
    if names is not None:
        _check_labels(model, names)
        model.labels = names
    if pairs and not model.tokenizers:
        refuse({"pairs": pairs}, "it is for files with a tokenizer")
    if model.image_processors and not model.tokenizers and not from_json:
        rows.run(texts, pictures.answerer(model, texts, of_pictures, as_json))
        return
    refuse(of_pictures._asdict(), "it is for pictures, without --from-json")
    if model.sample_rates and not from_json:
        rows.run(texts, recordings.answerer(model, texts, None, as_json))
        return
    if not from_json:
        check_tokenizers(model, "or pass arrays with --from-json")

    def predict_row(text: str) -> str:
        row = _from_json(text, model) if from_json else _pair(text) if pairs else text
        values = list(row.values()) if isinstance(row, dict) else [row]
        is_of_text = any(isinstance(x, str) or is_pairs(x) for x in values)
        run = model.predict_text if is_of_text else model.predict
        if embeds and isinstance(row, str):
            (name,) = _full_pass(model).outputs
            # With a prompt of the file before the text.
            outputs = {name: model.embed(row, prompt, dimensions)}
        else:
            outputs = {name: _only_row(x) for name, x in run(row).items()}
        if as_json:
            return as_json_line(
                json.loads(text) if from_json else text,
                {name: x.tolist() for name, x in outputs.items()},
            )
        if embeds:
            return "\t".join(" ".join(f"{v:.6g}" for v in x) for x in outputs.values())
        length = None
        if not from_json:
            one = text if row is text else row[0]
            length = len(model.tokenizers[_first_text(model)].encode_typed(one)[0])
        shown = {name: of_classes(x, model.labels, length) for name, x in outputs.items()}
        if len(shown) == 1:
            return next(iter(shown.values()))
        return "\t".join(f"{name}: {x}" for name, x in shown.items())

    rows.run(texts, predict_row)


def _only_row(batch: np.ndarray) -> np.ndarray:
    """The row of a batch of one."""
    if len(batch) != 1:
        raise ValueError(
            f"expected one row, got {len(batch)}: give each row an argument or a line of its own"
        )
    row: np.ndarray = batch[0]
    return row


def _writer(
    model: runtime.Model,
    texts: list[str] | None,
    of_pictures: pictures.Options,
    labels: str | None,
    prompt: str | None,
    as_json: bool,
) -> Callable[[str], str] | None:
    """How a file that captions or transcribes answers; None for another file."""
    signatures = model.file.signatures.values()
    reads_pictures = any(x.is_pixels for signature in signatures for x in signature.inputs.values())
    reads_audio = bool(model.sample_rates and model.tokenizers)
    if not pictures.writes_text(model) or not (reads_pictures or reads_audio):
        return None
    given = {**of_pictures._asdict(), "labels": labels}
    if reads_pictures:
        del given["draw"]
    what = "captions" if reads_pictures else "transcripts"
    refuse(given, f"it is for classes and objects, and the file writes {what}")
    begin = _ids_or_text(prompt)
    if reads_pictures:
        return pictures.captioner(model, texts, of_pictures.draw, begin, as_json)
    return recordings.answerer(model, texts, begin, as_json)


def _ids_or_text(prompt: str | None) -> list[int] | str | None:
    """The ids of "5,9", and any other text as it is."""
    is_ids = prompt is not None and all(x.strip().isdecimal() for x in prompt.split(","))
    return numbers(prompt, "--prompt") if is_ids else prompt


def _first_text(model: runtime.Model) -> str:
    """The input that reads a text given without a name."""
    return next(name for name in _full_pass(model).inputs if name in model.tokenizers)


def _full_pass(model: runtime.Model) -> Predict:
    """The first signature of a full pass."""
    return next(x for x in model.file.signatures.values() if isinstance(x, Predict))


def _check_labels(model: runtime.Model, labels: list[str]) -> None:
    sizes = {name: x.shape[-1] for name, x in _full_pass(model).outputs.items()}
    if pictures.is_detector(model):
        sizes = {"logits": sizes["logits"] - 1}  # the last class is "no object"
    if len(labels) not in sizes.values():
        raise typer.BadParameter(
            f"the number of labels must be an output's number of classes, {sizes}, "
            f"got {len(labels)}",
            param_hint="'--labels'",
        )


def _pair(text: str) -> list[tuple[str, ...]]:
    """The two texts of a row, with a tab between them."""
    both = tuple(text.split("\t"))
    if len(both) != 2:
        raise ValueError(f"expected two texts with a tab between them, got {len(both)}")
    return [both]


def _is_pair(x: object) -> bool:
    return isinstance(x, list) and is_pairs([x])


def _check_booleans(row: dict[str, Any] | list[Any] | str, model: runtime.Model) -> None:
    """Raises for true and false where an input has numbers: NumPy takes them for 1 and 0."""
    inputs = _full_pass(model).inputs
    values = row if isinstance(row, dict) else {next(iter(inputs)): row}
    for name, x in values.items():
        if name in inputs and inputs[name].dtype != "bool" and _has_booleans(x):
            raise ValueError(f"expected numbers for {name!r}, got true or false")


def _has_booleans(x: object) -> bool:
    return isinstance(x, bool) or (isinstance(x, list) and any(map(_has_booleans, x)))


def _from_json(text: str, model: runtime.Model) -> Any:
    """A row of JSON, with pictures as pixels."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {text[:40]!r} ({error})") from None
    if not isinstance(row, dict | list | str):
        raise ValueError(f"expected a JSON object, array or string, got {text[:40]!r}")
    _check_booleans(row, model)
    processors = model.image_processors
    if _is_pair(row):
        return [tuple(row)]
    if isinstance(row, dict):
        row = {name: [tuple(x)] if _is_pair(x) else x for name, x in row.items()}
    if isinstance(row, str) and processors and not model.tokenizers:
        return {next(iter(processors)): next(iter(processors.values()))(row)}
    if isinstance(row, dict):
        return {
            name: processors[name](x) if name in processors and isinstance(x, str) else x
            for name, x in row.items()
        }
    return row
