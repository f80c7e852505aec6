"""A small file of each kind that the runtime reads, for tests of all kinds. Not verified."""

import keras
import sentencepiece
import small_captioners
import small_drawing
import small_writers
from keras_weights import randomize
from small_clip import LENGTH, PROCESSOR, small_clip, tokenizer
from small_detectors import SIZE, detector
from small_exports import classifier_file, once_a_run, small
from small_listeners import ctc_file, live_file
from small_pictures import classifier
from small_tokenizers import SOURCE_SIZE, WORDS, byte_pairs, sentence_pieces, words

from keras_tfm import models
from keras_tfm.export import export_tflite
from keras_tfm.generation import Beam
from keras_tfm.runtime import ChatTemplate, ImageProcessor


@once_a_run
def _export(path, kind):
    return EXPORTS[kind](path)


def file_of(kind: str):
    """The path of the file of a kind of `KINDS`."""
    return OTHERS[kind]() if kind in OTHERS else _export(kind).path


def _beam(path):
    return export_tflite(
        small(), path, source_length=[4, 8], max_length=9, start_id=1, end_id=7,
        strategy=Beam(3, hypotheses=2), tokenizer=_words_of_both(), verify=False,
    )  # fmt: skip


def _stepped(path):
    return export_tflite(
        small(), path, ["encode", "prefill", "decode", "predict"], source_length=[4, 8],
        max_length=9, prompt_length=3, start_id=1, end_id=7, tokenizer=_words_of_both(),
        verify=False,
    )  # fmt: skip


def _words_of_both():
    return {"source": words(SOURCE_SIZE), "target": words(SOURCE_SIZE)}


def _writer(path, **options):
    given = {"prompt_length": (6, 20), "end_id": [small_writers.END, 5], "max_length": 200}
    given |= {"tokenizer": byte_pairs(), "verify": False, **options}
    return export_tflite(small_writers.story(), path, ["prefill", "decode"], **given)


def _chat(path):
    template = ChatTemplate("<s>user: ", "\nassistant: ", "\nuser: ", ("<s>", "\n"))
    return _writer(path, chat_template=template, draft_length=3)


def _int8_caches(path):
    return _writer(path, cache="int8", quantization="int8")


def _embeddings(path):
    sizes = {"dim": 12, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    pieces = sentencepiece.SentencePieceProcessor(
        model_proto=sentence_pieces(), add_bos=True, add_eos=True
    )
    size = pieces.get_piece_size()
    body = models.bert(size, max_length=40, segments=False, **sizes)
    model = models.sentence_embedding(
        body, prompts={"query": "a ", "passage": "text "}, default_prompt="passage"
    )
    return export_tflite(
        randomize(model), path, source_length=[12, 40], tokenizer=pieces, verify=False
    )


def _adapters(path):
    sizes = {"dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    keras.utils.set_random_seed(0)
    model = models.llama(len(WORDS), num_key_value_heads=1, max_length=12, name="base", **sizes)
    models.enable_lora(model, 3, 3.0)
    return export_tflite(
        model, path, ["generate", "predict"], source_length=6, prompt_length=4, max_length=12,
        end_id=7, tokenizer=words(), separate_adapters=True, verify=False,
    )  # fmt: skip


def _speech(path):
    sizes = {"dim": 12, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "num_mels": 8}
    model = models.whisper(len(WORDS), **sizes, max_source_length=50, max_length=9, pad_id=0)
    return export_tflite(
        randomize(model), path, ["generate", "encode", "prefill", "decode"], max_length=9,
        prompt_length=3, default_prompt=[1, 3], end_id=7, tokenizer=words(), verify=False,
    )  # fmt: skip


def _detector(path):
    return export_tflite(
        detector(), path, images=ImageProcessor(SIZE, resize="fit"),
        labels=["cat", "dog", "cow"], verify=False,
    )  # fmt: skip


def _pictures(path):
    images = ImageProcessor((32, 32), resize=40)
    return export_tflite(classifier(), path, images=images, verify=False)


def _pairs(path):
    return export_tflite(
        models.clip_towers(small_clip()), path, images=PROCESSOR, tokenizer=tokenizer(),
        source_length=LENGTH, verify=False,
    )  # fmt: skip


EXPORTS = {
    "beam": _beam,
    "stepped": _stepped,
    "writer": _writer,
    "chat": _chat,
    "int8_caches": _int8_caches,
    "embeddings": _embeddings,
    "adapters": _adapters,
    "speech": _speech,
    "detector": _detector,
    "pictures": _pictures,
    "pairs": _pairs,
}


# Of files that other tests share: functions that return a path.
OTHERS = {
    "classifier": lambda: classifier_file().path,
    "captions": lambda: small_captioners.file("cross-attention"),
    "prefix": lambda: small_captioners.file("prefix", small_captioners.STEPPED),
    "drawing": small_drawing.judged_file,
    "live": lambda: live_file("float32"),
    "ctc": lambda: ctc_file("float32"),
}
KINDS = (*EXPORTS, *OTHERS)
