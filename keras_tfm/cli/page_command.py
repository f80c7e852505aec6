"""The command `keras-tfm page`: a web page that runs a .tflite file."""

from pathlib import Path
from typing import Annotated

from keras_tfm.cli.console import FilePath, app, typer, work
from keras_tfm.web import write_page


@app.command()
def page(
    file: FilePath,
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    title: Annotated[
        str | None, typer.Option(help="Title of the page; by default that of its form.")
    ] = None,
    packages: Annotated[
        Path | None,
        typer.Option(
            help="A node_modules folder with the npm packages, for machines without a network; by "
            "default they are fetched once and kept in a cache."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a page that this command wrote before.")
    ] = False,
) -> None:
    """Writes a folder with a web page that runs a .tflite file in the browser.

    The form is that of the file: chat, text generation, classification, search by meaning, pictures
    (classes, boxes, captions, zero-shot) or speech. Any static web server can serve the folder;
    nothing is loaded from another host, and after the first visit the page works without a network.
    """
    # Of this command, and of the export that a file lacks.
    names = ("packages", "overwrite", "tokenizer", "images", "labels", "signatures")
    with work(f"writing {folder}", {name: f"--{name}" for name in names}):
        result = write_page(file, folder, title=title, packages=packages, overwrite=overwrite)
    print(result, flush=True)
