"""`keras-tfm predict` for files that describe pictures: pictures in, text out."""

from collections.abc import Callable, Sequence
from pathlib import Path

from keras_tfm import runtime
from keras_tfm.cli.drawing import draw_labels
from keras_tfm.cli.output_paths import OutputPaths
from keras_tfm.cli.pictures import as_json_line, background_of


def answerer(
    model: runtime.Model,
    paths: Sequence[str] | None,
    draw: Path | None,
    prompt: Sequence[int] | None,
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
