"""SigLIP beside transformers: configurations and tokenizers made there, sizes, bad folders."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved, with_noise

from keras_tfm import checkpoints, models, runtime
from keras_tfm.models.vision.siglip import SIZES
from keras_tfm.models.without_storage import without_storage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size. Found: up to 2e-6.
CLOSE = 1e-5
IMAGE = {
    "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 7,
    "image_size": 20, "patch_size": 4,
}  # fmt: skip
TEXT = {
    "hidden_size": 14, "num_attention_heads": 7, "num_hidden_layers": 2, "intermediate_size": 11,
    "vocab_size": 31, "max_position_embeddings": 13, "projection_size": 10,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 1,
}  # fmt: skip
ODD = {**IMAGE, "num_channels": 1, "image_size": 23, "patch_size": 5}  # of which 3 are left out
OTHER = {"hidden_act": "gelu", "layer_norm_eps": 0.1, "attention_dropout": 0.3}
TOKENS = np.random.default_rng(3).integers(2, 31, (4, 13)).astype("int32")
TOKENS[1, 6:] = 1  # padding


def pixels_of(given):
    size = tuple(np.broadcast_to(given["image_size"], 2).tolist())
    pixels = np.random.default_rng(1).integers(0, 256, (4, *size, len(given["image_mean"])))
    normal = (pixels / 255 - np.array(given["image_mean"])) / np.array(given["image_std"])
    return pixels.astype("float32"), torch.tensor(np.moveaxis(normal, -1, 1).astype("float32"))


def assert_same(ours, theirs):
    """Vectors, and the logits of each picture with each text."""
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS.astype("int64")), x)
    found = {key: to_numpy(y) for key, y in ours({"pixels": pixels, "tokens": TOKENS}).items()}
    assert_close(found["image_embedding"], expected.image_embeds.numpy(), CLOSE)
    assert_close(found["text_embedding"], expected.text_embeds.numpy(), CLOSE)
    logits = found["scale"] * (found["image_embedding"] @ found["text_embedding"].T)
    assert_close(logits + found["bias"], expected.logits_per_image.numpy(), 3e-5)


PAIRS = [(IMAGE, TEXT), (ODD, TEXT), ({**IMAGE, **OTHER}, {**TEXT, **OTHER})]


@pytest.mark.parametrize(("image", "text"), PAIRS, ids=["plain", "odd", "other"])
def test_both_encoders(image, text, tmp_path):
    options = {"vision_config": image, "text_config": text}
    theirs, ours = made("SiglipModel", options, tmp_path / "theirs")
    assert_same(ours, theirs)
    assert_same(ours, saved(ours, type(theirs), tmp_path / "ours"))


def test_short_texts_are_those_padded_there(tmp_path):
    theirs, ours = made("SiglipTextModel", TEXT, tmp_path)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS.astype("int64"))).pooler_output.numpy()
    assert_close(ours(TOKENS[1:2, :6])["pooled"], expected[1:2], CLOSE)
    assert_close(ours.predict(TOKENS[1:2, :6], verbose=0)["pooled"], expected[1:2], CLOSE)
    with pytest.raises(ValueError, match="expected at most 13 tokens, got 14"):
        ours(np.pad(TOKENS, ((0, 0), (0, 1))))


def test_pictures_of_another_size(tmp_path):
    """The position table is interpolated, as in transformers."""
    theirs, _ = made("SiglipVisionModel", IMAGE, tmp_path)
    ours = checkpoints.load_huggingface(tmp_path, image_size=(24, 12))
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs(x, interpolate_pos_encoding=True)
    assert_close(ours(pixels)["features"], expected.last_hidden_state.numpy(), CLOSE)
    assert_close(ours(pixels)["pooled"], expected.pooler_output.numpy(), CLOSE)


NAFLEX = {x: y for x, y in IMAGE.items() if x != "image_size"} | {"num_patches": 25}


@pytest.mark.parametrize("size", [(20, 20), (12, 36), (28, 8)])
def test_naflex_has_pictures_of_one_shape_a_model(size, tmp_path):
    """Beside patches with padding, and a mask of it, in transformers; it loads what is saved."""
    from saved_folders import patches_of

    theirs, _ = made("Siglip2VisionModel", NAFLEX, tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs", image_size=size)
    pixels, x = pixels_of(ours.arguments)
    inputs = {name: torch.tensor(y) for name, y in patches_of(x.numpy(), 4, more=3).items()}
    with torch.no_grad():
        expected = theirs(**inputs)
    found, real = ours(pixels), ours.output["features"].shape[1]
    assert_close(found["features"], expected.last_hidden_state.numpy()[:, :real], CLOSE)
    assert_close(found["pooled"], expected.pooler_output.numpy(), CLOSE)
    again = saved(ours, type(theirs), tmp_path / "ours")
    with torch.no_grad():
        assert_close(again(**inputs).pooler_output.numpy(), found["pooled"], CLOSE)


@pytest.mark.parametrize("quantization", ["float32", "int8", "int4"])
@pytest.mark.slow
def test_files_of_naflex_are_verified(quantization, tmp_path):
    from keras_tfm.export import export_tflite

    wide = {**NAFLEX, "hidden_size": 50, "intermediate_size": 64}
    made("Siglip2VisionModel", wide, tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs", image_size=(12, 36))
    report = export_tflite(ours, tmp_path / "x.tflite", quantization=quantization)
    assert report.verification.checks[0].graph_error < 1e-4


@pytest.mark.parametrize(
    "picture", [(480, 640), (640, 480), (64, 64), (1, 3000), (1080, 1920), (37, 53)]
)
def test_the_size_of_a_picture_of_naflex(picture):
    processing = pytest.importorskip("transformers.models.siglip2.image_processing_pil_siglip2")
    expected = processing.get_image_size_for_max_num_patches(*picture, 16, 256)
    assert runtime.ImageProcessor.naflex(picture).size == expected
    rows, columns = (x // 16 for x in expected)
    assert rows * columns <= 256


def test_a_folder_of_naflex_needs_a_size_of_pictures(tmp_path):
    rules = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 16}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    with pytest.raises(ValueError, match=r"image_processor_type must be .*ImageProcessor.naflex"):
        checkpoints.load_image_processor(tmp_path)
    with pytest.raises(ValueError, match="max_patches must be a positive integer, got 0"):
        runtime.ImageProcessor.naflex((3, 4), max_patches=0)


def test_a_classifier_of_images(tmp_path):
    """With the pooling that transformers keeps beside it, and does not use."""
    options = {"vision_config": IMAGE, "text_config": TEXT, "num_labels": 3}
    theirs, ours = made("SiglipForImageClassification", options, tmp_path / "theirs")
    assert any("head.probe" in name for name, _ in theirs.named_parameters())
    again = saved(ours, type(theirs), tmp_path / "ours")
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs(x).logits.numpy()
        assert_close(again(x).logits.numpy(), expected, 3e-5)
    assert_close(ours(pixels), expected, 3e-5)


@pytest.mark.parametrize(
    ("size", "known"), [("base-16", 203155970), ("siglip2-base-16", 375187970)]
)
def test_the_sizes_of_the_released_models(size, known):
    """The numbers of parameters that their pages say; KerasHub's presets count positions too."""
    with without_storage():
        model = models.siglip(**SIZES[size])
    assert model.count_params() == known


@pytest.mark.parametrize("size", [pytest.param(x, marks=pytest.mark.slow) for x in SIZES])
def test_each_size_beside_transformers(size, tmp_path):
    """On PyTorch's meta device, by the fields that we save for a model of one block."""
    given = SIZES[size]
    parts = {
        "vision_config": (given["image"], {x: given[x] for x in ("image_size", "patch_size")}),
        "text_config": (
            given["text"],
            {
                "vocab_size": given.get("vocabulary_size", 32000),
                "projection_size": given["image"]["dim"],
                "bos_token_id": None,
                "eos_token_id": None,
            },
        ),
    }
    names = {
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_dim": "intermediate_size",
    }
    config = transformers.SiglipConfig(
        **{part: {**{names[x]: y for x, y in a.items()}, **b} for part, (a, b) in parts.items()}
    )
    with torch.device("meta"):
        theirs = transformers.SiglipModel(config)
    with without_storage():
        model = models.siglip(**given)
    assert model.count_params() == sum(x.numel() for x in theirs.parameters())


def letters():
    """A tokenizer of Gemma's kind for SigLIP 2, of single characters."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", *"abcdefgh", *"ABC"]
    ids = {x: i for i, x in enumerate(tokens)}
    return transformers.Siglip2Tokenizer(vocab=ids, merges=[("a", "b")] if "ab" in ids else [])


@pytest.mark.parametrize("kind", ["Siglip2Tokenizer", "GemmaTokenizer"])
def test_the_tokenizer_of_siglip_2_reads_lower_case(kind, tmp_path):
    made("SiglipModel", {"vision_config": IMAGE, "text_config": TEXT}, tmp_path)
    tokenizer = letters()
    tokenizer.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    fields = json.loads(settings.read_text())
    settings.write_text(json.dumps({**fields, "tokenizer_class": kind}))
    if kind == "GemmaTokenizer":  # as in the released folders, without a normalizer for case
        file = tmp_path / "tokenizer.json"
        content = json.loads(file.read_text())
        content["normalizer"] = {
            "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"
        }  # fmt: skip
        file.write_text(json.dumps(content))
    ours = checkpoints.load_tokenizer(tmp_path)
    for text in ("ab cd", "AB Cd", " HA  bé"):
        assert ours.encode(text).ids == tokenizer(text)["input_ids"], text
    assert ours.encode("ABC").ids == ours.encode("abc").ids
    # The configuration says 1, SigLIP's default; the tokenizer pads with 0.
    assert checkpoints.load_huggingface(tmp_path).arguments["pad_id"] == 0


@pytest.mark.parametrize("of_text", [False, True])
def test_the_tokenizer_of_a_naflex_folder_reads_lower_case(of_text, tmp_path):
    """transformers does not believe "GemmaTokenizer" in a folder of both encoders, either."""
    part = {"siglip2_text_model": transformers.Siglip2TextConfig(**TEXT)}
    config = part if of_text else {"siglip2": transformers.Siglip2Config()}
    next(iter(config.values())).save_pretrained(tmp_path)
    tokenizer = letters()
    tokenizer.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    fields = json.loads(settings.read_text())
    settings.write_text(json.dumps({**fields, "tokenizer_class": "GemmaTokenizer"}))
    ours = checkpoints.load_tokenizer(tmp_path, vocabulary_size=31)
    assert ours.encode("ABC").ids == ours.encode("abc").ids == tokenizer("abc")["input_ids"]
    if not of_text:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs("ABC")["input_ids"] == ours.encode("ABC").ids


def test_the_encoder_of_texts_of_siglip_2(tmp_path):
    """It computes what SigLIP's does, and is saved as that."""
    torch.manual_seed(0)
    theirs = with_noise(
        transformers.Siglip2TextModel(transformers.Siglip2TextConfig(**TEXT)).eval()
    )
    theirs.save_pretrained(tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs")
    checkpoints.save_huggingface(ours, tmp_path / "ours")
    tokens = torch.tensor(TOKENS.astype("int64"))
    again = transformers.SiglipTextModel.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        expected, saved_again = (x(tokens).pooler_output.numpy() for x in (theirs, again))
    found = to_numpy(ours(TOKENS)["pooled"])
    expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=-1, keepdims=True), expected,
                               atol=CLOSE)  # fmt: skip
    saved_again = saved_again / np.linalg.norm(saved_again, axis=-1, keepdims=True)
    np.testing.assert_allclose(saved_again, expected, atol=CLOSE)


@pytest.mark.parametrize("resample", [2, 3, None])
def test_pictures_are_prepared_as_by_their_processor(resample, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (31, 47, 3), "uint8")
    theirs = transformers.SiglipImageProcessorPil(size={"height": 20, "width": 16})
    if resample is not None:
        theirs.resample = resample
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    fields = json.loads(file.read_text())
    if resample is None:
        fields.pop("resample", None)
        file.write_text(json.dumps(fields))
    expected = theirs(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    pixels = checkpoints.load_image_processor(tmp_path)(image)[0]
    assert_close((pixels / 255.0 - 0.5) / 0.5, expected, 1e-5)


BAD = {
    "a width of texts": (
        {"text_config": {**TEXT, "projection_size": 9}}, "projection_size must be 10, got 9"
    ),
    "no pooling": (
        {"vision_config": {**IMAGE, "vision_use_head": False}}, "vision_use_head must be True"
    ),
    "a padding outside": (
        {"text_config": {**TEXT, "pad_token_id": 31}}, "pad_token_id must be an integer from 0 to"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_folders(case, tmp_path):
    made("SiglipModel", {"vision_config": IMAGE, "text_config": TEXT}, tmp_path)
    changed, message = BAD[case]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(ValueError, match=message):
        checkpoints.load_huggingface(tmp_path)
