"""Moonshine v2 beside `transformers`: features, logits, tokens, and what is not supported."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints, generation, models
from keras_tfm.generation import ModelStream
from keras_tfm.models.encoder_decoders.moonshine_streaming import SIZES
from keras_tfm.models.without_storage import without_storage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
NAME = "MoonshineStreamingForConditionalGeneration"
ENCODER = {
    "hidden_size": 21, "intermediate_size": 13, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "sliding_windows": [[4, 3], [3, 0], [5, 2]],
}  # fmt: skip
SMALL = {
    "vocab_size": 37, "hidden_size": 20, "intermediate_size": 17, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "encoder_config": ENCODER,
    "max_position_embeddings": 90,
}  # fmt: skip
OTHERS = {
    "tie_word_embeddings": True, "attention_bias": True, "hidden_act": "gelu", "head_dim": 8,
    "pad_head_dim_to_multiple_of": 16, "hidden_size": 21, "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "encoder_config": {
        **ENCODER, "attention_bias": True, "hidden_act": "relu", "head_dim": 4, "frame_ms": 4.0,
        "num_key_value_heads": 3,
    },
}  # fmt: skip
RNG = np.random.default_rng(0)
AUDIO = RNG.normal(scale=0.1, size=(2, 4480)).astype("float32")
TARGET = RNG.integers(3, 37, (2, 7))


def mask_of(audio):
    """Without a mask, the encoder of transformers has no windows."""
    return torch.ones(audio.shape, dtype=torch.int64)


def run(theirs, audio=AUDIO, target=TARGET):
    with torch.no_grad():
        output = theirs(
            torch.from_numpy(audio), attention_mask=mask_of(audio),
            decoder_input_ids=torch.from_numpy(target),
        )  # fmt: skip
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


def features_of(theirs, audio):
    encoder = theirs.get_encoder()
    with torch.no_grad():
        found = encoder(torch.from_numpy(audio), attention_mask=mask_of(audio))
    return found.last_hidden_state.numpy()


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        (NAME, {}, LOGITS),
        (NAME, OTHERS, LOGITS),
        ("MoonshineStreamingModel", {}, FEATURES),
    ],
)
def test_both_ways(name, options, tolerance, tmp_path):
    theirs, ours = made(name, {**SMALL, **options}, tmp_path / "a")
    expected, hidden = run(theirs), features_of(theirs, AUDIO)
    found = to_numpy(ours({"audio": AUDIO, "target": TARGET}))
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    encoder = models.encoder(ours)
    encoded = to_numpy(encoder(AUDIO))
    assert np.abs(encoded - hidden).max() <= FEATURES * np.abs(hidden).max()
    again = saved(ours, type(theirs), tmp_path / "b")
    assert_close(run(again), expected, 1e-6)
    frame = ours.arguments["frame_length"]
    stream = ModelStream(encoder, 8 * frame)
    parts = [stream.append(AUDIO[0, :1001]), stream.append(AUDIO[0, 1001:]), stream.finish()]
    streamed = np.concatenate([part["output"] for part in parts])
    assert np.abs(streamed - hidden[0]).max() <= FEATURES * np.abs(hidden).max()
    decoded = to_numpy(models.decoder(ours)({"features": encoded, "target": TARGET}))
    assert np.abs(decoded - expected).max() <= tolerance * np.abs(expected).max()


def test_padding_changes_nothing(tmp_path):
    """A row of a padded batch is the clip alone."""
    _, ours = made(NAME, SMALL, tmp_path)
    encoder, lengths = models.encoder(ours), (80, 399, 400, 401, 2000, 4480)
    clips = [AUDIO[0, :n] for n in lengths]
    batch = np.stack([np.pad(x, (0, 4800 - len(x))) for x in clips])
    target = RNG.integers(3, 37, (len(clips), 5))
    logits, features = (
        to_numpy(ours({"audio": batch, "target": target})), to_numpy(encoder(batch)),
    )  # fmt: skip
    for i, clip in enumerate(clips):
        alone = to_numpy(encoder(clip[np.newaxis]))[0]
        assert len(alone) == -(-(len(clip) // 80) // 4)
        scale = np.abs(alone).max()
        assert np.abs(features[i, : len(alone)] - alone).max() <= 1e-5 * scale
        expected = to_numpy(ours({"audio": clip[np.newaxis], "target": target[i : i + 1]}))[0]
        assert np.abs(logits[i] - expected).max() <= LOGITS * np.abs(expected).max()
        # Features with zeros behind them, for the decoder alone.
        padded = np.pad(alone, ((0, 3), (0, 0)))[np.newaxis]
        given = {"features": padded, "target": target[i : i + 1]}
        decoded = to_numpy(models.decoder(ours)(given))[0]
        assert np.abs(decoded - expected).max() <= LOGITS * np.abs(expected).max()


@pytest.mark.parametrize("beams", [1, 4])
def test_generated_tokens(beams, tmp_path):
    theirs, ours = made(NAME, {**SMALL, "initializer_range": 1.0}, tmp_path, shrunk=0.3)
    audio = np.concatenate([AUDIO, 0.01 * AUDIO[::-1, ::-1]])
    start = np.ones((4, 1), "int64")
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(audio), attention_mask=mask_of(audio),
            decoder_input_ids=torch.from_numpy(start), max_length=14, num_beams=beams,
            do_sample=False, length_penalty=0.0, early_stopping=False, eos_token_id=None,
            pad_token_id=2,
        ).numpy()  # fmt: skip
    strategy = None if beams == 1 else generation.Beam(beams, length_penalty=0.0)
    inputs = {"audio": audio, "target": start}
    actual = generation.generate(ours, inputs, max_length=14, strategy=strategy).tokens
    np.testing.assert_array_equal(actual, expected)
    assert len({tuple(row) for row in expected}) > 1  # the audio makes a difference


@pytest.mark.parametrize(
    ("fields", "inner", "message"),
    [
        ({"num_key_value_heads": 1}, {}, r"num_key_value_heads must be num_attention_heads \(2\)"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, {}, "rope_type must be one of"),
        ({"hidden_act": "mish"}, {}, "hidden_act must be one of"),
        ({}, {"sample_rate": 8000}, "sample_rate must be 16000, got 8000"),
        ({}, {"num_key_value_heads": 3}, r"a divisor of num_attention_heads \(2\), got 3"),
        ({}, {"sliding_windows": [[4, 2]]}, "sliding_windows must be a list of 2 pairs"),
        ({}, {"sliding_windows": [[4, 2], [0, 2]]}, "sliding_windows must be a list of 2 pairs"),
    ],
)
def test_what_is_not_supported_is_named(fields, inner, message, tmp_path):
    model = models.moonshine_streaming(
        37, dim=16, num_layers=2, num_heads=2, intermediate_dim=16, windows=[(4, 2), (3, 1)]
    )
    checkpoints.save_huggingface(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config = {**config, **fields, "encoder_config": {**config["encoder_config"], **inner}}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(error.value)


def test_sizes_have_as_many_parameters_as_transformers():
    with without_storage():
        ours = models.moonshine_streaming(**SIZES["tiny"])
    fields = checkpoints.huggingface.FAMILIES["moonshine_streaming"].fields(ours, "")
    # The class in transformers has other defaults nowhere.
    own = transformers.MoonshineStreamingConfig(num_key_value_heads=8)
    with torch.device("meta"):
        config = transformers.MoonshineStreamingConfig(**fields)
        theirs = transformers.MoonshineStreamingForConditionalGeneration(config)
        defaults = transformers.MoonshineStreamingForConditionalGeneration(own)
    count = sum(x.numel() for x in theirs.parameters())
    assert ours.count_params() == count == sum(x.numel() for x in defaults.parameters())


def test_their_feature_extractor_is_saved(tmp_path):
    model = models.moonshine_streaming(
        37, dim=16, num_layers=1, num_heads=2, intermediate_dim=16, windows=[(4, 2)]
    )
    checkpoints.save_huggingface(model, tmp_path)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    found = extractor(list(AUDIO), sampling_rate=16000, return_tensors="np").input_values
    np.testing.assert_array_equal(found, AUDIO)
