"""The page in examples/web, in headless Chromium, with files made here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dates_data as data
import pytest

from keras_tfm.runtime import manifest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "examples/web"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


def test_the_page_answers_as_python_does(tmp_path):
    for needed, found in {
        "node": shutil.which("node"),
        "npm": shutil.which("npm"),
        "Chromium (CHROMIUM names another than `chromium`)": CHROMIUM,
    }.items():
        if not found:
            pytest.skip(f"needs {needed}")
    if not (WEB / "node_modules").exists():
        installed = subprocess.run(["npm", "ci"], cwd=WEB, capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"npm ci failed: {installed.stderr[-500:]}")
    _export(tmp_path)
    expected = tmp_path / "expected.json"
    subprocess.run(
        [sys.executable, WEB / "test/expected.py", tmp_path, expected],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    settings = {"MODELS": str(tmp_path), "EXPECTED": str(expected), "CHROMIUM": CHROMIUM}
    result = subprocess.run(
        ["npm", "test"], cwd=WEB, env={**os.environ, **settings}, capture_output=True, text=True
    )
    print(result.stdout)
    assert result.returncode == 0


def _export(folder: Path) -> None:
    """A small model that learned nothing, three times: what is compared are its tokens."""
    import keras

    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Beam
    from keras_tfm.models import transformer

    keras.utils.set_random_seed(0)
    vocabulary = data.Vocabulary()
    model = transformer(
        len(vocabulary.source_tokens),
        len(vocabulary.target_tokens),
        dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        normalize_first=True,
    )
    # Wide enough that the answers differ from text to text.
    model.set_weights(
        [3.0 * weight if weight.ndim > 1 else weight for weight in model.get_weights()]
    )
    length = data.SOURCE_LENGTH
    files = {
        "float32": {"source_length": length},
        "int8": {"source_length": length, "quantization": "int8"},
        "beam": {"source_length": (length // 2, length), "batch_size": 2, "strategy": Beam(size=2)},
    }
    for name, options in files.items():
        path = folder / f"{name}.tflite"
        options |= {"start_id": 1, "end_id": 2, "max_length": data.TARGET_LENGTH, "verify": False}
        export_tflite(model, path, **options)
        _add_tokenizers(path, vocabulary)


def _add_tokenizers(path: Path, vocabulary: data.Vocabulary) -> None:
    """Puts both tokenizers into the metadata and their names into the manifest."""
    tags = [f"[{tag}]" for tag in (data.ANY, *data.LOCALES)]
    tokens = [*vocabulary.source_tokens[:2], *tags, *vocabulary.source_tokens[2 + len(tags) :]]
    tokenizers = {
        "source": _tokenizer(tokens, tokens[: 2 + len(tags)], _normalizer()),
        "target": _tokenizer(vocabulary.target_tokens, vocabulary.target_tokens[:3], None),
    }
    entries = manifest.read(path)
    schema = manifest.import_litert("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(path.read_bytes(), 0))
    model.metadata = [entry for entry in model.metadata if entry.name != manifest.METADATA_NAME]
    entries["tokenizers"] = {}
    for key, tokenizer in tokenizers.items():
        entry, buffer = schema.MetadataT(), schema.BufferT()
        entries["tokenizers"][key] = name = f"tokenizer_{key}.json"
        entry.name, entry.buffer = name.encode(), len(model.buffers)
        buffer.data = list(json.dumps(tokenizer, ensure_ascii=False).encode())
        model.buffers.append(buffer)
        model.metadata.append(entry)
    path.write_bytes(manifest.add(manifest._packed(model), entries))


def _tokenizer(tokens: list[str], special: list[str], normalizer: dict | None) -> dict:
    """A tokenizer.json of single characters."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": tokens.index(token), "content": token, "special": True, **flags}
            for token in special
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "unk_token": tokens[1],
        },
    }


def _normalizer() -> dict:
    """`dates_data.normalise`, in the words of a tokenizer.json."""
    replaced: dict[str, str] = {}
    for code, plain in data.PLAIN_CHARACTERS.items():
        replaced[plain or ""] = replaced.get(plain or "", "") + chr(code)
    steps = [
        {"type": "Replace", "pattern": {"Regex": f"[{characters}]"}, "content": plain}
        for plain, characters in replaced.items()
    ]
    steps += [
        {"type": "NFKC"},
        {"type": "Replace", "pattern": {"String": "İ"}, "content": "i"},
        {"type": "Lowercase"},
        {"type": "NFKC"},
        {
            "type": "Replace",
            "pattern": {"String": "\N{LATIN SMALL LETTER DOTLESS I}"},
            "content": "i",
        },
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    return {"type": "Sequence", "normalizers": steps}
