"""`keras-tfm predict` for files that read pictures: classes, objects with their boxes, captions."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_tfm import runtime
from keras_tfm.cli.console import refuse
from keras_tfm.cli.drawing import draw_detections, draw_labels
from keras_tfm.cli.output_paths import OutputPaths
from keras_tfm.runtime.manifest.manifest import Predict, Stepped
from keras_tfm.runtime.tasks.pictures import softmax

THRESHOLD = 0.5


class Options(NamedTuple):
    """The options of `predict` that are for pictures alone; None where not given."""

    top: int | None = None
    threshold: float | None = None
    draw: Path | None = None


def is_detector(model: runtime.Model) -> bool:
    """Whether the file's outputs are those that `Model.detect` reads."""
    (signature, *_) = (x for x in model.file.signatures.values() if isinstance(x, Predict))
    return {"logits", "boxes"} <= signature.outputs.keys()


def writes_text(model: runtime.Model) -> bool:
    """Whether the file has signatures that generate, as one that captions or transcribes has."""
    return any(isinstance(x, Stepped) for x in model.file.signatures.values())


def answerer(
    model: runtime.Model, texts: Sequence[str] | None, options: Options, as_json: bool
) -> Callable[[str], str | None]:
    """What `predict` prints for a path of a picture.

    With several pictures, lines begin with the picture's path, as those of grep.
    """
    several = texts is None or len(texts) != 1
    output = None if options.draw is None else OutputPaths("--draw", options.draw, several)
    detects = is_detector(model)
    if detects:
        refuse({"top": options.top}, "it is for classifiers, and the file is a detector")
    else:
        reason = "it is for detectors: the file has no outputs 'logits' and 'boxes'"
        refuse({"threshold": options.threshold}, reason)

    def answer(text: str) -> str | None:
        drawing = None if output is None else output.of_picture(text)
        if detects:
            threshold = THRESHOLD if options.threshold is None else options.threshold
            lines, values = _objects(model, text, threshold, drawing)
        else:
            lines, values = _classes(model, text, options.top, drawing)
        if as_json:
            return as_json_line(text, values)
        lines = [f"{text}\t{line}" for line in lines] if several else lines
        return "\n".join(lines) if lines else None

    return answer


def captioner(
    model: runtime.Model,
    paths: Sequence[str] | None,
    draw: Path | None,
    prompt: str | Sequence[int] | None,
    as_json: bool,
) -> Callable[[str], str]:
    """What `predict` prints for the path of a picture: its caption.

    With several pictures, lines begin with the path, as those of grep.
    """
    if not model.image_processors:
        raise ValueError(f"{model.path} has no image processor: export it with --images")
    if not model.tokenizers:
        raise ValueError(f"{model.path} has no tokenizer: export it with --tokenizer")
    several = paths is None or len(paths) != 1
    output = None if draw is None else OutputPaths("--draw", draw, several)

    def answer(path: str) -> str:
        drawing = None if output is None else output.of_picture(path)
        caption = model.caption(path, prompt)
        assert isinstance(caption, str)  # one for one picture
        shown = " ".join(caption.split())  # a caption is a line
        if drawing is not None:
            draw_labels(Path(path), [shown], drawing, background_of(model))
        if as_json:
            return as_json_line(path, caption)
        return f"{path}\t{shown}" if several else shown

    return answer


def _objects(
    model: runtime.Model, text: str, threshold: float, drawing: Path | None
) -> tuple[list[str], object]:
    """A line per object: label, probability, left, top, right, bottom; and the same for JSON."""
    found = model.detect(text, threshold)
    if drawing is not None:
        draw_detections(Path(text), found, drawing, background_of(model))
    lines = [
        "\t".join([x.label, f"{x.probability:.4f}", *(f"{edge:.1f}" for edge in x.box)])
        for x in found
    ]
    return lines, [x._asdict() for x in found]


def _classes(
    model: runtime.Model, text: str, top: int | None, drawing: Path | None
) -> tuple[list[str], object]:
    """The class with the largest value, or the `top` most probable ones."""
    outputs = {name: x[0] for name, x in model.predict_images(text).items()}
    best = _most_probable(model, outputs, top or 1) if top or drawing is not None else []
    if drawing is not None:
        lines = [f"{label} {probability:.2f}" for label, probability in best]
        draw_labels(Path(text), lines, drawing, background_of(model))
    if top:
        named = [{"label": label, "probability": value} for label, value in best]
        return [f"{label}\t{value:.4f}" for label, value in best], named
    shown = {name: of_classes(x, model.labels) for name, x in outputs.items()}
    line = "\t".join(f"{name}: {x}" for name, x in shown.items())
    values = {name: x.tolist() for name, x in outputs.items()}
    return [next(iter(shown.values())) if len(shown) == 1 else line], values


def _most_probable(
    model: runtime.Model, outputs: dict[str, np.ndarray], count: int
) -> list[tuple[str, float]]:
    """The most probable classes of the output of classes, with their probabilities."""
    rows = [x for x in outputs.values() if x.ndim == 1 and len(x) > 1]
    if len(rows) != 1:
        shapes = {name: x.shape for name, x in outputs.items()}
        raise ValueError(f"--top and --draw need one output of classes, got {shapes}")
    row, labels = rows[0].astype("float64"), model.labels
    if not (row.min() >= 0 and abs(row.sum() - 1) < 1e-3):  # logits
        row = softmax(row)
    names = labels if labels is not None and len(labels) == len(row) else None
    order = np.argsort(-row, kind="stable")[:count].tolist()
    return [(str(i) if names is None else names[i], float(row[i])) for i in order]


def of_classes(x: np.ndarray, labels: list[str] | None, length: int | None = None) -> str:
    """One row of an output as text: the most probable class, or that of each of `length` tokens."""
    if x.ndim == 0 or x.size == 1:
        return f"{x.item():.6g}"
    names = labels if labels is not None and len(labels) == x.shape[-1] else None
    best = x.argmax(-1)
    if x.ndim == 1:
        return f"{best if names is None else names[best]}\t{x[best]:.6g}"
    found = best.ravel() if length is None else best[:length].ravel()
    return " ".join(str(i) if names is None else names[i] for i in found)


def background_of(model: runtime.Model) -> int:
    """The shade behind transparent parts of a picture."""
    return next(iter(model.image_processors.values())).background


def as_json_line(row: object, output: object) -> str:
    """A line of JSON; NaN and infinity, which JSON lacks, raise a ValueError."""
    try:
        return json.dumps({"input": row, "output": output}, allow_nan=False)
    except ValueError:
        raise ValueError("the model returned NaN or an infinite number") from None
