"""`keras-tfm predict` for files that read audio: the text of speech, or classes of sounds."""

from collections.abc import Callable, Sequence

from keras_tfm import runtime
from keras_tfm.cli.pictures import as_json_line, of_classes, writes_text
from keras_tfm.runtime.tasks.best_path import ctc_output


def answerer(
    model: runtime.Model,
    paths: Sequence[str] | None,
    prompt: str | Sequence[int] | None,
    as_json: bool,
) -> Callable[[str], str]:
    """What `predict` prints for the path of a WAV file.

    With several recordings, lines begin with the path, as those of grep.
    """
    several = paths is None or len(paths) != 1
    transcribes = writes_text(model) or ctc_output(model.file, model.labels) is not None

    def answer(path: str) -> str:
        values: object
        if transcribes:
            text = model.transcribe(path, prompt=prompt)
            values, shown = text, text.strip()
        else:
            outputs = {name: x[0] for name, x in model.predict_audio(path).items()}
            values = {name: x.tolist() for name, x in outputs.items()}
            lines = {name: of_classes(x, model.labels) for name, x in outputs.items()}
            shown = "\t".join(f"{name}: {x}" for name, x in lines.items())
            shown = next(iter(lines.values())) if len(lines) == 1 else shown
        if as_json:
            return as_json_line(path, values)
        return f"{path}\t{shown}" if several else shown

    return answer
