"""Writes the folder of a web app around a .tflite file.

The app is keras_tfm/web/app: a form for each kind of file, and a service worker, after whose first
run the page works without a network. The file runs on LiteRT.js, by keras_tfm/web/runtime/model.js.
"""

import base64
import hashlib
import html
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from keras_tfm.atomic_files import check_parent, real, temporary_folder
from keras_tfm.runtime.manifest import storage
from keras_tfm.web.kinds import FORMS, form_of
from keras_tfm.web.npm_packages import copy_packages

_APP = Path(__file__).parent / "app"
_RUNTIME = Path(__file__).parent / "runtime"
_PACKAGES = "packages"
_IMPORTS = {
    "@huggingface/tokenizers": "dist/tokenizers.min.mjs",
    "@litertjs/core": "dist/index.js",
    "@litertjs/wasm-utils": "dist/index.js",
}
# What every page needs, and what only some forms need.
_PICTURES = _APP / "bars.js", _RUNTIME / "image_processor.js", _RUNTIME / "resampling.js"
_SHARED = (
    *(_RUNTIME / "model.js", _RUNTIME / "tokenizer_check.js", _APP / "app.js", _APP / "style.css"),
    *(_APP / "icon.svg", _APP / "icon-192.png", _APP / "icon-512.png"),
)
_OF_FORM = {
    "pictures": _PICTURES,
    "pairs": _PICTURES,
    "classify": (_APP / "bars.js",),
    "speech": (_APP / "bars.js", _RUNTIME / "audio.js"),
    "live": (_RUNTIME / "audio.js", _RUNTIME / "capture.js"),
}
# Fetched when the model loads, not when the service worker is installed.
_LARGE = 1_000_000


class Page(NamedTuple):
    """What `write_page` wrote.

    Attributes:
        folder: Path.
        form: str, the kind of page: chat, write, classify, search, pictures, pairs, speech or live.
        size: int, bytes of the folder.
        download: int, bytes that a browser fetches: one of the two builds of LiteRT.js.

    Example:

    >>> from pathlib import Path
    >>> from keras_tfm.web import Page
    >>> Page(Path("site"), "chat", 21_000_000, 11_000_000).form
    'chat'
    """

    folder: Path
    form: str
    size: int
    download: int

    def __str__(self) -> str:
        folder = shlex.quote(str(self.folder))
        kilobytes = [f"{round(x / 1000):,}" for x in (self.size, self.download)]
        return (
            f"{self.folder}: form {self.form}, {kilobytes[0]} kB, of which a browser fetches "
            f"{kilobytes[1]} kB once\n"
            f"python -m http.server 8000 --bind 127.0.0.1 --directory {folder}\n"
            "http://127.0.0.1:8000/"
        )


def write_page(
    file: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    title: str | None = None,
    packages: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Page:
    """Writes a folder that any static web server serves: a page that runs a file in the browser.

    The page has a form for the file, told from its manifest: a chat, a text to continue or
    translate, a classifier, a search by meaning, pictures with classes, boxes or captions, pictures
    and words of CLIP, speech, or speech as it comes. It loads nothing from another host, and after
    the first visit works without a network. The folder has the file, `model.js`, LiteRT.js and the
    tokenizers, which npm's registry has; they are fetched once, compared with their checksums, and
    kept in a cache.

    Args:
        file: path of a .tflite file with text, pictures or audio as its input.
        folder: path of the folder to write, which must not exist or be empty.
        title: str, of the page; default: by the form, such as "Chat".
        packages: path of a `node_modules` folder with the packages, for machines without a network.
        overwrite: bool, whether to replace a folder that `write_page` wrote before.

    Returns:
        `Page`.

    Raises:
        FileNotFoundError: there is no such file, or `packages` lacks one.
        FileExistsError: the folder is not empty.
        ValueError: no form fits the file, or it is damaged; a package has another checksum.
        OSError: the packages cannot be fetched.

    Example:

    >>> from keras_tfm.web import write_page
    >>> def of(path):
    ...     return write_page(path, "site", title="My model").form
    """
    source, target = Path(file), Path(folder)
    manifest = storage.read(source)
    try:
        form = form_of(manifest)
    except ValueError as error:
        raise ValueError(f"{source} cannot become a page: {error}") from None
    _check_folder(target, overwrite)
    with temporary_folder(real(target).parent) as parent:
        new = parent / "new"
        new.mkdir()
        for path in (*_SHARED, _APP / f"{form}.js", *_OF_FORM.get(form, ())):
            shutil.copyfile(path, new / path.name)
        copy_packages(new / _PACKAGES, None if packages is None else Path(packages))
        shutil.copyfile(source, new / "model.tflite")
        heading = FORMS[form] if title is None else title
        (new / "index.html").write_text(_index(form, heading, source.name), "utf-8")
        (new / "page.webmanifest").write_text(_web_manifest(heading), "utf-8")
        (new / "service_worker.js").write_text(_service_worker(new), "utf-8")
        sizes = {x: x.stat().st_size for x in new.rglob("*") if x.is_file()}
        new.chmod(0o755)
        if target.exists():
            shutil.move(real(target), parent / "old")
        os.replace(new, real(target))
    unused = sum(size for path, size in sizes.items() if "_compat_" in path.name)
    return Page(target, form, sum(sizes.values()), sum(sizes.values()) - unused)


def _check_folder(folder: Path, overwrite: bool) -> None:
    check_parent(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, expected a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(f"{folder} is not empty: choose another folder, or overwrite=True")
    if not (folder / "page.webmanifest").is_file():
        raise FileExistsError(f"{folder} was not written by write_page, and is not replaced")


def _index(form: str, title: str, name: str) -> str:
    """The page, with the form inside; the policy has the hash of its import map."""
    imports = {key: f"./{_PACKAGES}/{key}/{path}" for key, path in _IMPORTS.items()}
    import_map = "\n" + json.dumps({"imports": imports}, indent=2) + "\n    "
    digest = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    values = {
        "title": html.escape(title),
        "file": html.escape(name),
        "form": form,
        "hash": digest,
        "import_map": import_map,
        "body": (_APP / f"{form}.html").read_text("utf-8").rstrip("\n"),
    }
    text = (_APP / "index.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)  # in one pass


def _web_manifest(title: str) -> str:
    icons = [
        {"src": "icon.svg", "sizes": "any", "type": "image/svg+xml"},
        *(
            {"src": f"icon-{x}.png", "sizes": f"{x}x{x}", "type": "image/png"}
            for x in (192, 512)
        ),
    ]  # fmt: skip
    fields = {
        "name": title,
        "short_name": title[:12],
        "start_url": "./",
        "scope": "./",
        "display": "standalone",
        "background_color": "#fbfaf7",
        "theme_color": "#0b5c55",
        "icons": icons,
    }
    return json.dumps(fields, indent=2) + "\n"


def _service_worker(folder: Path) -> str:
    """The service worker with the names of the small files, and a version of all files."""
    files = sorted(x for x in folder.rglob("*") if x.is_file())
    version = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        version.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    small = [x.relative_to(folder).as_posix() for x in files if x.stat().st_size < _LARGE]
    kept = [x for x in small if x != "model.tflite" and "/wasm/" not in x and "LICENSE" not in x]
    text = (_APP / "service_worker.js").read_text("utf-8")
    names = json.dumps(["./", *kept], indent=2)
    return text.replace('"{{version}}"', json.dumps(version.hexdigest()[:16])).replace(
        '["{{files}}"]', names
    )
