"""Writes what the docs say of each family: README's table and number, and docs/api/models.md.

pip install -e ".[checkpoints]"
python docs/families.py        # a minute; models are built without memory for their weights
python docs/reference.py       # the entries of new builders
"""

import re
import sys
from pathlib import Path

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.model_types import KINDS, MODEL_TYPES
from keras_tfm.models.without_storage import without_storage

ROOT = Path(__file__).parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "api" / "models.md"


def main() -> None:
    write(README, "models", f"\n\n{titles()}\n\n")
    write(README, "number of models", str(len(MODEL_TYPES)))
    entries = builders(PAGE.read_text())
    for name, text in (("classes", classes()), ("sizes", sizes()), ("builders", entries)):
        write(PAGE, name, f"\n\n{text}\n\n")


def write(page: Path, name: str, text: str) -> None:
    """Replaces what stands between two comments."""
    pattern = rf"(<!-- {name} -->).*?(<!-- end {name} -->)"
    whole, count = re.subn(pattern, lambda x: x[1] + text + x[2], page.read_text(), flags=re.S)
    assert count == 1, f"{page.name} must have one place for {name}, found {count}"
    page.write_text(whole)


def titles() -> str:
    """A table of the families by kind."""
    lines = ["| kind | model types | families |", "|---|---:|---|"]
    for kind, heading in KINDS.items():
        names = [x.title for x in MODEL_TYPES if x.kind == kind]
        lines.append(f"| {heading} | {len(names)} | {', '.join(names)} |")
    return "\n".join(lines)


def builders(page: str) -> str:
    """The entries of the builders by kind, with their text on the page; new ones are empty."""
    parts = []
    for kind, heading in KINDS.items():
        parts.append(f"## {heading}: builders")
        for name in sorted({x.builder for x in MODEL_TYPES if kind_of(x.builder) == kind}):
            begin, end = f"<!-- keras_tfm.models.{name} -->\n", "<!-- end -->"
            found = re.search(f"{begin}.*?{end}", page, re.S)
            parts.append(found[0] if found else begin + end)
    return "\n\n".join(parts)


def kind_of(builder: str) -> str:
    """The kind of a builder without arguments: EuroBERT's `llama(causal=False)` is an encoder."""
    types = [x for x in MODEL_TYPES if x.builder == builder]
    return min(types, key=lambda x: len(x.arguments)).kind


def classes() -> str:
    """The model types by kind, with the classes of `transformers` that load and save."""
    parts = []
    for kind, title in KINDS.items():
        heads = ["family", "`model_type`", "builder in `models`", "classes", "padding id"]
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for x in MODEL_TYPES:
            if x.kind == kind:
                names = ", ".join(f"`{name}`" for name in FAMILIES[x.name].architectures)
                cells = [x.title, f"`{x.name}`", f"`{x.call}`", names, x.padding]
                lines.append(f"| {' | '.join(cells)} |")
        parts += [f"### {title}", "\n".join(lines)]
    return "\n\n".join(parts)


def sizes() -> str:
    """Parameters of the sizes in each builder's module, and what their weights take in a file."""
    lines = [
        "| builder | size | parameters | float32 | int8 |",
        "|---|---|---:|---:|---:|",
    ]
    for name in sorted({family.builder.__name__ for family in FAMILIES.values()}):
        builder = getattr(models, name)
        table: dict[str, dict[str, object]] = getattr(sys.modules[builder.__module__], "SIZES", {})
        for size, arguments in table.items():
            with without_storage():
                ids = [vocabulary(name, size)] if vocabularies(name) else []
                model = builder(*ids, **arguments)
            shapes = [tuple(x.shape) for x in model.weights]
            count = sum(map(in_weights, shapes))
            lines.append(
                f"| `{name}` | {size} | {count / 1e6:,.1f} M | {4 * count / 1e6:,.0f} MB "
                f"| {sum(map(in_int8, shapes)) / 1e6:,.0f} MB |"
            )
    return "\n".join(lines)


def vocabularies(builder: str) -> dict[str, int]:
    """The sizes of vocabularies by the start of a size's name, of all types of a builder."""
    types = [x for x in MODEL_TYPES if x.builder == builder]
    return {begin: size for x in types for begin, size in x.vocabularies.items()}


def vocabulary(builder: str, size: str) -> int:
    known = vocabularies(builder)
    return next((x for begin, x in known.items() if begin and size.startswith(begin)), known[""])


def in_weights(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype="int64"))


def in_int8(shape: tuple[int, ...]) -> int:
    """Bytes: matrices have one byte per weight and a scale per channel, vectors stay in float32."""
    count = in_weights(shape)
    return 4 * count if len(shape) < 2 else count + 4 * max(shape[0], shape[-1])


if __name__ == "__main__":
    main()
