import json
import shutil
from pathlib import Path

import pytest

from keras_tfm.checkpoints import load_tokenizer
from keras_tfm.runtime.tokenizers.tokenizer import read

pytest.importorskip("tokenizers")
FOLDER = Path(__file__).parents[1] / "parity" / "huggingface_tokenizers"
CASES = sorted(path.name for path in FOLDER.iterdir())


def expected(case):
    return json.loads((FOLDER / case / "expected.json").read_text())


def need(case):
    if (FOLDER / case / "spiece.model").is_file():
        pytest.importorskip("sentencepiece")


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case):
    need(case)
    tokenizer = load_tokenizer(FOLDER / case)
    wanted = expected(case)
    assert tokenizer.get_vocab_size(with_added_tokens=True) == wanted["size"]
    assert len(wanted["texts"]) > 40
    for text, ids in wanted["texts"]:
        assert tokenizer.encode(text).ids == ids, repr(text)
    for pair, ids, segments in wanted.get("pairs", []):
        encoded = tokenizer.encode(*pair)
        assert encoded.ids == ids, pair
        assert segments in (None, encoded.type_ids), pair


@pytest.mark.parametrize("case", CASES)
def test_a_file_can_carry_it(case):
    """As `export_tflite(tokenizer=...)` does: through its JSON."""
    need(case)
    carried = read("tokenizer.json", load_tokenizer(FOLDER / case).to_str().encode())
    for text, ids in expected(case)["texts"]:
        assert carried.encode(text) == ids, repr(text)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("bert", "the quick brown fox"),
        ("mpnet", "the quick brown fox"),
        ("gpt2", "größere Wörter, 日本語 😀"),
        ("gpt1", "the quick brown fox"),
        ("t5", "the quick brown fox"),
        ("roberta", "größere Wörter, 日本語 😀"),
        ("qwen2", "größere Wörter, 日本語 😀"),
        ("llama", "größere  Wörter, 日本語 😀"),
        ("gemma", "größere  Wörter, 日本語 😀"),
        ("albert_cased", "the quick brown fox"),
        ("xlm_roberta", "the quick brown fox"),
        ("camembert", "the quick brown fox"),
    ],
)
def test_ids_become_text_again(case, text):
    need(case)
    tokenizer = load_tokenizer(FOLDER / case)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


# Faults


def changed(tmp_path, case, **files):
    folder = tmp_path / case
    shutil.copytree(FOLDER / case, folder)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
    return folder


@pytest.mark.parametrize(
    ("case", "files", "error", "message"),
    [
        ("bert", {"vocab__txt": None}, FileNotFoundError, "has no tokenizer"),
        ("bert", {"vocab__txt": ""}, ValueError, r"vocab.txt cannot be read \(expected the tokens"),
        ("bert", {"vocab__txt": b"\xff\xfe\n"}, ValueError, "vocab.txt cannot be read"),
        ("gpt2", {"merges__txt": None}, FileNotFoundError, "has no tokenizer"),
        ("gpt2", {"merges__txt": "a b c\n"}, ValueError, "merges.txt cannot .* two tokens"),
        ("gpt2", {"merges__txt": "zz qq\n"}, ValueError, "merges.txt cannot be read"),
        ("gpt2", {"vocab__json": "{"}, ValueError, "vocab.json cannot be read"),
        ("gpt2", {"vocab__json": '{"a": "b"}'}, ValueError, "vocab.json cannot be read"),
        ("gpt2", {"vocab__json": '{"a": -1}'}, ValueError, "vocab.json cannot be read"),
        ("t5_few", {"spiece__model": b""}, ValueError, "spiece.model cannot be read"),
        ("t5_few", {"spiece__model": b"\0" * 100}, ValueError, "spiece.model cannot be read"),
        ("t5_few", {"spiece__model": "text"}, ValueError, "spiece.model cannot be read"),
        ("bert_json", {"tokenizer__json": "{}"}, ValueError, "tokenizer.json cannot be read"),
        ("bert_json", {"tokenizer__json": ""}, ValueError, "tokenizer.json cannot be read"),
        ("bert", {"config__json": "["}, ValueError, "config.json is not JSON"),
        ("bert", {"vocab__txt": None, "vocab__json": "{}", "merges__txt": ""}, FileNotFoundError,
         "has no tokenizer: neither tokenizer.json nor vocab.txt"),
        ("bert", {"vocab__txt": None, "config__json": '{"model_type": "granite"}'},
         FileNotFoundError, "has no tokenizer: no tokenizer.json, and no vocabulary"),
        ("roberta", {"config__json": '{"model_type": "granite"}'}, ValueError,
         "without it a tokenizer of model_type 'granite' is not supported: load it with transf"),
        ("gpt2", {"tokenizer_config__json": '{"tokenizer_class": "CLIPTokenizerFast"}'}, ValueError,
         "without it a CLIPTokenizer is not supported"),
        ("gpt2_added", {"added_tokens__json": '{"<extra>": 323}'}, ValueError,
         "the token '<extra>' must have the id 323, as its settings say, got 320"),
        ("gpt2_added", {"added_tokens__json": '{"<extra>": "x"}'}, ValueError,
         "added_tokens.json cannot be read"),
        ("roberta_added", {"tokenizer_config__json": '{"added_tokens_decoder": {"4": {}}}'},
         ValueError, "tokenizer_config.json cannot be read"),
        ("llama", {"tokenizer__model": b""}, ValueError, "tokenizer.model cannot be read"),
        ("llama", {"tokenizer__model": "text"}, ValueError, "tokenizer.model cannot be read"),
        ("gemma", {"tokenizer__model": (FOLDER / "t5_few" / "spiece.model").read_bytes()},
         ValueError, "expected a BPE model, got a unigram model"),
        ("albert", {"spiece__model": (FOLDER / "llama" / "tokenizer.model").read_bytes()},
         ValueError, "expected a unigram model, got a BPE model"),
        ("bert", {"tokenizer_config__json": "3"}, ValueError, "must hold a dictionary"),
    ],
    ids=lambda x: str(x)[:40],
)  # fmt: skip
def test_damaged_files_are_refused(case, files, error, message, tmp_path):
    need(case)
    with pytest.raises(error, match=message):
        load_tokenizer(changed(tmp_path, case, **files))


def test_a_cut_model_is_refused(tmp_path):
    need("t5")
    content = (FOLDER / "t5" / "spiece.model").read_bytes()
    for size in (1, 10, len(content) // 2, len(content) - 3):
        with pytest.raises(ValueError, match=r"spiece.model cannot be read"):
            load_tokenizer(changed(tmp_path, "t5", spiece__model=content[:size]))
        shutil.rmtree(tmp_path / "t5")
    content = (FOLDER / "gemma" / "tokenizer.model").read_bytes()
    for size in (1, 10, len(content) // 2, len(content) - 3):
        with pytest.raises(ValueError, match=r"tokenizer.model cannot be read"):
            load_tokenizer(changed(tmp_path, "gemma", tokenizer__model=content[:size]))
        shutil.rmtree(tmp_path / "gemma")


@pytest.mark.parametrize("size", [1, 249, 250 + 1025])
def test_a_vocabulary_of_another_embedding_is_refused(size, tmp_path):
    config = json.dumps({"model_type": "bert", "vocab_size": size})
    with pytest.raises(ValueError, match=rf"has 250 ids and the embedding {size} rows"):
        load_tokenizer(changed(tmp_path, "bert", config__json=config))


@pytest.mark.parametrize("size", [250, 256, 250 + 1024])
def test_rows_may_be_rounded_up(size, tmp_path):
    config = json.dumps({"model_type": "bert", "vocab_size": size})
    tokenizer = load_tokenizer(changed(tmp_path, "bert", config__json=config))
    assert tokenizer.to_str() == load_tokenizer(FOLDER / "bert").to_str()


def test_a_folder_needs_no_configuration(tmp_path):
    folder = changed(tmp_path, "bert", config__json=None, tokenizer_config__json=None)
    assert (
        load_tokenizer(folder).encode("the").ids
        == load_tokenizer(FOLDER / "bert").encode("the").ids
    )


@pytest.mark.parametrize(("model_type", "name"), [("opt", "GPT2"), ("phi", "CodeGen")])
def test_the_classes_of_opt_and_phi(model_type, name, tmp_path):
    """GPT-2's pieces; OPT puts a start token before a text."""
    start = "</s>" if model_type == "opt" else "<|endoftext|>"
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), start)
    settings = {"tokenizer_class": f"{name}Tokenizer", "add_bos_token": start == "</s>", **ends}
    config = json.dumps({"model_type": model_type, "vocab_size": 400})
    options = {"config__json": config, "tokenizer_config__json": json.dumps(settings)}
    tokenizer = load_tokenizer(changed(tmp_path, "gpt2", **options))
    plain = load_tokenizer(FOLDER / "gpt2").encode("größere Wörter").ids
    added = [tokenizer.token_to_id(start)] if model_type == "opt" else []
    assert tokenizer.encode("größere Wörter").ids == [*added, *plain]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_tokenizer(tmp_path / "missing")
