"""`keras-tfm predict` for files that draw: texts in, pictures out."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from keras_tfm import runtime
from keras_tfm.cli.console import typer, work
from keras_tfm.cli.drawing import SUFFIXES, save
from keras_tfm.cli.output_paths import OutputPaths
from keras_tfm.cli.pictures import as_json_line
from keras_tfm.runtime.tasks.drawing import DECODER, JUDGES, PAINTER, holds

# The longest name of a file that is made of a text; that of most file systems has 255 bytes.
LONGEST = 60


class Options(NamedTuple):
    """The options of `predict` that are for files that draw; None where not given."""

    output: Path | None = None
    candidates: int | None = None
    guidance: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    judge: Path | None = None
    force: bool | None = None


def draws(model: runtime.Model) -> bool:
    """Whether the file holds the models that `Model.draw` needs."""
    return holds(model.file, PAINTER, DECODER)


def answerer(
    model: runtime.Model,
    texts: Sequence[str] | None,
    options: Options,
    threads: int,
    as_json: bool,
) -> Callable[[str], str]:
    """What `predict` does with a text: it saves pictures and prints their paths and scores.

    A file gets the only picture, or the best one of those that were judged; a folder gets all, the
    best first. With several texts, lines begin with the text.
    """
    several, candidates = texts is None or len(texts) != 1, options.candidates or 1
    if options.output is None:
        raise typer.BadParameter(
            "the file draws: give a .png file, or a folder for several pictures",
            param_hint="'--output'",
        )
    is_judged = options.judge is not None or holds(model.file, *JUDGES)
    output = OutputPaths(
        "--output",
        options.output,
        several or (candidates > 1 and not is_judged),
        bool(options.force),
    )
    count = candidates if options.output.is_dir() else 1
    with work("sampling", {"top_p": "--top-p"}):
        temperature = 1.0 if options.temperature is None else options.temperature
        sampler = runtime.Sampler(temperature, top_p=options.top_p, seed=options.seed)
    judge = None if options.judge is None else _judge(options.judge, threads)
    guidance = 1.0 if options.guidance is None else options.guidance

    def answer(text: str) -> str:
        if Path(text).suffix.lower() in SUFFIXES and Path(text).is_file():
            raise ValueError(f"expected words to draw, got the picture {text}")
        stem = stem_of(text)
        stems = [stem] if candidates == 1 else [f"{stem}-{i + 1}" for i in range(count)]
        paths = output.of_text(stems)
        found = model.draw(text, candidates, judge, guidance, sampler)
        drawn = cast("list[runtime.Drawing]", found)[:count]  # of one text
        for one, path in zip(drawn, paths, strict=True):
            save(one.picture, path)
        if as_json:
            pairs = zip(drawn, paths, strict=True)
            return as_json_line(text, [{"picture": str(y), "score": x.score} for x, y in pairs])
        lines = [
            str(path) if one.score is None else f"{path}\t{one.score:.4f}"
            for one, path in zip(drawn, paths, strict=True)
        ]
        return "\n".join(f"{text}\t{line}" if several else line for line in lines)

    return answer


def stem_of(text: str) -> str:
    """The name of the picture of a text in a folder.

    >>> from keras_tfm.cli.text_to_picture import stem_of
    >>> stem_of("A red bicycle, 1/2"), stem_of("?")
    ('A_red_bicycle_1_2', 'drawing')
    """
    words = re.sub(r"[^\w-]+", "_", text)[:LONGEST].strip("_")
    return words or "drawing"


def _judge(path: Path, threads: int) -> runtime.Model:
    if not path.is_file():
        raise typer.BadParameter(f"no such file: {path}", param_hint="'--judge'")
    with work(f"loading {path.name}"):
        return runtime.load(path, threads)
