"""export_litertlm of models of embeddings: Google's EmbeddingEngine gives the model's vectors."""

import sys

import keras
import numpy as np
import pytest
from small_tokenizers import byte_pairs, word_pieces
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models

from keras_tfm import cli, export, models
from keras_tfm.generation import embed
from keras_tfm.generation.interface import interface_of
from keras_tfm.runtime.inspection.subprocesses import run_module

pytest.importorskip("litert_lm")
LENGTHS = [8, 32]
TEXTS = ["hello", "hello world", "text number 1, this", "ein Wort über Äpfel"]


def framed(tokenizer, start=None, end=None):
    """A copy with these tokens around every text, and limits that the file must not have."""
    tokenizer = tokenizer.from_str(tokenizer.to_str())
    parts = [start, "$A", end]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[x for x in parts if x],
        special_tokens=[(x, tokenizer.token_to_id(x)) for x in (start, end) if x],
    )
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=12)
    return tokenizer


def bert_encoder(tokenizer, segments=True):
    keras.utils.set_random_seed(0)
    return models.bert(
        tokenizer.get_vocab_size(), dim=32, num_layers=2, num_heads=4, intermediate_dim=48,
        max_length=LENGTHS[-1], segments=segments,
    )  # fmt: skip


def bert(segments=True):
    """Padding is id 0."""
    tokenizer = framed(word_pieces(), "[CLS]", "[SEP]")
    return models.sentence_embedding(bert_encoder(tokenizer, segments)), tokenizer


def roberta():
    """Padding is id 1, and every text begins with id 0."""
    tokenizer = framed(words(), "<s>", "</s>")
    keras.utils.set_random_seed(0)
    encoder = models.roberta(
        tokenizer.get_vocab_size(), dim=32, num_layers=1, num_heads=4, intermediate_dim=48,
        max_length=LENGTHS[-1],
    )  # fmt: skip
    return models.sentence_embedding(encoder), tokenizer


def words():
    """Ids of words in the order of RoBERTa's special tokens."""
    known = ["<s>", "<pad>", "</s>", "<unk>", *" ".join([*TEXTS, "query: "]).split()]
    ids = {token: number for number, token in enumerate(dict.fromkeys(known))}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(known[:4])
    return tokenizer


def decoder():
    """The vector of the last token, as of Qwen3-Embedding; id 0 may be a token."""
    tokenizer = framed(byte_pairs(), end="</s>")
    keras.utils.set_random_seed(0)
    gpt = models.llama(
        tokenizer.get_vocab_size(), dim=32, num_layers=2, num_heads=4, intermediate_dim=48, pad_id=0
    )
    return models.sentence_embedding(gpt, pooling="last"), tokenizer


MODELS = {"bert": bert, "roberta": roberta, "decoder": decoder}


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory):
    model, tokenizer = MODELS[request.param]()
    path = tmp_path_factory.mktemp("embeddings") / "model.litertlm"
    report = export.export_litertlm(model, path, tokenizer, source_length=LENGTHS)
    return model, tokenizer, path, report


def engine(path, texts, strategy="ERROR"):
    """The vectors of the stock engine."""
    questions = [{"text": text, "strategy": strategy} for text in texts]
    found = run_module(
        "testing",
        "keras_tfm.runtime.inspection.litertlm_process",
        str(path),
        given={"embeddings": questions},
    )
    return np.array([x["vector"] for x in found["embeddings"]])


def ids_of(tokenizer, text):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer.encode(text).ids


def vector(model, ids):
    """The model's vector of ids without padding."""
    ids = np.array([ids], "int32")
    given = {"tokens": ids, "segments": np.zeros_like(ids)}
    interface = interface_of(model)
    return np.asarray(interface.call({name: given[name] for name in interface.names}))[0]


def test_short_texts(made):
    model, tokenizer, path, _ = made
    texts = TEXTS
    if tokenizer.token_to_id("<pad>") == 0:
        texts = [*texts, "hello <pad> world"]  # id 0 is a token within a text
        assert 0 in ids_of(tokenizer, texts[-1])
    expected = [vector(model, ids_of(tokenizer, text)) for text in texts]
    np.testing.assert_allclose(engine(path, texts), expected, atol=1e-5)


def test_long_texts(made):
    model, tokenizer, path, _ = made
    text = " ".join(TEXTS * 8)
    ids = ids_of(tokenizer, text)
    longest = LENGTHS[-1]
    assert len(ids) > 2 * longest
    cut = vector(model, [*ids[: longest - 1], ids[-1]])
    np.testing.assert_allclose(engine(path, [text], "TRUNCATE")[0], cut, atol=1e-5)
    parts = [vector(model, ids[i : i + longest]) for i in range(0, len(ids), longest)]
    mean = np.mean(parts, axis=0)
    np.testing.assert_allclose(engine(path, [text], "CHUNK_AND_AVERAGE")[0], mean, atol=1e-5)
    with pytest.raises(RuntimeError, match="exceeds maximum supported signature length"):
        engine(path, [text])


def test_the_report(made):
    _, _, _, report = made
    assert sorted(report.signatures) == ["encoder_32", "encoder_8"]
    checks = report.verification.checks
    assert [x.signature for x in checks] == ["predict_8", "predict_32", "LiteRT-LM"]
    assert checks[-1].relative_error < 1e-5 and checks[-1].rows >= 4
    assert sorted(x.name for x in report.subgraphs) == ["encoder_32", "encoder_8"]


def test_int8(tmp_path):
    model, tokenizer = bert(segments=False)
    path = tmp_path / "int8.litertlm"
    report = export.export_litertlm(model, path, tokenizer, "int8", source_length=32)
    assert report.quantization == "int8" and list(report.signatures) == ["encoder_32"]
    found = engine(path, TEXTS)
    expected = np.array([vector(model, ids_of(tokenizer, text)) for text in TEXTS])
    cosine = np.sum(found * expected, axis=-1) / np.linalg.norm(found, axis=-1)
    assert cosine.min() > 0.99 and cosine.max() < 1 - 1e-7


def test_prompts_of_this_library_are_texts_for_the_engine(made):
    model, tokenizer, path, _ = made
    expected = embed(model, ["query: " + TEXTS[0]], tokenizer=framed_again(tokenizer))
    np.testing.assert_allclose(engine(path, ["query: " + TEXTS[0]]), expected, atol=1e-5)


def framed_again(tokenizer):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch):
    from keras_tfm.export.litertlm import embedder

    model, tokenizer = bert()
    monkeypatch.setattr(embedder, "frame_of", lambda _: embedder.Frame(3, None))
    path = tmp_path / "model.litertlm"
    with pytest.raises(export.VerificationError, match="LiteRT-LM embeds a text of"):
        export.export_litertlm(model, path, tokenizer, source_length=8)
    assert not list(tmp_path.iterdir())


def refused(match, model, tokenizer, error=ValueError, **arguments):
    given = {"path": "model.litertlm", "source_length": 8, **arguments}
    with pytest.raises(error, match=match) as raised:
        export.export_litertlm(model, tokenizer=tokenizer, **given, verify=False)
    assert "\n" not in str(raised.value)


def test_bad_input_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = bert()
    refused("returns vectors: max_length, end_id are for", model, tokenizer, max_length=8, end_id=2)
    refused("needs source_length", model, tokenizer, source_length=None)
    refused("needs a tokenizer", model, None)
    refused("source_length must be|got 0", model, tokenizer, source_length=0)
    two = framed(word_pieces())
    two.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A", special_tokens=[("[CLS]", two.token_to_id("[CLS]"))]
    )
    refused("at most one token before a text and one behind it", model, two)
    classifier = models.sequence_classifier(bert_encoder(tokenizer), 3)
    refused(r"returns \(None, 3\): LiteRT-LM runs models that write", classifier, tokenizer)
    writer = models.llama(300, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    refused(
        "source_length is for a model of embeddings", writer, byte_pairs(), max_length=32, end_id=2
    )
    assert not list(tmp_path.iterdir())


def test_command_line(tmp_path, monkeypatch, capsys):
    model, tokenizer = bert()
    model.save(tmp_path / "bert.keras")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    output = tmp_path / "bert.litertlm"
    command = ["export", tmp_path / "bert.keras", output, "--lengths", "8,32"]
    command += ["--tokenizer", tmp_path / "tokenizer.json"]
    monkeypatch.setattr(sys, "argv", ["keras-tfm", *map(str, command)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code and output.is_file()
    assert "LiteRT-LM " in capsys.readouterr().out
