"""Emoji of several vendors, for emoji.py: one set of pictures per style, the same names in all.

    pip install -e ".[examples]"
    python examples/emoji_data.py        # downloads, decodes, prints statistics; a minute

`npm pack` fetches the packages (160 MB): emoji-datasource-google and -twitter (MIT; the pictures
are Google's Noto, Apache-2.0, and Twemoji, CC-BY 4.0), @lobehub/fluent-emoji-3d and -flat
(Microsoft's, MIT) and openmoji (CC-BY-SA 4.0). Pictures are stored in artifacts/ and never
committed. A class is one of Unicode's subgroups, such as "animal-bird"; variants of skin colour are
left out.
"""

import json
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_tfm.runtime import ImageProcessor

FOLDER = Path("artifacts/emoji")
SIZE = 48
# Package, the folder of its pictures, and their ending.
STYLES = {
    "google": ("emoji-datasource-google@16.0.0", "package/img/google/64", "png"),
    "fluent 3D": ("@lobehub/fluent-emoji-3d@1.1.0", "package/assets", "webp"),
    "fluent flat": ("@lobehub/fluent-emoji-flat@1.1.0", "package/assets", "svg"),
    "openmoji": ("openmoji@17.0.0", "package/color/svg", "svg"),
    "twitter": ("emoji-datasource-twitter@16.0.0", "package/img/twitter/64", "png"),
}
UNSEEN = "twitter"
# The minimum number of emoji per class.
LEAST = 5


class Pictures(NamedTuple):
    """Pictures of one style or several.

    Attributes:
        pixels: (N, SIZE, SIZE, 3), uint8, on white.
        classes: (N,), int, index into `names`.
        names: list of str, the classes.
        opacity: (N, SIZE, SIZE), uint8, 0 where a picture is transparent.
        codes: (N,), str, the emoji: its code points in hexadecimal, joined by "-".
    """

    pixels: np.ndarray
    classes: np.ndarray
    names: list[str]
    opacity: np.ndarray
    codes: np.ndarray


def styles(folder: Path = FOLDER) -> dict[str, Pictures]:
    """All styles, with the emoji that are in at least five of a class."""
    stored = folder / "pictures.npz"
    if not stored.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(stored, **_decoded(folder))
    loaded = np.load(stored)
    names = [str(x) for x in loaded["names"]]
    return {
        style: Pictures(
            loaded[f"{style}/pixels"],
            loaded[f"{style}/classes"],
            names,
            loaded[f"{style}/opacity"],
            loaded[f"{style}/codes"],
        )
        for style in STYLES
    }


def together(parts: list[Pictures]) -> Pictures:
    """Several styles as one set."""
    return Pictures(
        np.concatenate([x.pixels for x in parts]),
        np.concatenate([x.classes for x in parts]),
        parts[0].names,
        np.concatenate([x.opacity for x in parts]),
        np.concatenate([x.codes for x in parts]),
    )


def digits() -> dict[str, Pictures]:
    """The digits of scikit-learn in place of emoji, for a test run without a network."""
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = (255 - found.images * 255 / 16).astype("uint8").repeat(6, 1).repeat(6, 2)
    rgb = grey[..., None].repeat(3, -1)
    names = [str(i) for i in range(10)]
    parts = np.array_split(np.arange(600), len(STYLES))
    return {
        style: Pictures(
            rgb[rows], found.target[rows], names, 255 - grey[rows], found.target[rows].astype(str)
        )
        for style, rows in zip(STYLES, parts, strict=True)
    }


def _decoded(folder: Path) -> dict[str, np.ndarray]:
    files = {style: archive(package, folder) for style, (package, _, _) in STYLES.items()}
    groups = _groups(files["google"])
    counts = Counter(groups.values())
    names = sorted(name for name, count in counts.items() if count >= LEAST)
    rules = {"resize": "fit", "resample": "lanczos"}
    on_white = ImageProcessor((SIZE, SIZE), **rules)
    on_black = ImageProcessor((SIZE, SIZE), **rules, background=0)
    result: dict[str, np.ndarray] = {"names": np.array(names)}
    for style, (_, place, ending) in STYLES.items():
        pixels, opacity, classes, codes = [], [], [], []
        with tarfile.open(files[style]) as opened:
            for member in opened:
                path = Path(member.name)
                group = groups.get(code(path.stem), "")
                if str(path.parent) == place and path.suffix == f".{ending}" and group in names:
                    content = opened.extractfile(member).read()
                    content = _raster(content) if ending == "svg" else content
                    pixels.append(on_white(content)[0])
                    # A pixel of opacity a and colour c is a c + (1 - a) 255 on white, a c on black.
                    missing = pixels[-1].astype(int) - on_black(content)[0]
                    opacity.append(np.clip(255 - missing.max(-1), 0, 255).astype("uint8"))
                    classes.append(names.index(group))
                    codes.append(code(path.stem))
        result[f"{style}/pixels"] = np.stack(pixels)
        result[f"{style}/opacity"] = np.stack(opacity)
        result[f"{style}/classes"] = np.array(classes)
        result[f"{style}/codes"] = np.array(codes)
    return result


def archive(package: str, folder: Path) -> Path:
    """The archive of a package, downloaded once."""
    name, _, version = package.removeprefix("@").replace("/", "-").rpartition("@")
    file = folder / f"{name}-{version}.tgz"
    if not file.exists():
        print(f"downloading {package}", flush=True)
        try:
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
        except FileNotFoundError:
            raise SystemExit("the pictures are npm packages: install npm (Node.js)") from None
    return file


def _groups(file: Path) -> dict[str, str]:
    """Unicode's subgroup of each emoji without a skin colour, by its code points."""
    with tarfile.open(file) as opened:
        entries = json.load(opened.extractfile("package/emoji.json"))
    return {code(x["unified"]): x["subcategory"] for x in entries}


def code(text: str) -> str:
    """Code points in lower case, without the selector for colour, which some vendors leave out."""
    return "-".join(x for x in text.lower().split("-") if x != "fe0f").lstrip("0")


def _raster(svg: bytes) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg.decode(), width=2 * SIZE, height=2 * SIZE))


def main() -> None:
    for style, pictures in styles().items():
        print(f"{style:12} {len(pictures.pixels):6,} pictures, {len(pictures.names)} classes")


if __name__ == "__main__":
    main()
