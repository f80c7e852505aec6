"""The command `keras-tfm import`: a folder or a GGUF file as a .keras file."""

import json
import textwrap
from pathlib import Path
from typing import Annotated

from keras_tfm.atomic_files import check_target, replacement
from keras_tfm.cli.console import AsJson, app, typer, work
from keras_tfm.cli.model_loading import Architecture, Peft, is_checkpoint, load_model
from keras_tfm.model_types import names_of


@app.command("import")
def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder of Hugging Face transformers or sentence-transformers, a .gguf file, or "
            "a preset of KerasHub."
        ),
    ],
    output: Annotated[Path, typer.Argument(help="The .keras file to write.")],
    architecture: Architecture = None,
    peft: Peft = None,
    segments: Annotated[
        bool,
        typer.Option(
            help="Keep the segments input (BERT, ELECTRA, ALBERT, MobileBERT, DeBERTa), for pairs "
            "of texts."
        ),
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Converts a folder with its weights to a .keras file. Downloads nothing."""
    if output.suffix != ".keras":
        raise typer.BadParameter(f"must end in .keras, got {output}", param_hint="'OUTPUT'")
    _check_output(output, force)
    if not folder.exists() or not is_checkpoint(folder):
        if folder.exists():
            raise ValueError(f"{folder} must be a folder or a .gguf file")
        raise FileNotFoundError(f"no such folder or .gguf file: {folder}")
    model = load_model(folder, None, architecture=architecture, segments=segments, peft=peft)
    with work(f"saving {output}"), replacement(output) as new:
        model.save(new)
        _check_output(output, force)  # another import may have written it meanwhile
    inputs = list(model.input) if isinstance(model.input, dict) else [model.inputs[0].name]
    result = {"path": str(output), "parameters": model.count_params(), "inputs": inputs}
    shown = f"{output}: {model.count_params():,} parameters, inputs {', '.join(inputs)}"
    print(json.dumps(result, indent=2) if as_json else shown, flush=True)


def _check_output(output: Path, force: bool) -> None:
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {output.parent}")
    if output.exists() and not (force and output.is_file()):
        raise FileExistsError(
            f"{output} exists" + ("; --force replaces it" if output.is_file() else "")
        )
    check_target(output)


def _model_types() -> str:
    """A paragraph that lists what `import` reads."""
    kinds = {
        "Texts": ("encoder", "decoder", "encoder-decoder"),
        "Images": ("images",),
        "Images and texts": ("images and texts",),
        "Speech": ("speech",),
    }
    names = {name: ", ".join(names_of(*x)) for name, x in kinds.items()}
    names["Texts"] += ", and sentence-transformers of these"
    listed = " ".join(f"{name}: {x}." for name, x in names.items())
    return textwrap.fill(f"Model types, as in config.json. {listed}", 96, break_on_hyphens=False)


import_.__doc__ = f"{import_.__doc__}\n\n{_model_types()}"
