"""Where pictures are saved: the path of an option, a file for one or a folder for several."""

from pathlib import Path

from keras_tfm.cli.console import typer
from keras_tfm.cli.drawing import SUFFIXES


class OutputPaths:
    """The paths of an option such as --draw.

    Args:
        option: its name, for errors.
        path: its value: a file for one picture, or a folder for several.
        several: whether there may be several pictures.
        replace: whether files that exist are replaced.
    """

    def __init__(self, option: str, path: Path, several: bool, replace: bool = True):
        self._option, self._path, self._replace = option, path, replace
        self._written = set[Path]()
        if path.is_dir():
            return
        if several:
            raise self._bad(f"for several pictures it must be an existing folder, got {path}")
        if path.suffix.lower() not in SUFFIXES:
            raise self._bad(f"must be a folder or end in {', '.join(SUFFIXES)}, got {path}")
        if not path.parent.is_dir():
            raise self._bad(f"no such folder: {path.parent}")
        if path.exists() and not replace:
            raise self._bad(f"{path} exists; --force replaces it")

    def of_picture(self, picture: str) -> Path:
        """Where the copy of a picture is saved; never the picture itself."""
        file = Path(picture)
        path = self._path_of(file.stem)
        if path.exists() and file.exists() and path.samefile(file):
            raise ValueError(f"{self._option} would replace the picture {picture}")
        if path in self._written:
            raise ValueError(f"{self._option} would replace {path}, drawn from another picture")
        self._written.add(path)
        return path

    def of_text(self, stems: list[str]) -> list[Path]:
        """Where the pictures of a text are saved, by the names that they have in a folder."""
        paths = [self._path_of(stem) for stem in stems]
        for path in paths:
            if path in self._written:
                raise ValueError(f"{self._option} would replace {path}, drawn from another text")
            if path.exists() and not self._replace:
                raise ValueError(f"{self._option}: {path} exists; --force replaces it")
        self._written.update(paths)
        return paths

    def _path_of(self, stem: str) -> Path:
        return self._path / f"{stem}.png" if self._path.is_dir() else self._path

    def _bad(self, reason: str) -> typer.BadParameter:
        return typer.BadParameter(reason, param_hint=f"'{self._option}'")
