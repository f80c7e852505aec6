"""wav2vec 2.0 and HuBERT beside transformers itself: padded batches, texts, old names, refusals."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved, with_noise

from keras_tfm import checkpoints, models
from keras_tfm.models.encoders.wav2vec2 import SIZES
from keras_tfm.models.without_storage import without_storage
from keras_tfm.runtime import best_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

# float32, relative to the outputs' size.
TOLERANCE = 1e-5
TOKENS = ["<s>", "</s>", "<unk>", "|", "'", "A", "B", "C", "<pad>", "Ä", "E"]
SMALL = {
    "vocab_size": len(TOKENS), "hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 13, "conv_dim": [5, 7, 4], "conv_kernel": [11, 3, 2],
    "conv_stride": [5, 2, 3], "num_conv_pos_embedding_groups": 3, "num_conv_pos_embeddings": 6,
    "classifier_proj_size": 8, "pad_token_id": TOKENS.index("<pad>"),
}  # fmt: skip
STABLE = {
    "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True,
    "num_conv_pos_embeddings": 7,
}  # fmt: skip
RNG = np.random.default_rng(0)
# Of one feature, of as many samples as whole features have, and of one less; with an offset.
CLIPS = [RNG.normal(0.2, 0.1, n).astype("float32") for n in (61, 1500, 31, 60, 1234)]


def processor_in(folder, **options):
    """A processor with its files in the folder."""
    (folder / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(TOKENS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json", **options)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    processor = transformers.Wav2Vec2Processor(extractor, tokenizer)
    processor.save_pretrained(folder)
    return processor


def padded(clips):
    return np.stack([np.pad(x, (0, 1600 - len(x))) for x in clips])


@pytest.mark.parametrize(
    ("name", "options", "lower"),
    [
        ("Wav2Vec2ForCTC", {}, False),
        ("Wav2Vec2ForCTC", STABLE, True),
        ("HubertForCTC", {**STABLE, "hidden_act": "relu"}, False),
    ],
)
def test_padded_batches_and_texts(name, options, lower, tmp_path):
    theirs, _ = made(name, {**SMALL, **options}, tmp_path / "a")
    with torch.no_grad():  # around 0, so that every class is the best of some feature
        theirs.lm_head.bias -= theirs(torch.from_numpy(CLIPS[1][None])).logits.mean(dim=(0, 1))
    theirs.save_pretrained(tmp_path / "a")
    processor = processor_in(tmp_path / "a", do_lower_case=lower)
    ours = checkpoints.load_huggingface(tmp_path / "a")
    labels = ours.head.arguments["labels"]
    assert labels.index("") == 8
    logits = to_numpy(ours({"audio": padded(CLIPS)}))
    texts = set()
    for clip, found in zip(CLIPS, logits, strict=True):
        inputs = processor(audio=clip, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            expected = theirs(**inputs).logits.numpy()
        count, scale = expected.shape[1], np.abs(expected).max()
        assert np.abs(found[:count] - expected[0]).max() <= TOLERANCE * scale
        assert (found[count:].argmax(axis=-1) == 8).all()
        text = processor.batch_decode(expected.argmax(axis=-1))[0]
        assert best_path(found, labels) == text
        texts.add(text)
    assert len(texts) > 2
    if options.get("feat_extract_norm") == "layer":  # they have a mask, in a batch too
        inputs = processor(audio=CLIPS, sampling_rate=16000, return_tensors="pt", padding=True)
        with torch.no_grad():
            batch = theirs(**inputs).logits.numpy()
        for clip, found, expected in zip(CLIPS, logits, batch, strict=True):
            count = int(theirs._get_feat_extract_output_lengths(len(clip)))
            close = np.abs(found[:count] - expected[:count]).max()
            assert close <= TOLERANCE * np.abs(expected[:count]).max()
    again = saved(ours, type(theirs), tmp_path / "b")
    with torch.no_grad():
        # The kernel of the positions is multiplied out, and divided by its lengths again.
        expected = theirs(**inputs).logits.numpy()
        assert_close(again(**inputs).logits.numpy(), expected, TOLERANCE)
    loaded = checkpoints.load_huggingface(tmp_path / "b")
    assert loaded.head.arguments["labels"] == labels
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "b")
    assert processor.batch_decode(logits.argmax(axis=-1))[1] == best_path(logits[1], labels)


@pytest.mark.parametrize("options", [{}, STABLE])
def test_a_classifier_takes_the_mean_of_what_is_not_padding(options, tmp_path):
    name = "Wav2Vec2ForSequenceClassification"
    theirs, ours = made(name, {**SMALL, **options, "num_labels": 4}, tmp_path)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    found = to_numpy(ours({"audio": padded(CLIPS)}))
    for clip, row in zip(CLIPS, found, strict=True):
        inputs = extractor(clip, sampling_rate=16000, return_tensors="pt").input_values
        with torch.no_grad():
            expected = theirs(inputs).logits.numpy()[0]
        assert np.abs(row - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_a_folder_of_pretraining_with_old_names(tmp_path):
    """Of torch's older weight normalisation, with the parts that only pretraining has."""
    options = {**SMALL, "num_codevectors_per_group": 3, "codevector_dim": 4, **STABLE}
    config = transformers.Wav2Vec2Config(**options)
    torch.manual_seed(0)
    theirs = with_noise(transformers.Wav2Vec2ForPreTraining(config).eval())
    theirs.save_pretrained(tmp_path)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    assert {"wav2vec2.masked_spec_embed", "quantizer.codevectors"} <= set(tensors)
    old = {"parametrizations.weight.original0": "weight_g"}
    old["parametrizations.weight.original1"] = "weight_v"
    for new, name in old.items():
        tensors = {x.replace(new, name): y for x, y in tensors.items()}
    assert sum("conv.weight_" in x for x in tensors) == 2
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="architecture must be one of"):
        checkpoints.load_huggingface(tmp_path)
    ours = checkpoints.load_huggingface(tmp_path, "Wav2Vec2Model", normalize_audio=False)
    with torch.no_grad():
        expected = theirs.wav2vec2(torch.from_numpy(CLIPS[1][None])).last_hidden_state.numpy()
    found = to_numpy(ours({"audio": CLIPS[1][None]}))
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_adapter": True}, "add_adapter must be False, got True"),
        ({"adapter_attn_dim": 4}, "adapter_attn_dim must be null: adapters for languages"),
        ({"use_weighted_layer_sum": True}, "use_weighted_layer_sum must be False, got True"),
        ({"feat_extract_norm": "batch"}, "feat_extract_norm must be 'group' or 'layer'"),
        ({"conv_stride": [5]}, r"conv_stride must be as many as conv_dim, 2, got \[5\]"),
        ({"conv_pos_batch_norm": True}, "conv_pos_batch_norm must be False"),
        ({"num_conv_pos_embedding_groups": 5}, r"a divisor of hidden_size \(12\), got 5"),
    ],
)
def test_what_is_not_supported_is_named(fields, message, tmp_path):
    checkpoints.save_huggingface(small(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(error.value)


def small(**options):
    sizes = {"num_layers": 1, "num_heads": 2, "intermediate_dim": 13, "position_groups": 3}
    features = {"feature_dims": [5, 4], "feature_kernels": [7, 3], "feature_strides": [5, 2]}
    return models.wav2vec2(12, **sizes, **features, **options)


def test_the_feature_extractor_of_the_folder_is_followed(tmp_path):
    checkpoints.save_huggingface(small(normalize_audio=False), tmp_path)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    assert (extractor.do_normalize, extractor.return_attention_mask) == (False, False)
    assert not checkpoints.load_huggingface(tmp_path).arguments["normalize_audio"]
    (tmp_path / "preprocessor_config.json").unlink()  # what the class does without the field
    assert checkpoints.load_huggingface(tmp_path).arguments["normalize_audio"]
    nested = {"feature_extractor": {"sampling_rate": 8000}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    with pytest.raises(ValueError, match=r"processor_config\.json: sampling_rate must be 16000"):
        checkpoints.load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ({}, ["", " ", "a", "b", "<unk>"]),
        (
            {
                "added_tokens.json": {"<s>": 4},
                "special_tokens_map.json": {"pad_token": "a", "word_delimiter_token": "b"},
            },
            ["<pad>", "|", "", " ", "<s>"],
        ),
        (
            {
                "tokenizer_config.json": {
                    "pad_token": {"content": "|"},
                    "unk_token": "?",
                    "word_delimiter_token": "a",
                },
            },
            ["<pad>", "", " ", "b", "?"],
        ),
        # Of other tokenizers, or without a blank or a delimiter, the labels are unknown.
        ({"tokenizer_config.json": {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}}, None),
        ({"tokenizer_config.json": {"pad_token": "[PAD]"}}, None),
        ({"tokenizer_config.json": {"word_delimiter_token": "#"}}, None),
        ({"tokenizer_config.json": {"replace_word_delimiter_char": None}}, None),
    ],
)
def test_labels_of_the_files_of_a_tokenizer(files, labels, tmp_path):
    checkpoints.save_huggingface(models.ctc_classifier(small(), 5), tmp_path)
    assert checkpoints.load_huggingface(tmp_path).head.arguments["labels"] is None
    vocabulary = {"<pad>": 0, "|": 1, "a": 2, "b": 3}
    for name, content in {"vocab.json": vocabulary, **files}.items():
        (tmp_path / name).write_text(json.dumps(content))
    model = checkpoints.load_huggingface(tmp_path)
    assert model.head.arguments["labels"] == labels


def test_labels_without_a_space_are_those_of_config(tmp_path):
    labels = ["one", "", "two"]
    checkpoints.save_huggingface(models.ctc_classifier(small(), 3, labels=labels), tmp_path)
    assert not (tmp_path / "vocab.json").exists()  # transformers would write "onetwo"
    head = checkpoints.load_huggingface(tmp_path).head
    assert (head.arguments["labels"], head.arguments["blank_id"]) == (labels, 1)


def test_several_vocabularies_and_equal_labels_are_refused(tmp_path):
    model = models.ctc_classifier(small(), 4, labels=["", " ", "a", "a"])
    with pytest.raises(ValueError, match="labels must differ to be saved"):
        checkpoints.save_huggingface(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    checkpoints.save_huggingface(models.ctc_classifier(small(), 5), tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"<pad>": 0}}))
    with pytest.raises(ValueError, match=r"vocab\.json: expected a dictionary from tokens to ids"):
        checkpoints.load_huggingface(tmp_path)


# Of the released checkpoints without a head, in millions.
COUNTS = {"base": 94.4, "large": 315.4, "large-lv60": 315.4, "1b": 962.5, "2b": 2159.3}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_as_many_parameters_as_transformers(size):
    with without_storage():
        ours = models.wav2vec2(**SIZES[size])
    fields = checkpoints.huggingface.FAMILIES["wav2vec2"].fields(ours, "")
    with torch.device("meta"):
        theirs = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**fields))
    lengths = ours.arguments["position_kernel"]  # of the weight normalisation
    assert ours.count_params() + lengths == sum(x.numel() for x in theirs.parameters())
    assert abs(ours.count_params() / 1e6 - COUNTS[size]) < 0.1
