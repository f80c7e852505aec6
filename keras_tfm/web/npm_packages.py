"""The npm packages that a page runs on: LiteRT.js and the tokenizers, fetched once.

Each archive is compared with the checksum of the version that the tests ran, then kept in the
cache, `keras_tfm` in `XDG_CACHE_HOME` or `~/.cache`.

>>> from keras_tfm.web.npm_packages import PACKAGES
>>> [f"{x.name} {x.version}" for x in PACKAGES]
['@huggingface/tokenizers 0.2.0', '@litertjs/core 2.5.3', '@litertjs/wasm-utils 2.5.3']
"""

import base64
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from keras_tfm.atomic_files import replacement, temporary_folder

_LITERT = "dist/index.js", "wasm/litert_wasm_internal.js", "wasm/litert_wasm_internal.wasm"
# For browsers without relaxed SIMD, such as Safari.
_COMPATIBLE = "wasm/litert_wasm_compat_internal.js", "wasm/litert_wasm_compat_internal.wasm"
_SECONDS = 60  # without an answer


class Package(NamedTuple):
    """A version of a package.

    Attributes:
        name, version: str.
        integrity: str, SHA-512 of the archive in base 64, as in package-lock.json.
        files: those that a page needs.
    """

    name: str
    version: str
    integrity: str
    files: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The file name of its archive, as of `npm pack`."""
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


# The versions and checksums of examples/web/package-lock.json.
PACKAGES = (
    Package(
        "@huggingface/tokenizers",
        "0.2.0",
        "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        ("LICENSE", "dist/tokenizers.min.mjs"),
    ),
    Package(
        "@litertjs/core",
        "2.5.3",
        "PlGmbMOq9WitX7FO0jhbdJw9GthatsyuCQXjTt/wJZo0FLaw48q4tz8IwqgqCIkviYGr9OFDL1kCnN4nzWoyJQ==",
        (*_LITERT, *_COMPATIBLE),
    ),
    Package(
        "@litertjs/wasm-utils",
        "2.5.3",
        "4fJiw6tBQnIs+0jH/OQ16nYOiSl8/+zZnn5h2ul8aTKHi05sVqZW580Tmk78pC2kT39A9OYBVdFawteZ/sI1kQ==",
        ("dist/index.js",),
    ),
)


def copy_packages(target: Path, source: Path | None) -> None:
    """Copies the files that a page needs into `target`, a folder for each package.

    Args:
        target: an existing folder.
        source: a `node_modules` folder with the packages; None: the cache, or npm's registry.

    Raises:
        FileNotFoundError: `source` lacks a file.
        ValueError: it has another version, or an archive has another checksum.
        OSError: the packages cannot be fetched.
    """
    for package in PACKAGES:
        own = target / package.name
        contents = _from_folder(package, source) if source else _from_archive(package)
        for name, content in contents.items():
            path = own / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _from_folder(package: Package, source: Path) -> dict[str, bytes]:
    folder = source / package.name
    about = folder / "package.json"
    if not about.is_file():
        raise FileNotFoundError(f"{source} has no package {package.name}: {_install(source)}")
    version = json.loads(about.read_bytes()).get("version")
    if version != package.version:
        raise ValueError(
            f"{folder} must have version {package.version}, got {version}: {_install(source)}"
        )
    return {name: (folder / name).read_bytes() for name in package.files}


def _install(folder: Path) -> str:
    names = " ".join(f"{x.name}@{x.version}" for x in PACKAGES)
    return f"npm install --prefix {shlex.quote(str(folder.parent))} {names}"


def _from_archive(package: Package) -> dict[str, bytes]:
    path = _cache() / package.archive
    if path.is_file() and _is_right(package, path.read_bytes()):
        content = path.read_bytes()
    else:
        content = _fetch(package)
        if not _is_right(package, content):
            raise ValueError(
                f"{package.name} {package.version} must have the SHA-512 {package.integrity}, "
                f"but the registry's archive of {len(content):,} bytes has another"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacement(path) as new:
            new.write_bytes(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {name: _member(archive, f"package/{name}") for name in package.files}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None  # a file: the checksum of the archive is right
    return file.read()


def _is_right(package: Package, content: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(content).digest()).decode() == package.integrity


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keras_tfm"


def _fetch(package: Package) -> bytes:
    """The archive: by npm, which knows its registry and proxies; without it, from the registry."""
    registry = os.environ.get("NPM_CONFIG_REGISTRY")
    npm = shutil.which("npm")
    try:
        if npm:
            return _pack(npm, package)
        if registry:
            base = package.name.split("/")[-1]
            url = f"{registry.rstrip('/')}/{package.name}/-/{base}-{package.version}.tgz"
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"NPM_CONFIG_REGISTRY must be an address, got {registry!r}")
            with urllib.request.urlopen(url, timeout=_SECONDS) as response:
                return response.read()
        reason = "there is no npm here, and NPM_CONFIG_REGISTRY is not set"
    except subprocess.CalledProcessError as error:
        lines = [x for x in error.stderr.splitlines() if x.startswith("npm error")]
        reason = "; ".join(lines[:2]) or f"npm ended with {error.returncode}"
    except (urllib.error.URLError, TimeoutError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise OSError(
        f"cannot fetch {package.name} {package.version} ({reason}): without a network give "
        "packages=, a node_modules folder that has it"
    )


def _pack(npm: str, package: Package) -> bytes:
    with temporary_folder() as folder:
        subprocess.run(
            [npm, "pack", f"{package.name}@{package.version}", "--pack-destination", folder],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=5 * _SECONDS,
        )
        return (folder / package.archive).read_bytes()
