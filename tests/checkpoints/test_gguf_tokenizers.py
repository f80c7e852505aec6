"""Tokenizers and chat templates of GGUF files, beside those of folders and of transformers."""

import json

import pytest
import small_tokenizers
from gguf_files import VOCABULARY, make_gguf, write_gguf

from keras_tfm import checkpoints, runtime
from keras_tfm.checkpoints.tokenizers.gguf_tokenizer import WORDS
from keras_tfm.export import export_tflite
from keras_tfm.export.checkpoints import export_arguments, load_checkpoint

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXTS = [
    *small_tokenizers.CORPUS,
    "Über naïve 東京 привет",
    "  two  spaces ",
    "123456 7.89",
    "don't DON'T",
    "a\n\n b\r\n",
    "é e\u0301 ①",
    "",
]


def byte_level_fields(rule, **changes):
    """Those of GPT-2's kind: byte pairs of a small corpus, and three control tokens."""
    model = json.loads(small_tokenizers.byte_pairs().to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "<|end|>", "<think>"]
    merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
    types = [3 if x in ("<pad>", "<s>", "</s>", "<|end|>") else 1 for x in tokens]
    types[-1] = 4
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": TEMPLATE, **changes,
    }  # fmt: skip


def sentence_piece_fields(tmp_path, architecture):
    """Those of Llama's kind, and a folder with the same SentencePiece model."""
    from keras_tfm.checkpoints.tokenizers.sentence_pieces import read_model

    folder = tmp_path / architecture
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(small_tokenizers.sentence_pieces("bpe"))
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "pad_token": "<pad>"}
    if architecture == "gemma3":
        names = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": None}
        settings |= {"tokenizer_class": "GemmaTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = read_model(folder / "tokenizer.model")
    return folder, {
        "general.architecture": architecture, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _ in model.pieces],
        "tokenizer.ggml.scores": [float(score) for _, score in model.pieces],
        "tokenizer.ggml.token_type": model.kinds, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip


def test_of_gpt_2_as_in_a_folder(tmp_path):
    given = byte_level_fields("gpt-2")
    write_gguf(tmp_path / "x.gguf", given, {})
    found = checkpoints.load_tokenizer(tmp_path / "x.gguf")
    tokens = given["tokenizer.ggml.tokens"]
    (tmp_path / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("\n".join(given["tokenizer.ggml.merges"]))
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "bos_token": "<s>"}
    settings |= {"unk_token": None, "extra_special_tokens": ["<pad>", "<|end|>", "<think>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    wanted = checkpoints.load_tokenizer(tmp_path)
    for line in [*TEXTS, "a<|end|>b <think>c"]:
        assert found.encode(line).ids == wanted.encode(line).ids
    assert found.encode("<|end|><think>").ids == [len(tokens) - 2, len(tokens) - 1]
    # Control tokens are special, and do not appear in a text; a user's token does.
    assert found.decode([len(tokens) - 2, len(tokens) - 1]) == "<think>"


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_of_llama_and_gemma_as_in_a_folder(architecture, tmp_path):
    folder, given = sentence_piece_fields(tmp_path, architecture)
    write_gguf(tmp_path / "x.gguf", given, {})
    found, wanted = (checkpoints.load_tokenizer(x) for x in (tmp_path / "x.gguf", folder))
    assert found.encode(TEXTS[0]).ids[0] == 1
    for line in TEXTS:
        assert found.encode(line).ids == wanted.encode(line).ids
        assert found.decode(found.encode(line).ids) == wanted.decode(wanted.encode(line).ids)


def test_each_digit_alone_and_three_digits(tmp_path):
    """SmolLM's rule and Llama 3's: no token crosses the words of the rule."""
    words = {}
    for rule in ("smollm", "llama-bpe", "qwen2"):
        given = byte_level_fields(rule)
        write_gguf(tmp_path / "x.gguf", given, {})
        splitter = checkpoints.load_tokenizer(tmp_path / "x.gguf").pre_tokenizer
        words[rule] = [x for x, _ in splitter.pre_tokenize_str("a1234 5")]
    assert words["smollm"] == ["a", "1", "2", "3", "4", "Ġ", "5"]
    assert words["llama-bpe"] == ["a", "123", "4", "Ġ", "5"]
    assert words["qwen2"] == ["a", "1", "2", "3", "4", "Ġ", "5"]


def test_chat_template(tmp_path):
    write_gguf(tmp_path / "x.gguf", byte_level_fields("qwen2"), {})
    template = checkpoints.load_chat_template(tmp_path / "x.gguf")
    assert template.prompt("Hi") == "<|user|>Hi<|end|><|assistant|>"
    given = byte_level_fields("qwen2")
    del given["tokenizer.chat_template"]
    write_gguf(tmp_path / "x.gguf", given, {})
    with pytest.raises(FileNotFoundError, match=r"x.gguf has no tokenizer.chat_template"):
        checkpoints.load_chat_template(tmp_path / "x.gguf")


def test_without_a_tokenizer_a_file_takes_ids(tmp_path):
    make_gguf(tmp_path / "x.gguf", lambda name: "Q4_0")
    with pytest.raises(FileNotFoundError, match=r"x\.gguf has no tokenizer"):
        checkpoints.load_tokenizer(tmp_path / "x.gguf")
    taken = export_arguments(load_checkpoint(tmp_path / "x.gguf"), {})
    assert "no tokenizer, which it lacks: the file takes ids" in taken.describe()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"pre": "bloom"}, r"pre must be one of \['gpt-2'.*got 'bloom'"),
        ({"model": "bert"}, r"model must be one of \['gpt2', 'llama'\], got 'bert'"),
        ({"bos_token_id": 9999}, "bos_token_id must be below 302, got 9999"),
        ({"token_type": [1, 1]}, "token_type must have 302 numbers"),
        ({"tokens": [1, 2]}, "has no tokenizer.ggml.tokens, a list of texts"),
        ({"merges": ["q zzz"]}, "x.gguf cannot be read"),
    ],
)
def test_bad_fields(changes, text, tmp_path):
    changes = {f"tokenizer.ggml.{name}": x for name, x in changes.items()}
    write_gguf(tmp_path / "x.gguf", byte_level_fields("gpt-2", **changes), {})
    with pytest.raises(ValueError, match=text) as error:
        checkpoints.load_tokenizer(tmp_path / "x.gguf")
    assert "\n" not in str(error.value) and "x.gguf" in str(error.value)


def test_a_file_of_a_gguf_file_takes_and_gives_texts(run, tmp_path):
    """One command, or one call: all that is needed is in the GGUF file."""
    path, out = tmp_path / "chat.gguf", tmp_path / "chat.tflite"
    given = byte_level_fields("smollm")
    given["tokenizer.ggml.tokens"] = [*given["tokenizer.ggml.tokens"][: VOCABULARY - 1], '!"']
    given["tokenizer.ggml.token_type"] = [3] * 3 + [1] * (VOCABULARY - 3)
    given["tokenizer.ggml.merges"] = ['! "']
    del given["general.architecture"]
    make_gguf(path, lambda name: "Q4_0", also=given)
    code, _, error = run("export", path, out, "--max-length", 32)
    assert code == 0, error
    assert (
        "of the GGUF file: --quantize int4; " in error
        and "its tokenizer; its chat template; --end 2" in error
    )
    model = runtime.load(out)
    assert isinstance(model.generate_text(["!"])[0], str) and model.chat_prompt("#")
    report = export_tflite(path, tmp_path / "python.tflite", max_length=32, verify=False)
    assert (tmp_path / "python.tflite").stat().st_size == out.stat().st_size
    assert report.notes[-1].startswith("of the GGUF file: ")
    code, _, error = run("export", path, out, "--max-length", 32, "--quantize", "int8", "--force")
    assert code == 1 and "has the int4 grids of its checkpoint, got --quantize 'int8'" in error
    code, _, error = run("import", path, tmp_path / "chat.keras")
    assert code == 0, error


@pytest.mark.parametrize(
    "rule", [x for x in WORDS if x in ("gpt-2", "llama-bpe", "qwen2", "tekken")]
)
def test_transformers_finds_the_same_tokens(rule, tmp_path):
    """In files of GPT-2's kind; "smollm" is for it GPT-2's rule, and for llama.cpp its own."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    make_gguf(tmp_path / "x.gguf", lambda name: "Q4_0", also=byte_level_fields(rule))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    ours = checkpoints.load_tokenizer(tmp_path / "x.gguf")
    for line in TEXTS:
        found = ours.encode(line, add_special_tokens=False).ids
        wanted = theirs(line, add_special_tokens=False)["input_ids"]
        if rule == "qwen2":  # Qwen's own tokenizer normalizes texts
            import unicodedata

            wanted = theirs(unicodedata.normalize("NFC", line), add_special_tokens=False)
            wanted = wanted["input_ids"]
        assert found == wanted, line
