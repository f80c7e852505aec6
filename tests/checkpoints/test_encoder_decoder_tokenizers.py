"""Tokenizers of BART and Marian beside those of transformers."""

import io
import json
import sys

import pytest
from small_tokenizers import byte_pairs

from keras_tfm import checkpoints

pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

# Both sides know all characters.
LETTERS = " ".join("ACDEHIKMTabcdefghiklmnoprstuwzÄößäü.,!?+=1234")
ENGLISH = [
    LETTERS,
    "The cat sat on the mat.",
    "A dog and a cat were here!",
    "Is 1 + 2 = 3 or 4?",
] * 9
GERMAN = [
    LETTERS,
    "Die Katze saß auf der Matte.",
    "Ein Hund, größer als Äpfel!",
    "Ist 1 + 2 = 3?",
] * 9
TEXTS = [
    *ENGLISH[:4], *GERMAN[:4], "", " ", "the  cat\n\tsat ", "cats, dogs & mats", "THE", "saß",
    "der", "½ \uff46\uff55", "日", "日本語 cat", "Äpfel größer", "</s> cat", "<pad>",
    ">>deu<< the cat", "a\u200bb", "\U0010ffffder",
]  # fmt: skip
SPECIAL = ["</s>", "<unk>", "<pad>"]


def trained(texts, size, model_type="unigram", **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, model_type=model_type,
        hard_vocab_limit=False, minloglevel=2, character_coverage=1.0, **options,
    )  # fmt: skip
    return model.getvalue()


def pieces(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


@pytest.fixture(scope="module", params=["one vocabulary", "two vocabularies"])
def marian(request, tmp_path_factory):
    """A folder of Marian's tokenizer, with ids in another order than those of SentencePiece."""
    folder = tmp_path_factory.mktemp("marian")
    sides = [trained(ENGLISH, 90), trained(GERMAN, 90)]
    for name, model in zip(("source", "target"), sides, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    both = sorted({*pieces(sides[0]), *pieces(sides[1])}, reverse=True)
    separate = request.param == "two vocabularies"
    written = {
        "vocab.json": sorted(pieces(sides[0]), reverse=True) if separate else both,
        **({"target_vocab.json": pieces(sides[1])} if separate else {}),
    }
    for name, entries in written.items():
        tokens = [*SPECIAL, *entries, ">>deu<<"]
        (folder / name).write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    sizes = {name: len(entries) + 4 for name, entries in written.items()}
    config = {
        "model_type": "marian", "vocab_size": sizes["vocab.json"],
        "decoder_vocab_size": sizes.get("target_vocab.json", sizes["vocab.json"]),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"separate_vocabs": separate, "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("target", [False, True])
def test_ids_of_marian_are_those_of_transformers(target, marian):
    ours = checkpoints.load_tokenizer(marian, target=target)
    theirs = transformers.MarianTokenizer.from_pretrained(marian)
    for text in TEXTS:
        given = {"text_target": text} if target else {"text": text}
        assert ours.encode(text).ids == theirs(**given)["input_ids"], repr(text)


def test_what_marian_has_no_piece_for(marian, tmp_path):
    """Characters that source.spm lacks, and pieces that vocab.json lacks."""
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "source.spm").write_bytes(trained(["the cat", "a hat"] * 9, 12))
    ours = checkpoints.load_tokenizer(tmp_path)
    words = ours.encode("the Hund").tokens
    assert words[-5:] == ["H", "u", "n", "d", "</s>"]
    assert ours.encode("the 日").tokens[-2:] == ["日", "</s>"]
    assert ours.encode("the 日").ids[-2:] == [1, 0]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_every_id_of_a_target_becomes_text(marian):
    ours = checkpoints.load_tokenizer(marian, target=True)
    theirs = transformers.MarianTokenizer.from_pretrained(marian)
    for text in GERMAN[1:4]:
        assert ours.decode(ours.encode(text).ids) == text
    for i in range(ours.get_vocab_size()):
        if ours.id_to_token(i) == ">>deu<<":
            continue  # transformers writes it into the text
        ids = [5, i]
        assert ours.decode(ids).strip() == theirs.decode(ids, skip_special_tokens=True), i


def test_a_file_translates_texts(tmp_path, marian):
    """The tokenizers of both sides in one file."""
    from keras_tfm import export, models, runtime

    config = json.loads((marian / "config.json").read_text())
    separate = config["decoder_vocab_size"] != config["vocab_size"]
    model = models.marian(
        config["vocab_size"], dim=8, num_layers=1, num_heads=2, intermediate_dim=16,
        target_vocabulary_size=config["decoder_vocab_size"] if separate else None,
        pad_id=2,
    )  # fmt: skip
    source = checkpoints.load_tokenizer(marian)
    target = checkpoints.load_tokenizer(marian, target=True)
    options = {"start_id": model.arguments["start_id"], "end_id": 0}
    path = tmp_path / "x.tflite"
    export.export_tflite(
        model, path, ["generate"], source_length=24, max_length=9, verify=False,
        tokenizer={"source": source, "target": target}, **options,
    )  # fmt: skip
    file = runtime.load(path)
    tokens = file.generate([source.encode("A cat").ids]).tokens
    assert file.generate_text(["A cat"]) == [target.decode([int(i) for i in tokens[0]])]


def test_ids_of_bart_are_those_of_transformers(tmp_path):
    byte_pairs().model.save(str(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    tokens = [*vocabulary, "<unk>", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    ours = checkpoints.load_tokenizer(tmp_path)
    theirs = transformers.BartTokenizer.from_pretrained(tmp_path)
    assert ours.encode("hello").ids[0] == ours.token_to_id("<s>")
    for text in [*TEXTS, "a <mask> b", "<s> a"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], repr(text)
        assert ours.encode(text, "b").ids == theirs(text, "b")["input_ids"], repr(text)
    assert ours.decode(ours.encode("hello world").ids) == "hello world"


def test_a_json_file_of_mbart_and_pegasus(tmp_path):
    """As transformers writes it, with the language of the source after the text."""
    model = trained(ENGLISH, 90)
    for name in ("MBartTokenizer", "PegasusTokenizer"):
        vocabulary = [(x, 0.0) for x in ("<s>", "<pad>", "</s>", "<unk>")]
        vocabulary += [(x, -1.0 - i) for i, x in enumerate(pieces(model))]
        theirs = getattr(transformers, name)(vocab=vocabulary)
        theirs.save_pretrained(tmp_path / name)
        ours = checkpoints.load_tokenizer(tmp_path / name)
        for text in TEXTS:
            assert ours.encode(text).ids == theirs(text)["input_ids"], (name, text)
        assert ours.encode("cat").ids[-1] != ours.encode("cat").ids[0]


def check_language(folder, theirs, languages):
    """By the settings of a folder, and by the argument."""
    for language in languages:
        theirs.src_lang = language
        theirs.save_pretrained(folder / language)
        folders = [(folder / language, None), (folder / languages[0], language)]
        for ours in [checkpoints.load_tokenizer(x, language=y) for x, y in folders]:
            for text in TEXTS[:-1]:  # M2M-100 loses a character of no Unicode
                assert ours.encode(text).ids == theirs(text)["input_ids"], (language, text)
            assert ours.encode("cat", "dog").ids == theirs("cat", "dog")["input_ids"]
    with pytest.raises(ValueError, match=r"language must be one of .*_.*, got 'xx'"):
        checkpoints.load_tokenizer(folder / languages[0], language="xx")


@pytest.mark.parametrize("legacy", [False, True])
def test_languages_of_nllb(legacy, tmp_path):
    """Before the text, or in older files after it."""
    vocabulary = {x: i for i, x in enumerate(("<s>", "<pad>", "</s>", "<unk>"))}
    for x in sorted({"\u2581", "\u2581cat", "\u2581c", "at", *"".join(TEXTS).replace(" ", "")}):
        vocabulary.setdefault(x, len(vocabulary))
    theirs = transformers.NllbTokenizer(
        vocab=vocabulary, merges=[("\u2581", "c"), ("a", "t"), ("\u2581c", "at")],
        extra_special_tokens=["eng_Latn", "deu_Latn", "fra_Latn"], legacy_behaviour=legacy,
    )  # fmt: skip
    check_language(tmp_path, theirs, ["eng_Latn", "fra_Latn"])
    ours = checkpoints.load_tokenizer(tmp_path / "fra_Latn")
    assert ours.encode("cat").tokens == (
        ["\u2581cat", "</s>", "fra_Latn"] if legacy else ["fra_Latn", "\u2581cat", "</s>"]
    )


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_languages_of_m2m_100(algorithm, tmp_path):
    """From the two files that it has, with ids in another order than those of SentencePiece."""
    model = trained(ENGLISH, 90, model_type=algorithm)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces(model))]
    (tmp_path / "spm").write_bytes(model)
    (tmp_path / "vocab").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    module = transformers.models.m2m_100.tokenization_m2m_100
    theirs = transformers.M2M100Tokenizer(
        str(tmp_path / "vocab"), str(tmp_path / "spm"),
        additional_special_tokens=[f"__{x}__" for x in module.FAIRSEQ_LANGUAGE_CODES["m2m100"]],
    )  # fmt: skip
    check_language(tmp_path, theirs, ["en", "de"])


def test_a_language_of_mbart_50(tmp_path):
    vocabulary = [(x, 0.0) for x in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary += [(x, -1.0 - i) for i, x in enumerate(pieces(trained(ENGLISH, 90)))]
    check_language(tmp_path, transformers.MBart50Tokenizer(vocab=vocabulary), ["en_XX", "fr_XX"])


def test_a_language_is_for_translation_models(marian):
    with pytest.raises(ValueError, match=r"language must be None, as a MarianTokenizer marks no"):
        checkpoints.load_tokenizer(marian, language="de")


def test_m2m_100_needs_its_languages(tmp_path):
    model = trained(ENGLISH, 90)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces(model)]
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    (tmp_path / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "m2m_100"}))
    with pytest.raises(ValueError, match=r"expected the tokens of languages, such as __en__, in"):
        checkpoints.load_tokenizer(tmp_path)


def test_the_target_language_of_madlad(tmp_path):
    """A piece of the model, as in its folders, which are those of T5 without sentinels."""
    model = trained(ENGLISH, 90, user_defined_symbols=["<2de>", "<2fr>"])
    (tmp_path / "spiece.model").write_bytes(model)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 92}))
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = checkpoints.load_tokenizer(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ["<2de> The cat sat.", "<2fr>A dog", "a <2de>"]:
        assert ours.encode(text).ids == [*processor.encode(text), processor.eos_id()]
    assert "<2de>" in ours.encode("<2de> cat").tokens


# Texts that SentencePiece normalizes, and transformers 5 does not always.
NORMALIZED = (" ", "the  cat\n\tsat ", "½ \uff46\uff55", "a\u200bb")
# Control tokens are read in a text, which SentencePiece alone does not do.
SPECIAL_TEXTS = ("</s> cat", "<pad>")


def write_folder(folder, file, model, config, settings):
    (folder / file).write_bytes(model)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_deberta_of_spm(settings, tmp_path):
    """Its folders on the hub have `spm.model` alone; the mask follows the pieces."""
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    options = {f"{name}_id": i for i, name in enumerate(names)}
    model = trained(ENGLISH, 90, **options, **{f"{x}_piece": names[x] for x in names})
    config = {"model_type": "deberta-v2", "vocab_size": 80}
    processor = write_folder(tmp_path, "spm.model", model, config, {"vocab_type": "spm"} | settings)
    ours = checkpoints.load_tokenizer(tmp_path)
    theirs = transformers.DebertaV2Tokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "[MASK] cat", "the [SEP] cat"]:
        found = ours.encode(text).ids
        if text not in NORMALIZED:
            assert found == theirs(text)["input_ids"], text
        if not settings and "[" not in text:
            assert found == [1, *processor.encode(text), 2], text
    pair, expected = ours.encode("the cat", "a dog"), theirs("the cat", "a dog")
    assert pair.ids == expected["input_ids"]
    assert pair.type_ids == expected["token_type_ids"]
    assert ours.token_to_id("[MASK]") == processor.get_piece_size()


def test_pegasus_of_pieces(tmp_path):
    model = trained(ENGLISH, 90, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config = {"model_type": "pegasus", "vocab_size": 170}
    processor = write_folder(tmp_path, "spiece.model", model, config, {})
    ours = checkpoints.load_tokenizer(tmp_path)
    theirs = transformers.PegasusTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        found = ours.encode(text).ids
        if text not in NORMALIZED:
            assert found == theirs(text)["input_ids"], text
        if text not in SPECIAL_TEXTS:
            assert found == [*(x + 103 for x in processor.encode(text)), 1], text
    assert ours.decode(ours.encode("The cat sat on the mat.").ids) == "The cat sat on the mat."


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_mbart_of_pieces(name, tmp_path):
    """The class is that of `config.json`, as on the hub."""
    kind = getattr(transformers, name)
    languages = sys.modules[kind.__module__].FAIRSEQ_LANGUAGE_CODES
    model = trained(ENGLISH, 90)
    config = {"model_type": "mbart", "tokenizer_class": name, "vocab_size": 130}
    settings = {"src_lang": "de_DE", "additional_special_tokens": languages}
    write_folder(tmp_path, "sentencepiece.bpe.model", model, config, settings)
    ours, theirs = checkpoints.load_tokenizer(tmp_path), kind.from_pretrained(tmp_path)
    for text in [*TEXTS, "a <mask> cat"]:
        if text not in NORMALIZED:
            assert ours.encode(text).ids == theirs(text)["input_ids"], text
    translation = [theirs.eos_token_id, *theirs("The cat sat on the mat.")["input_ids"]]
    assert ours.decode(translation) == "The cat sat on the mat."  # without the language
    assert ours.encode("catfr_XX").ids == theirs("catfr_XX")["input_ids"]
    first = checkpoints.load_tokenizer(tmp_path, language="fr_XX").encode("cat").tokens
    assert "fr_XX" in first


def test_pieces_without_their_special_tokens(tmp_path):
    write_folder(tmp_path, "spm.model", trained(ENGLISH, 90), {"model_type": "deberta-v2"}, {})
    with pytest.raises(ValueError, match=r"spm.model cannot be read .expected the piece \[UNK\]"):
        checkpoints.load_tokenizer(tmp_path)
    config = {"model_type": "mbart"}
    write_folder(tmp_path, "sentencepiece.bpe.model", trained(ENGLISH, 90), config, {})
    with pytest.raises(ValueError, match=r"expected the tokens of languages, such as en_XX, in"):
        checkpoints.load_tokenizer(tmp_path)


def test_what_is_read_from_json_only(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    with pytest.raises(ValueError, match=r"no tokenizer.json, and without it a GPTNeoXTokenizer"):
        checkpoints.load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", b'{"a": 0, "b": 2}', r"vocab.json cannot be read .*the ids 0, 1"),
        ("vocab.json", b'{"a": 0}', r"expected the tokens \['</s>', '<pad>', '<unk>'\]"),
        ("source.spm", b"", "source.spm cannot be read .the file is empty"),
        ("source.spm", b"no model", "source.spm cannot be read"),
        ("source.spm", trained(ENGLISH, 320, byte_fallback=True), "without byte fallback"),
    ],
)
def test_damaged_files_of_marian(file, content, message, marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_only_marian_has_a_tokenizer_of_targets(tmp_path):
    with pytest.raises(ValueError, match=r"target=True is for Marian, but .* has no target.spm"):
        checkpoints.load_tokenizer(tmp_path, target=True)
