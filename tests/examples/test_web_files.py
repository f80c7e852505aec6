"""model.js of keras_tfm/web/runtime in Node, without a browser, with what other files may hold."""

import json
from pathlib import Path

import numpy as np
import pytest
from kinds_of_files import KINDS, file_of
from manifest_lies import NOT_ON_THE_WEB, run_web
from odd_tokenizers import CATASTROPHIC, PUBLISHED, WITHOUT_END, content, with_unknown_words
from small_exports import classifier_file
from small_tokenizers import byte_fallback, byte_pairs, word_pieces, words
from small_writers import END, written
from tokenizers import Regex, Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from web_pages import need_node, run_in_node

from keras_tfm import models, runtime
from keras_tfm.checkpoints import load_tokenizer
from keras_tfm.export import export_tflite
from keras_tfm.runtime import ChatTemplate
from keras_tfm.runtime.tokenizers.tokenizer import prompt_ids, read

pytestmark = pytest.mark.browser
FOLDER = Path(__file__).parents[1] / "parity/huggingface_tokenizers"


@pytest.fixture(scope="module", autouse=True)
def node():
    """All tests here need it."""
    need_node()


def test_vocabularies_as_large_as_those_of_gemma_are_read():
    run_in_node("test:vocabularies", MODEL=classifier_file().path)


def test_texts_of_sessions(tmp_path):
    """Calls that end within a character, stop strings, start tokens, messages."""
    template = ChatTemplate("User: ", "\nModel: ", "</s>\nUser: ", trim=("user",))
    model = written(chat_template=template)
    said = ["東京は日本の首都です。", "ü 5 € für", "👍 done"]
    tokenizers = {
        name: {"json": made.to_str(), "texts": {x: made.encode(x).ids for x in said}}
        for name, made in {"byte pairs": byte_pairs(), "byte fallback": byte_fallback()}.items()
    }
    tokenizers["byte fallback"]["texts"] = {
        x: byte_fallback().encode("l" + x, add_special_tokens=False).ids[1:] for x in said
    }
    ids = byte_pairs().encode("ab##c").ids
    kept = next(n for n in range(len(ids)) if byte_pairs().decode(ids[:n]) == "ab")
    tokenizers["byte pairs"]["stops"] = {"text": "ab##c", "ids": ids, "kept": kept}
    adding = byte_pairs().from_str(byte_pairs().to_str())
    adding.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    read_start = read("tokenizer.json", adding.to_str().encode())
    prompts = ["hello", "<s>hello", "<s><s>hello", "hello<s>", "hello</s>"]
    start = {
        "json": adding.to_str(),
        "prompts": {x: prompt_ids(read_start, x, None, [END], "tokens") for x in prompts},
    }
    (tmp_path / "expected.json").write_text(json.dumps({"tokenizers": tokenizers, "start": start}))
    run_in_node("test:sessions", MODEL=model, EXPECTED=tmp_path / "expected.json")


def test_no_lie_of_a_manifest_is_worse_than_an_error(tmp_path):
    """`python tests/manifest_lies.py --runtimes model.js` tries 10,000."""
    for kind in KINDS:
        if kind not in NOT_ON_THE_WEB:
            (tmp_path / f"{kind}.tflite").write_bytes(Path(file_of(kind)).read_bytes())
    tally = run_web(tmp_path, seed=0, start=0, end=600)
    assert tally.lies.total() == 600 and not tally.faults
    assert 150 < tally.refused.total() < 600


def test_tokenizers_that_never_end_are_refused(tmp_path):
    # The library has a rule of its own for tables, and cuts words at 100 characters.
    refused = {name: x for name, x in WITHOUT_END.items() if name != "a table"}
    read = {
        name: {
            "settings": json.loads(tokenizer.to_str()),
            "texts": [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts],
        }
        for name, tokenizer, texts in (
            ("words", words(), ["two three", "four"]),
            ("word_pieces", word_pieces(), ["hello world", "text number 1"]),
        )
    }
    read |= dict(split_cases())
    for folder in sorted(FOLDER.iterdir()):
        settings = json.loads(load_tokenizer(folder).to_str())
        read[folder.name] = {"settings": settings, "texts": []}
    unseen = {
        name: {
            "settings": json.loads(tokenizer.to_str()),
            "texts": [{"text": text, "ids": tokenizer.encode(text).ids} for text in known],
            "unknown": unknown,
        }
        for name, (tokenizer, known, unknown) in with_unknown_words().items()
    }
    cases = {
        "model": str(classifier_file().path),
        "generating": str(file_of("beam")),
        "unseen": unseen,
        "refused": {name: json.loads(content(**x)) for name, x in refused.items()},
        "forever": CATASTROPHIC,
        "published": PUBLISHED,
        "read": read,
    }
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_in_node("test:tokenizers", CASES=tmp_path / "cases.json")


def test_inputs_of_texts_are_those_of_python(tmp_path):
    """Pairs with segments, padding ids that are tokens, prompts and truncation, in three files."""
    tokenizer = words(around="<start> $A end")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A end",
        pair="<start> $A end $B:1 end:1",
        special_tokens=[("<start>", 1), ("end", 7)],
    )
    small = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 12}
    bert = models.sequence_classifier(models.bert(13, **small, max_length=9), 2)
    llama = models.sequence_classifier(models.llama(13, **small, pad_id=0), 2)
    embedded = models.sentence_embedding(
        models.llama(13, **small, pad_id=7),
        "last",
        prompts={"query": "six ", "passage": "ten two "},
        default_prompt="query",
        max_seq_length=6,
    )
    for layer in embedded.layers:
        if hasattr(layer, "padding"):
            layer.padding = "after_end"
    texts = ["two <pad> three", ["two three", "six"], ["<pad> two", "ten <pad>"], "two end <pad>"]
    texts.append("zebra")  # an unknown word only, which is no empty text
    cases = []
    for name, model in {"bert": bert, "llama": llama, "embedded": embedded}.items():
        path = tmp_path / f"{name}.tflite"
        export_tflite(model, path, source_length=[4, 9], tokenizer=tokenizer, verify=False)
        file, ran = runtime.load(path), []
        call = file.file._call
        file.file._call = lambda name, x, call=call, ran=ran: ran.append(x) or call(name, x)
        for text in texts if name == "bert" else [texts[0], texts[3]]:
            file.predict_text([text] if isinstance(text, str) else [tuple(text)])
            given = {key: x[0].tolist() for key, x in ran[-1].items()}
            cases.append({"file": str(path), "text": text, "given": given})
        ids = [2, 0, 3, 7, 0, 7, 0]
        file.predict({key: [ids] if key == "tokens" else [[0] * 7] for key in given})
        given = {key: x[0].tolist() for key, x in ran[-1].items()}
        cases.append({"file": str(path), "ids": ids, "given": given})
    # `file` and `ran` are those of "embedded"; the last texts have more than 6 tokens.
    asked = [("three", None), ("three", "passage"), ("two three four five six", None)]
    for text, prompt in [*asked, ("<start> <start> ten two three <pad> end end", "passage")]:
        file.embed(text, prompt)
        given = {key: x[0].tolist() for key, x in ran[-1].items()}
        example = {"text": text, "prompt": prompt}
        cases.append({"file": str(path), "embedded": example, "given": given})
    assert (given["tokens"][6:] == np.array([7, 7, 7])).all()  # padding after 6 tokens
    assert any(-2 in case["given"]["tokens"] for case in cases)
    assert any(1 in case["given"].get("segments", []) for case in cases)
    refused = "The generate of the file takes prompts, which are stepped here"
    cases.append({"file": str(file_of("adapters")), "refused": refused})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_in_node("test:inputs", CASES=tmp_path / "cases.json")


def split_cases():
    """Tokenizers with the behaviors of splits that the library in the browser lacks."""
    texts = ["ab-cd--e", "-ab12", "12--", "ab"]
    for behavior in ("merged_with_previous", "merged_with_next", "contiguous", "isolated"):
        for name, pattern in (("literal", "-"), ("regex", Regex("[0-9]+|-")), ("dot", "b.")):
            split = pre_tokenizers.Split(pattern, behavior)
            pieces = [piece for text in texts for piece, _ in split.pre_tokenize_str(text)]
            vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
            tokenizer = Tokenizer(tokenizer_models.WordLevel(vocabulary))
            tokenizer.pre_tokenizer = split
            expected = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
            settings = json.loads(tokenizer.to_str())
            yield f"{behavior} {name}", {"settings": settings, "texts": expected}
