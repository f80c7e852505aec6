"""TrOCR, and ViT with GPT-2, in one file: a picture in, its text out, as transformers gives it."""

import json

import numpy as np
import pytest
from keras_weights import randomize
from PIL import Image
from small_tokenizers import byte_pairs

from keras_tfm import checkpoints, models, runtime
from keras_tfm.checkpoints.tensors import SINGLE
from keras_tfm.export import export_tflite
from keras_tfm.generation import Greedy, generate

START = END = 2
LENGTH = 12
PROCESSOR = runtime.ImageProcessor((12, 18), resample="bilinear")
PICTURES = [
    np.random.default_rng(i).integers(0, 256, (*size, 3), "uint8").repeat(5, 0).repeat(5, 1)
    for i, size in enumerate([(7, 12), (9, 4), (6, 6)])
]
ENCODER = {"dim": 10, "num_layers": 1, "num_heads": 5, "intermediate_dim": 7}
DECODERS = {
    "trocr": {"image": {**ENCODER, "distillation_token": True}, "pad_id": 0},
    "gpt2": {
        "image": ENCODER, "image_projection": True, "pad_id": 2,
        "normalize_first": True, "embedding_norm": False, "position_offset": 0,
    },
}  # fmt: skip


def saved(folder, decoder):
    """A folder as transformers has it, with a beam search that repeats no pair of tokens."""
    reader = byte_pairs()
    model = models.vision_encoder_decoder(
        reader.get_vocab_size(), dim=14, num_layers=2, num_heads=7, intermediate_dim=11,
        image_size=(12, 18), patch_size=6, image_mean=[0.4, 0.5, 0.6], image_std=[0.3, 0.2, 0.25],
        max_length=LENGTH, start_id=START, end_id=END, **DECODERS[decoder],
    )  # fmt: skip
    checkpoints.save_huggingface(randomize(model, seed=6), folder, image_processor=PROCESSOR)
    reader.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    search = {"num_beams": 3, "no_repeat_ngram_size": 2, "max_length": LENGTH}
    given = model.arguments
    ids = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": given["pad_id"]}
    (folder / "generation_config.json").write_text(json.dumps({**search, **ids}))
    return folder


def search_of(folder):
    """The beam search of a folder, which a file has only if it is told so."""
    return checkpoints.load_generation_config(folder)["strategy"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of TrOCR, the report of its verified file, and the file."""
    folder = saved(tmp_path_factory.mktemp("trocr"), "trocr")
    report = export_tflite(folder, folder / "x.tflite", strategy=search_of(folder))
    return folder, report, runtime.load(report.path)


def expected_texts(folder, **options):
    """What the model of a folder writes of each picture in Keras, with its settings."""
    model, reader = checkpoints.load_huggingface(folder), checkpoints.load_tokenizer(folder)
    options = {**checkpoints.load_generation_config(folder), **options}
    tokens = generate(model, {"pixels": PROCESSOR(PICTURES)}, **options).tokens
    return reader.decode_batch(np.asarray(tokens).tolist())


def test_the_text_of_a_picture(exported, tmp_path):
    """Of an array, a file and several pictures; with the beams and the ids of the folder."""
    folder, _, file = exported
    assert file.image_processors == {"pixels": PROCESSOR}
    expected = expected_texts(folder)
    assert len({*expected}) == 3 and all(expected)
    assert file.caption(PICTURES) == expected
    Image.fromarray(PICTURES[1]).save(tmp_path / "x.png")
    assert file.caption(tmp_path / "x.png") == expected[1]


def test_the_commands(exported, run, tmp_path):
    """Of the file, and of a folder without a rule for pictures, whose file takes pixels alone."""
    folder, _, file = exported
    picture = tmp_path / "x.png"
    Image.fromarray(PICTURES[0]).save(picture)
    code, out, _ = run("predict", file.path, picture)
    assert code == 0 and out.strip() == " ".join(file.caption(PICTURES[0]).split())
    for name in (SINGLE, "config.json", "generation_config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    code, out, err = run("export", tmp_path, tmp_path / "x.tflite", "--no-verify")
    assert code == 0 and "no rule for pictures, as it has no preprocessor_config.json" in err
    assert "its tokenizer" in err and "--start 2" in err
    code, _, err = run("predict", tmp_path / "x.tflite", picture)
    assert code and "has no image processor: export it with --images" in err


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("quantization", ["float32", "int8", "int4"])
def test_rounded_weights_are_verified(decoder, quantization, tmp_path):
    folder = saved(tmp_path, decoder)
    report = export_tflite(folder, tmp_path / "x.tflite", quantization=quantization, tolerance=0.5)
    for check in report.verification.checks:  # rounded, and as far as rounding goes
        assert check.graph_error <= 1e-3, check.signature
    texts = runtime.load(report.path).caption(PICTURES)
    greedy = Greedy(search_of(folder).processors)  # beams are left to the caller
    assert quantization != "float32" or texts == expected_texts(folder, strategy=greedy)


@pytest.mark.slow
def test_steps_on_the_host(exported, tmp_path):
    """Encoded once, and decoded by a loop outside: the greedy text of Keras."""
    folder, _, _ = exported
    report = export_tflite(folder, tmp_path / "x.tflite", ["encode", "decode"])
    assert runtime.load(report.path).caption(PICTURES) == expected_texts(folder, strategy=None)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_texts_of_transformers(decoder, tmp_path):
    """With its image processor, its tokenizer and its `generate`."""
    transformers = pytest.importorskip("transformers")
    import torch

    folder = saved(tmp_path, decoder)
    theirs = transformers.VisionEncoderDecoderModel.from_pretrained(folder).eval()
    # That of the folder needs torchvision.
    processor = transformers.models.vit.image_processing_pil_vit.ViTImageProcessorPil(
        size={"height": 12, "width": 18},
        resample=2,
        image_mean=[0.4, 0.5, 0.6],
        image_std=[0.3, 0.2, 0.25],
    )
    pixels = processor(PICTURES, return_tensors="pt").pixel_values
    with torch.no_grad():
        tokens = theirs.generate(pixels)
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    expected = reader.batch_decode(tokens, skip_special_tokens=True)
    path = tmp_path / "x.tflite"
    report = export_tflite(folder, path, strategy=search_of(folder), verify=False)
    assert len({*expected}) == 3
    assert runtime.load(report.path).caption(PICTURES) == expected
