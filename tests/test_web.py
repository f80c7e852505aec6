"""`write_page` without a browser: forms, what the folder holds, errors, and npm's packages."""

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from kinds_of_files import KINDS, file_of
from small_exports import classifier_file, with_manifest

from keras_tfm import web
from keras_tfm.runtime.manifest import storage
from keras_tfm.web import kinds, npm_packages

LOCK = Path(__file__).parents[1] / "examples/web/package-lock.json"


@pytest.fixture
def packages(tmp_path):
    """A node_modules folder with files of the right names and versions."""
    folder = tmp_path / "node_modules"
    for package in npm_packages.PACKAGES:
        for name in (*package.files, "package.json"):
            path = folder / package.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"version": package.version}))
    return folder


def test_the_versions_are_those_that_the_tests_run():
    locked = json.loads(LOCK.read_text())["packages"]
    for package in npm_packages.PACKAGES:
        found = locked[f"node_modules/{package.name}"]
        expected = (package.version, f"sha512-{package.integrity}")
        assert (found["version"], found["integrity"]) == expected


FORMS = {
    "beam": "write",
    "stepped": "write",
    "writer": "write",
    "chat": "chat",
    "int8_caches": "of its signature .* is int8, and LiteRT.js takes float32",
    "embeddings": "its tokenizer is source.model|a page reads tokenizer.json",
    "adapters": "its generate takes prompts",
    "speech": "speech",
    "detector": "pictures",
    "pictures": "pictures",
    "pairs": "pairs",
    "classifier": "classify",
    "captions": "pictures",
    "prefix": "pictures",
    "drawing": "there is no form for",
    "live": "live",
    "ctc": "live",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_each_kind_of_file(kind):
    manifest = storage.read(file_of(kind))
    if FORMS[kind] in kinds.FORMS:
        assert kinds.form_of(manifest) == FORMS[kind]
        return
    with pytest.raises(ValueError, match=FORMS[kind]) as error:
        kinds.form_of(manifest)
    assert "\n" not in str(error.value)


def test_the_folder_is_complete_and_its_policy_has_the_hash_of_its_import_map(packages, tmp_path):
    source = classifier_file().path
    title = "<b>{{hash}}</b>"
    page = web.write_page(source, tmp_path / "site", title=title, packages=packages)
    text = (page.folder / "index.html").read_text()
    assert "<title>&lt;b&gt;{{hash}}&lt;/b&gt;</title>" in text
    (import_map,) = re.findall(r'<script type="importmap">(.*?)</script>', text, re.S)
    digest = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in text
    named = [*json.loads(import_map)["imports"].values()]
    named += re.findall(r'\b(?:src|href)="([^"]+)"', text)
    for path in page.folder.rglob("*.js"):
        if "packages" not in path.parts:
            # Of both kinds of media; `loadModel` imports one only for files that need it.
            found = re.findall(r'(?:from |import\()"(\./[^"]+)"', path.read_text())
            named += [x for x in found if x not in ("./image_processor.js", "./audio.js")]
    worker = (page.folder / "service_worker.js").read_text()
    (files,) = re.findall(r"const FILES = (\[.*?\]);", worker, re.S)
    named += json.loads(files)
    assert "{{" not in worker
    assert not [x for x in named if not (page.folder / x).exists()]
    app = json.loads((page.folder / "page.webmanifest").read_text())
    assert app["name"] == title
    assert all((page.folder / x["src"]).is_file() for x in app["icons"])
    assert (page.folder / "model.tflite").read_bytes() == Path(source).read_bytes()
    assert page.form == "classify"
    assert page.size == sum(x.stat().st_size for x in page.folder.rglob("*") if x.is_file())
    assert 0 < page.download < page.size
    assert "http.server" in str(page)


def test_another_file_is_another_version(packages, tmp_path):
    source = Path(classifier_file().path)
    (tmp_path / "other.tflite").write_bytes(
        with_manifest(source.read_bytes(), lambda manifest: manifest.update(labels=["a", "b", "c"]))
    )
    versions = set()
    for file in (source, tmp_path / "other.tflite", source):
        page = web.write_page(file, tmp_path / "site", packages=packages, overwrite=True)
        worker = (page.folder / "service_worker.js").read_text()
        versions.add(re.search(r'VERSION = \["keras_tfm", "(\w{16})"', worker)[1])
    assert len(versions) == 2


def test_what_is_there_is_kept(packages, tmp_path):
    source = classifier_file().path
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for overwrite, message in ((False, "is not empty"), (True, "was not written by write_page")):
        with pytest.raises(FileExistsError, match=message):
            web.write_page(source, other, packages=packages, overwrite=overwrite)
    assert [x.name for x in other.iterdir()] == ["notes.txt"]
    with pytest.raises(FileExistsError, match="is a file"):
        web.write_page(source, other / "notes.txt", packages=packages)
    with pytest.raises(FileNotFoundError, match="no folder"):
        web.write_page(source, tmp_path / "none" / "site", packages=packages)
    with pytest.raises(FileNotFoundError, match="no such file"):
        web.write_page(tmp_path / "none.tflite", tmp_path / "site", packages=packages)
    damaged = bytearray(Path(source).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.tflite").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        web.write_page(tmp_path / "damaged.tflite", tmp_path / "site", packages=packages)
    assert not (tmp_path / "site").exists()


def test_packages_of_another_version_are_refused(packages, tmp_path):
    source = classifier_file().path
    name = "@litertjs/core"
    (packages / name / "package.json").write_text('{"version": "1.0.0"}')
    with pytest.raises(ValueError, match=r"must have version 2\.5\.3, got 1\.0\.0: npm install"):
        web.write_page(source, tmp_path / "site", packages=packages)
    (packages / name / "package.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"has no package {name}: npm install"):
        web.write_page(source, tmp_path / "site", packages=packages)
    assert not (tmp_path / "site").exists()
    assert not [x for x in tmp_path.iterdir() if x.name.startswith(".keras_tfm")]


def archive(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_archives_are_compared_and_kept(monkeypatch, tmp_path):
    content = archive({"dist/index.js": b"export {};", "../../outside.js": b"x"})
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    package = npm_packages.Package("@a/b", "1.2.3", digest, ("dist/index.js",))
    monkeypatch.setattr(npm_packages, "PACKAGES", (package,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []

    def fetch(package, found=content):
        asked.append(package.name)
        return found

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(npm_packages, "_fetch", lambda x: fetch(x, content + b"!"))
    with pytest.raises(ValueError, match=r"@a/b 1\.2\.3 must have the SHA-512 .* has another$"):
        npm_packages.copy_packages(tmp_path / "out", None)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(npm_packages, "_fetch", fetch)
    for _ in range(2):
        npm_packages.copy_packages(tmp_path / "out", None)
    assert asked == ["@a/b", "@a/b"]  # the second from the cache
    assert [x.name for x in (tmp_path / "out").rglob("*") if x.is_file()] == ["index.js"]
    kept = tmp_path / "cache/keras_tfm/a-b-1.2.3.tgz"
    kept.write_bytes(b"damaged")
    npm_packages.copy_packages(tmp_path / "out", None)
    assert len(asked) == 3 and kept.read_bytes() == content


def test_without_npm_and_registry_the_error_says_what_to_give(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    monkeypatch.setattr(npm_packages.shutil, "which", lambda name: None)
    with pytest.raises(OSError, match=r"there is no npm here.*packages=") as error:
        npm_packages.copy_packages(tmp_path, None)
    assert "\n" not in str(error.value)
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    with pytest.raises(OSError, match="refused"):
        npm_packages.copy_packages(tmp_path, None)


def test_the_command(packages, tmp_path):
    program = "from keras_tfm.cli import main; main()"
    command = [sys.executable, "-c", program, "page", classifier_file().path, tmp_path / "my site"]
    done = subprocess.run([*command, "--packages", packages], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "form classify" in done.stdout
    assert f"--directory '{tmp_path / 'my site'}'\n" in done.stdout
    done = subprocess.run([*command, "--packages", packages], capture_output=True, text=True)
    assert done.returncode == 1
    assert "choose another folder, or --overwrite" in done.stderr.replace("\n", " ")
