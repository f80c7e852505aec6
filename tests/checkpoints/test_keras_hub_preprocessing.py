"""Texts have the same ids through KerasHub's preprocessors and in our files."""

import functools
import unicodedata

import numpy as np
import pytest
from real_lines import byte_pairs, lines, sentence_pieces, word_pieces
from small_hub_tasks import gemma_pieces

from keras_tfm.checkpoints.keras_hub.preprocessing import read_preprocessing
from keras_tfm.generation.tokenizers.keras_hub import convert
from keras_tfm.generation.tokenizers.tokenizer_forms import form_of
from keras_tfm.runtime import ImageProcessor
from keras_tfm.runtime.tokenizers.tokenizer import read

keras_hub = pytest.importorskip("keras_hub")
hub = keras_hub.models
LENGTH = 400  # of every line
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
LLAMA3 += ("<|eot_id|>",)
QWEN3_5 = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>")
QWEN3_5 += ("<|image_pad|>", "<|video_pad|>")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def clip():
    vocabulary, merges = byte_pairs("<|startoftext|>", "<|endoftext|>")
    size = len(vocabulary)
    ends = {f"{token}</w>": size + i for i, token in enumerate(vocabulary)}
    return hub.CLIPTokenizer({**vocabulary, **ends}, merges)


def bert(**options):
    tokenizer = hub.BertTokenizer(word_pieces(), **options)
    return hub.BertTextClassifierPreprocessor(tokenizer, sequence_length=LENGTH)


def causal(name, tokenizer):
    return getattr(hub, f"{name}CausalLMPreprocessor")(tokenizer, sequence_length=LENGTH)


def classifier(name, tokenizer):
    return getattr(hub, f"{name}TextClassifierPreprocessor")(tokenizer, sequence_length=LENGTH)


def written(name, tokenizer, **options):
    made = getattr(hub, f"{name}Seq2SeqLMPreprocessor")
    return made(tokenizer, encoder_sequence_length=LENGTH, decoder_sequence_length=90, **options)


PREPROCESSORS = {
    "bert": bert,
    "bert-lower": lambda: bert(lowercase=True),
    "bert-without-accents": lambda: bert(strip_accents=True),
    "distil-bert": lambda: classifier("DistilBert", hub.DistilBertTokenizer(word_pieces())),
    "roberta": lambda: classifier("Roberta", hub.RobertaTokenizer(*byte_pairs(*ROBERTA))),
    "bart": lambda: written("Bart", hub.BartTokenizer(*byte_pairs(*ROBERTA))),
    "gpt2": lambda: causal("GPT2", hub.GPT2Tokenizer(*byte_pairs("<|endoftext|>"))),
    "llama3": lambda: causal("Llama3", hub.Llama3Tokenizer(*byte_pairs(*LLAMA3))),
    "qwen3": lambda: causal(
        "Qwen3", hub.Qwen3Tokenizer(*byte_pairs("<|endoftext|>", "<|im_end|>"))
    ),
    "clip": lambda: hub.CLIPPreprocessor(clip(), sequence_length=LENGTH),
    "t5": lambda: written(
        "T5", hub.T5Tokenizer(sentence_pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    ),
    "albert": lambda: classifier(
        "Albert",
        hub.AlbertTokenizer(
            sentence_pieces(
                pad_id=0, unk_id=1, bos_id=2, eos_id=3, bos_piece="[CLS]", eos_piece="[SEP]",
                pad_piece="<pad>", control_symbols=["[MASK]"],
            )
        ),
    ),
    "deberta": lambda: classifier(
        "DebertaV3",
        hub.DebertaV3Tokenizer(
            sentence_pieces(
                pad_id=0, bos_id=1, eos_id=2, unk_id=3, bos_piece="[CLS]", eos_piece="[SEP]",
                pad_piece="[PAD]", unk_piece="[UNK]",
            )
        ),
    ),
    "xlm-roberta": lambda: classifier(
        "XLMRoberta", hub.XLMRobertaTokenizer(sentence_pieces(unk_id=0, bos_id=1, eos_id=2))
    ),
    "gemma3": lambda: causal(
        "Gemma3",
        hub.Gemma3Tokenizer(
            gemma_pieces("<start_of_turn>", "<end_of_turn>"), has_vision_tokens=False
        ),
    ),
    "gemma4": lambda: causal(
        "Gemma4",
        hub.Gemma4Tokenizer(
            gemma_pieces("<|turn>", "<turn|>"), has_vision_tokens=False, has_video_tokens=False
        ),
    ),
    "qwen3.5": lambda: causal("Qwen3_5", hub.Qwen3_5Tokenizer(*byte_pairs(*QWEN3_5))),
    "t5gemma": lambda: written("T5Gemma", hub.T5GemmaTokenizer(gemma_pieces())),
    "t5gemma2": lambda: written(
        "T5Gemma2", hub.T5Gemma2Tokenizer(gemma_pieces()), add_start_token=True
    ),
    "llama": lambda: causal(
        "Llama",
        hub.LlamaTokenizer(sentence_pieces(model_type="bpe", byte_fallback=True)),
    ),
}  # fmt: skip


WRITTEN = ("t5", "bart", "t5gemma", "t5gemma2")


@functools.cache
def preprocessor(name):
    return PREPROCESSORS[name]()


def rows_of(name, texts):
    """KerasHub's ids."""
    given = preprocessor(name)
    if name in WRITTEN:
        return given.generate_preprocess(texts)["encoder_token_ids"]
    if name == "clip":
        return given({"images": None, "prompts": texts})["token_ids"]
    if isinstance(given, hub.CausalLMPreprocessor):
        return given.generate_preprocess(texts)["token_ids"]
    return given(texts)["token_ids"]


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_real_lines_in_ten_languages_have_the_same_ids(name):
    found = read_preprocessing(preprocessor(name))
    form = form_of("text", found.tokenizer)
    stored = form.read(f"tokenizer{form.ending}")
    start = [] if name in WRITTEN or found.start_id is None else [found.start_id]
    start = start or (list(found.default_prompt) if name != "bart" else [])
    for text, row in zip(lines(), np.asarray(rows_of(name, lines())).tolist(), strict=True):
        ids = [*start, *stored.encode(text)]
        assert ids + [found.pad_id] * (LENGTH - len(ids)) == row, text


@pytest.mark.parametrize("options", [{"lowercase": True}, {}])
def test_every_character_has_the_same_ids(options):
    """Of Unicode 12, whose NFKC the package `tokenizers` has, between letters and alone."""
    vocabulary = dict.fromkeys([*word_pieces(), "...", "##.", "##(", "ss", "##ss"])
    tokenizer = hub.BertTokenizer([*vocabulary], **options)
    ending, content, settings = convert(tokenizer)
    stored = read(f"tokenizer{ending}", content, settings)
    characters = [
        chr(i) for i in range(0x10000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")
    ]
    texts = [f"a{x}b {x}" for x in characters if x not in "\ua7f2\ua7f3\ua7f4"]
    for text, ids in zip(texts, tokenizer.tokenize(texts), strict=True):
        assert stored.encode(text) == list(ids), ascii(text)


def test_pairs_of_texts():
    """BERT's segments, and the two separators of RoBERTa."""
    pair = lines()[:2]
    for name in ("bert", "roberta"):
        row = preprocessor(name)(x=tuple([x] for x in pair))
        found = read_preprocessing(preprocessor(name))
        ids, types = read("a.json", found.tokenizer.to_str().encode()).encode_typed(pair)
        assert np.asarray(row["token_ids"])[0, : len(ids)].tolist() == ids
        if name == "bert":
            assert np.asarray(row["segment_ids"])[0, : len(ids)].tolist() == types


def test_special_tokens_in_a_text():
    """Of a WordPiece tokenizer that reads them: one id each."""
    tokenizer = hub.BertTokenizer(word_pieces(), lowercase=True, special_tokens_in_strings=True)
    ending, content, options = convert(tokenizer)
    text = "a [MASK] b[SEP] [mask]"
    assert read(f"a{ending}", content, options).encode(text) == list(tokenizer.tokenize([text])[0])


def test_starts_and_ends():
    found = {name: read_preprocessing(preprocessor(name)) for name in ("gemma3", "llama3", "bart")}
    gemma = found["gemma3"]
    assert (gemma.start_id, gemma.end_ids, gemma.max_length) == (2, (1, 5), LENGTH)
    assert (found["llama3"].start_id, found["llama3"].end_ids) == (0, (1, 4))
    assert (found["bart"].start_id, found["bart"].default_prompt) == (None, (2, 0))
    assert (found["bart"].before, found["bart"].after) == ((0,), (2,))
    more = [read_preprocessing(preprocessor(name)) for name in ("t5gemma", "t5gemma2")]
    assert [(x.before, x.after, x.start_id, x.end_ids) for x in more] == [
        ((), (), 2, (1,)),
        ((2,), (), 2, (1,)),
    ]
    gemma4 = read_preprocessing(preprocessor("gemma4"))
    assert (gemma4.start_id, gemma4.end_ids) == (2, (1, 5))  # <eos>, <turn|>
    qwen = read_preprocessing(preprocessor("qwen3.5"))
    assert (qwen.start_id, qwen.end_ids, qwen.pad_id) == (None, (1,), 0)
    t5 = read_preprocessing(preprocessor("t5"))
    assert (t5.start_id, t5.end_ids, t5.source_length, t5.max_length) == (0, (1,), LENGTH, 90)


def test_pictures():
    converter = keras_hub.layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255)
    found = read_preprocessing(hub.ViTImageClassifierPreprocessor(converter))
    assert found.images == ImageProcessor((8, 8), 8)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    np.testing.assert_allclose(found.images(pixels) / 255, converter(pixels), atol=1e-6)
    assert "resized, then cropped; the converter crops first" in found.notes[0]
    assert "antialias=False" in found.notes[1]
    stretched = keras_hub.layers.ViTImageConverter(
        image_size=(8, 8), crop_to_aspect_ratio=False, antialias=True
    )
    assert read_preprocessing(hub.ViTImageClassifierPreprocessor(stretched)).notes == ()
    fitted = keras_hub.layers.ViTImageConverter(
        image_size=(8, 6), crop_to_aspect_ratio=False, pad_to_aspect_ratio=True
    )
    found = read_preprocessing(hub.ViTImageClassifierPreprocessor(fitted))
    assert found.images is None
    assert "give images=" in found.notes[0]


def test_refusals():
    class Prefixed(hub.BertTextClassifierPreprocessor):
        def call(self, x, y=None, sample_weight=None):
            return super().call([f"topic: {text}" for text in x], y, sample_weight)

    custom = Prefixed(hub.BertTokenizer(word_pieces()), sequence_length=99)
    lower = hub.BertTokenizer(word_pieces(), lowercase=True, strip_accents=True)
    left = PREPROCESSORS["t5"]()
    left.build(None)
    left.decoder_packer.padding_side = "left"  # which the check of ids does not see
    words = [f"{i} {chr(i)!r} 1" for i in range(1, 100)]
    rwkv = hub.RWKV7CausalLMPreprocessor(hub.RWKVTokenizer(words), sequence_length=16)
    for given, error, message in (
        (custom, ValueError, r"Prefixed gives the ids \[.*with tokenizer="),
        (classifier("Bert", lower), ValueError, "lowercase=True and strip_accents=True cannot"),
        (hub.BertTokenizer(word_pieces()), TypeError, "a Preprocessor .*, got BertTokenizer"),
        (left, ValueError, "the decoder_packer of T5Seq2SeqLMPreprocessor has padding_side='left'"),
        (rwkv, ValueError, "be stored exactly, not RWKVTokenizer"),
    ):
        with pytest.raises(error, match=message) as caught:
            read_preprocessing(given)
        assert "\n" not in str(caught.value)
