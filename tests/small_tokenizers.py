"""Small tokenizers: of words, for the small models, and of bytes and pieces of words."""

import functools
import io

import sentencepiece
from small_models import SOURCE_SIZE, START, TARGET_SIZE
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from keras_tfm.runtime.tokenizers.tokenizer import read

END = 7
NUMBERS = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "end",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
]
# Padding, the start (which is the unknown word of a source), then words; 7 ends a target.
WORDS = ["<pad>", "<start>", "two", "three", "four", "five", "six", "end", "eight", "nine", "ten"]
WORDS += ["eleven", "twelve"]
CORPUS = [
    "hello world, this is text number 1",
    "größere Wörter über Äpfel",
    "日本語のテキスト 😀",
    "ещё один текст",
] * 20


def words(size=TARGET_SIZE, around=""):
    """Words and spaces; `around` is what is put around a text, as "<start> $A end"."""
    ids = {word: i for i, word in enumerate(WORDS[:size])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<start>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<start>", "end"])
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around, special_tokens=[("<start>", START), ("end", END)]
        )
    return tokenizer


def source_words(**options):
    return words(SOURCE_SIZE, **options)


def text_of(tokens):
    """What a row of ids says, by hand: up to the end, without special words."""
    tokens = [int(i) for i in tokens]
    tokens = tokens[: tokens.index(END)] if END in tokens else tokens
    return " ".join(WORDS[i] for i in tokens if i > START)


@functools.cache
def byte_pairs():
    """Of bytes, as GPT-2's: a character may take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def byte_fallback():
    """As Llama 2's: pieces that begin with "\u2581", and bytes for other characters."""
    known = sorted({*CORPUS[0]} - {" "})
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "\u2581", *known]
    tokens += [f"<0x{i:02X}>" for i in range(256)]
    merges = [("\u2581", letter) for letter in known if letter.isalpha()]
    tokens += ["".join(pair) for pair in merges]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(tokens[:4])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@functools.cache
def word_pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def sentence_pieces(kind="unigram"):
    """The bytes of a model; what it does not know it takes for bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=330,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
    )
    return model.getvalue()


JSON = {
    "byte pairs": byte_pairs,
    "byte fallback": byte_fallback,
    "word pieces": word_pieces,
    "words": words,
}
KINDS = [*JSON, "unigram", "bpe"]


def tokenizer_of(kind):
    """The runtime's tokenizer of one of `KINDS`."""
    if kind in JSON:
        return read("tokenizer.json", JSON[kind]().to_str().encode())
    return read("tokenizer.model", sentence_pieces(kind))
