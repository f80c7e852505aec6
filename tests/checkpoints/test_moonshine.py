"""Moonshine beside transformers itself: odd sizes, noise on every weight, both ways, tokens."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints, generation, models
from keras_tfm.models.encoder_decoders.moonshine import SIZES
from keras_tfm.models.without_storage import without_storage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
# Heads of 7 dimensions, of which 6 are rotated.
SMALL = {
    "vocab_size": 37, "hidden_size": 21, "intermediate_size": 13, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 3,
    "decoder_num_attention_heads": 3,
}  # fmt: skip
RNG = np.random.default_rng(0)
AUDIO = RNG.normal(scale=0.1, size=(2, 5555)).astype("float32")
TARGET = RNG.integers(3, 37, (2, 7))
# Of one frame, of one and two, of six and thirteen: the least, the most, and between.
LENGTHS = (895, 1278, 1279, 3001, 5555)
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "partial_rotary_factor": 0.9}


def run(theirs, audio=AUDIO, target=TARGET):
    with torch.no_grad():
        output = theirs(torch.from_numpy(audio), decoder_input_ids=torch.from_numpy(target))
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


def features_of(theirs, audio):
    with torch.no_grad():
        return theirs.get_encoder()(torch.from_numpy(audio)).last_hidden_state.numpy()


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("MoonshineForConditionalGeneration", {}, LOGITS),
        (
            "MoonshineForConditionalGeneration",
            {"encoder_hidden_act": "relu", "decoder_hidden_act": "gelu", "hidden_size": 18}
            | {"partial_rotary_factor": 0.7, "pad_head_dim_to_multiple_of": 8},
            LOGITS,
        ),
        ("MoonshineModel", {"pad_token_id": 2}, FEATURES),
    ],
)
def test_both_ways(name, options, tolerance, tmp_path):
    theirs, ours = made(name, {**SMALL, **options}, tmp_path / "a")
    expected, hidden = run(theirs), features_of(theirs, AUDIO)
    found = to_numpy(ours({"audio": AUDIO, "target": TARGET}))
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    encoded = to_numpy(models.encoder(ours)(AUDIO))
    assert np.abs(encoded - hidden).max() <= FEATURES * np.abs(hidden).max()
    again = saved(ours, type(theirs), tmp_path / "b")
    assert_close(run(again), expected, 1e-6)


def test_padding_changes_nothing(tmp_path):
    """A row of a padded batch is the clip alone, here and, without the padding, there."""
    theirs, ours = made("MoonshineForConditionalGeneration", SMALL, tmp_path)
    encoder, clips = models.encoder(ours), [AUDIO[0, :n] for n in LENGTHS]
    batch = np.stack([np.pad(x, (0, 6000 - len(x))) for x in clips])
    target = RNG.integers(3, 37, (len(clips), 5))
    logits = to_numpy(ours({"audio": batch, "target": target}))
    features, size = to_numpy(encoder(batch)), 0
    for i, clip in enumerate(clips):
        row, words = clip[np.newaxis], target[i : i + 1]
        alone, hidden = to_numpy(encoder(row)), features_of(theirs, row)
        count = theirs._get_feat_extract_output_lengths(len(clip))
        assert alone.shape == hidden.shape == (1, count, 21)
        scale = np.abs(hidden).max()
        assert np.abs(features[i, :count] - alone).max() <= 1e-5 * scale
        assert np.abs(alone - hidden).max() <= FEATURES * scale
        expected = run(theirs, row, words)
        assert np.abs(logits[i] - expected).max() <= LOGITS * np.abs(expected).max()
        size += count
    assert size == 1 + 1 + 2 + 6 + 13
    silent = np.zeros((1, 2000), "float32")
    first, second = (np.array([[1, x]]) for x in (4, 5))
    for words in (first, second):
        assert np.isfinite(to_numpy(ours({"audio": silent, "target": words}))).all()


@pytest.mark.parametrize("options", [{}, {"rope_parameters": YARN, "max_position_embeddings": 80}])
def test_long_audio_and_texts(options, tmp_path):
    """Five seconds, 206 frames, and 300 tokens: beyond the 194 of training, and YaRN's 20."""
    theirs, ours = made("MoonshineForConditionalGeneration", {**SMALL, **options}, tmp_path)
    audio = RNG.normal(scale=0.1, size=(1, 80000)).astype("float32")
    target = RNG.integers(3, 37, (1, 300))
    expected = run(theirs, audio, target)
    found = to_numpy(ours({"audio": audio, "target": target}))
    assert np.abs(found - expected).max() <= LOGITS * np.abs(expected).max()


@pytest.mark.parametrize("beams", [1, 4])
def test_generated_tokens(beams, tmp_path):
    theirs, ours = made(
        "MoonshineForConditionalGeneration", {**SMALL, "initializer_range": 1.0}, tmp_path,
        shrunk=0.3,
    )  # fmt: skip
    audio = np.concatenate([AUDIO, 0.01 * AUDIO[::-1, ::-1]])
    start = np.ones((4, 1), "int64")
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(audio), decoder_input_ids=torch.from_numpy(start), max_length=14,
            num_beams=beams, do_sample=False, length_penalty=0.0, early_stopping=False,
            eos_token_id=None, pad_token_id=2,
        ).numpy()  # fmt: skip
    actual = generation.generate(
        ours, {"audio": audio, "target": start}, max_length=14,
        strategy=None if beams == 1 else generation.Beam(beams, length_penalty=0.0),
    ).tokens  # fmt: skip
    np.testing.assert_array_equal(actual, expected)
    assert len({tuple(row) for row in expected}) > 1  # the audio makes a difference
    assert len(np.unique(expected)) > 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_bias": True}, "attention_bias must be False, got True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True, got False"),
        ({"decoder_num_attention_heads": 4}, r"decoder_num_attention_heads must be .* \(2\), .* 4"),
        ({"encoder_num_key_value_heads": 1}, r"encoder_num_key_value_heads must be .* \(2\), .* 1"),
        ({"num_key_value_heads": 1}, r"decoder_num_key_value_heads must be .* \(2\), .* 1"),
        ({"head_dim": 6}, "head_dim must be 8, got 6"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type must be one of"),
        ({"partial_rotary_factor": 0.9, "rope_parameters": None}, r"an even part of a head \(8\)"),
        ({"decoder_hidden_act": "mish"}, "decoder_hidden_act must be one of"),
        ({"hidden_size": 15}, r"must be a divisor of hidden_size \(15\), got 2"),
    ],
)
def test_what_is_not_supported_is_named(fields, message, tmp_path):
    model = models.moonshine(37, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    checkpoints.save_huggingface(model, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(error.value)


def test_their_feature_extractor_is_saved(tmp_path):
    model = models.moonshine(37, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    checkpoints.save_huggingface(model, tmp_path)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    found = extractor(list(AUDIO), sampling_rate=16000, return_tensors="np").input_values
    np.testing.assert_array_equal(found, AUDIO)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_normalize": True}))
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: do_normalize must be False"):
        checkpoints.load_huggingface(tmp_path)
    path.unlink()
    nested = {"feature_extractor": {"do_normalize": True}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    with pytest.raises(ValueError, match=r"processor_config\.json: do_normalize must be False"):
        checkpoints.load_huggingface(tmp_path)


def test_grouped_keys_fail_in_transformers_too():
    """Which is why they are refused: there is nothing to compare with."""
    config = transformers.MoonshineConfig(**SMALL, encoder_num_key_value_heads=1)
    theirs = transformers.MoonshineForConditionalGeneration(config)
    with pytest.raises(RuntimeError, match="shape"):
        run(theirs)


# Table 1 of the paper, in millions.
COUNTS = {"tiny": 27.1, "base": 61.5}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_as_many_parameters_as_transformers(size):
    with without_storage():
        ours = models.moonshine(**SIZES[size])
    fields = checkpoints.huggingface.FAMILIES["moonshine"].fields(ours, "")
    with torch.device("meta"):
        config = transformers.MoonshineConfig(**fields)
        theirs = transformers.MoonshineForConditionalGeneration(config)
    assert ours.count_params() == sum(x.numel() for x in theirs.parameters())
    assert abs(ours.count_params() / 1e6 - COUNTS[size]) < 0.05
