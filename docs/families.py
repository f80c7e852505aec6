"""Writes the tables of docs/families.md: classes and sizes of every family of checkpoints.

pip install -e ".[checkpoints]"
python docs/families.py        # a minute; models are built without memory for their weights
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.models.without_storage import without_storage

PAGE = Path(__file__).with_name("families.md")
# The vocabulary of each size's checkpoints on the Hugging Face hub; "" is every other size.
VOCABULARIES: dict[str, dict[str, int]] = {
    "albert": {"": 30000},
    "bart": {"": 50265},
    "bert": {"": 30522},
    "deberta": {"": 128100},
    "distilbert": {"": 30522},
    "electra": {"": 30522},
    "gemma": {"": 256000, "gemma3": 262144},
    "gpt": {"": 50257, "gpt1": 40478},
    "gpt_neo": {"": 50257},
    "image_gpt": {"": 512},
    "llama": {
        "": 32000, "smollm2": 49152, "qwen": 151936, "llama3": 128256, "llama-3": 128256,
        "mistral": 32768,
    },
    "lxmert": {"": 30522},
    "marian": {"": 58101},
    "mbart": {"": 250027},
    "pegasus": {"": 96103},
    "roberta": {"": 50265, "xlm": 250002},
    "t5": {"": 32128},
    "whisper": {"": 51865, "large-v3": 51866},
}  # fmt: skip


def main() -> None:
    text = PAGE.read_text()
    for name, table in (("classes", classes), ("sizes", sizes)):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(
            pattern, lambda x, t=table: f"{x[1]}\n{t()}\n\n{x[2]}", text, flags=re.S
        )
        assert count == 1, f"{PAGE} must have one place for {name}, found {count}"
    PAGE.write_text(text)


def classes() -> str:
    """The classes of `transformers` that load and save, by family."""
    lines = ["| `model_type` | builder | classes of `transformers` |", "|---|---|---|"]
    for family in FAMILIES.values():
        names = ", ".join(f"`{name}`" for name in family.architectures)
        lines.append(f"| `{family.model_type}` | `models.{family.builder.__name__}` | {names} |")
    return "\n".join(lines)


def sizes() -> str:
    """Parameters of the sizes in each builder's module, and what their weights take in a file."""
    lines = [
        "| builder | size | parameters | float32 | int8 |",
        "|---|---|---:|---:|---:|",
    ]
    for name in sorted({family.builder.__name__ for family in FAMILIES.values()}):
        builder = getattr(models, name)
        table: dict[str, dict[str, Any]] = getattr(sys.modules[builder.__module__], "SIZES", {})
        for size, arguments in table.items():
            with without_storage():
                ids = [vocabulary(name, size)] if name in VOCABULARIES else []
                model = builder(*ids, **arguments)
            shapes = [tuple(x.shape) for x in model.weights]
            count = sum(map(in_weights, shapes))
            lines.append(
                f"| `{name}` | {size} | {count / 1e6:,.1f} M | {4 * count / 1e6:,.0f} MB "
                f"| {sum(map(in_int8, shapes)) / 1e6:,.0f} MB |"
            )
    return "\n".join(lines)


def vocabulary(builder: str, size: str) -> int:
    known = VOCABULARIES[builder]
    return next((x for begin, x in known.items() if begin and size.startswith(begin)), known[""])


def in_weights(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype="int64"))


def in_int8(shape: tuple[int, ...]) -> int:
    """Bytes: matrices have one byte per weight and a scale per channel, vectors stay in float32."""
    count = in_weights(shape)
    return 4 * count if len(shape) < 2 else count + 4 * max(shape[0], shape[-1])


if __name__ == "__main__":
    main()
