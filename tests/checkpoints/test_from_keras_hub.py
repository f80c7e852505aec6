"""Models of KerasHub become models with the same outputs, and get trained weights back."""

import json
import sys
import types

import keras
import numpy as np
import pytest
from small_hub_tasks import t5gemma_backbone

from keras_tfm import layers, models
from keras_tfm.checkpoints import from_keras_hub, to_keras_hub
from keras_tfm.export.checkpoints import export_arguments, load_checkpoint
from keras_tfm.models.without_storage import without_storage

keras_hub = pytest.importorskip("keras_hub")
hub = keras_hub.models

# Warnings of KerasHub's own layers.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* (does not support masking|looks like it has unbuilt state)"
)

rng = np.random.default_rng(0)


def add_noise(model):
    """Norms and biases that are not 1 and 0."""
    for weight in model.weights:
        if weight.name == "position_ids":  # of a preset; a new model has zeros
            weight.assign(np.arange(weight.shape[1])[np.newaxis])
        elif weight.name != "inv_freq":
            noise = 0.3 * rng.normal(size=weight.shape)
            weight.assign(weight + (abs(noise) if "variance" in weight.name else noise))
    return model


SIZES = {"vocabulary_size": 31, "num_layers": 2, "hidden_dim": 24, "intermediate_dim": 20}
GROUPS = {"num_query_heads": 6, "num_key_value_heads": 3}
LENGTH = {"max_sequence_length": 9}
WINDOW = {"use_sliding_window_attention": True, "sliding_window_size": 3}
LLAMA3_ROPE = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 8,
}
POST_NORM = {"use_post_ffw_norm": True, "use_post_attention_norm": True}


def encoder(name, **more):
    """A backbone whose heads are 3."""
    return getattr(hub, f"{name}Backbone")(**{**SIZES, "num_heads": 3, **more})


def decoder(name, **more):
    """A backbone with groups of heads."""
    return getattr(hub, f"{name}Backbone")(**{**SIZES, **GROUPS, **more})


def bert():
    return encoder("Bert", num_segments=3, **LENGTH)


def roberta():
    return encoder("Roberta", **LENGTH)


def albert():
    return encoder("Albert", embedding_dim=6, num_segments=3, **LENGTH)


def electra():
    sizes = {name: x for name, x in SIZES.items() if name != "vocabulary_size"}
    return hub.ElectraBackbone(vocab_size=31, num_heads=3, embedding_dim=6, **sizes, **LENGTH)


def gemma3(num_layers=6, **more):
    return decoder("Gemma3", num_layers=num_layers, image_size=16, head_dim=6, **more)


def gemma4(**more):
    return decoder("Gemma4", num_layers=4, image_size=16, head_dim=8, sliding_window_size=3, **more)


GEMMA4 = {  # as E2B
    "sliding_window_pattern": 2, "global_head_dim": 16, "num_kv_shared_layers": 1,
    "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32, "final_logit_soft_cap": 3.0,
    "global_rope_partial_rotary_factor": 0.25, "global_rope_scaling_factor": 2.0,
}  # fmt: skip
GEMMA4_TIED = {  # as 31B
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
    "num_global_key_value_heads": 2, "global_rope_wavelength": 500.0, "layer_norm_epsilon": 0.01,
    "local_rope_wavelength": 50.0, "global_rope_scaling_factor": 2.0,
}  # fmt: skip


def qwen3_5(**more):
    delta = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 6, "value_head_dim": 10}
    return decoder(
        "Qwen3_5", head_dim=8, layer_types=["linear_attention", "full_attention"],
        linear_conv_kernel_dim=3, **{f"linear_{name}": x for name, x in delta.items()}, **more,
    )  # fmt: skip


# A decoder of other sizes than the encoder.
NARROW = {"decoder_num_attention_heads": 3, "decoder_num_key_value_heads": 1}
NARROW |= {"decoder_num_layers": 1, "decoder_layer_types": ["sliding_attention"]}
NARROW |= {"decoder_intermediate_dim": 12, "query_pre_attn_scalar": 5.0, "sliding_window": 4}


def one_table(task):
    """T5Gemma 2 with equal tables for encoder and decoder, as in the original."""
    tables = task.backbone.token_embedding, task.backbone.decoder_token_embedding
    tables[0].embeddings.assign(tables[1].embeddings)
    return task


IMAGES = {"num_layers": 2, "num_heads": 3, "hidden_dim": 24, "patch_size": 4}


def vit(**more):
    return hub.ViTBackbone(image_shape=(12, 16, 3), mlp_dim=20, **IMAGES, **more)


def deit():
    return hub.DeiTBackbone(image_shape=(12, 12, 3), intermediate_dim=20, **IMAGES)


def dinov2(**more):
    shapes = {"image_shape": (12, 12, 3), "position_embedding_shape": (20, 20, 3)}
    return hub.DINOV2Backbone(intermediate_dim=20, **shapes, **IMAGES, **more)


def dinov3(**more):
    """Not square: KerasHub repeats the columns as if it were."""
    sizes = {"intermediate_dim": 20, "num_register_tokens": 2, "layer_norm_eps": 1e-3}
    return hub.DINOV3Backbone(**{**sizes, "image_shape": (12, 16, 3), **IMAGES, **more})


def resnet(block_type):
    return hub.ResNetBackbone(
        [64], [7], [64, 12], [1, 2], [1, 2], block_type, image_shape=(None, None, 3)
    )


def clip():
    vision = hub.CLIPVisionEncoder(4, 24, 2, 3, 20, image_shape=(12, 12, 3), name="vision")
    text = hub.CLIPTextEncoder(31, 18, 18, 3, 2, 20, max_sequence_length=9)
    return hub.CLIPBackbone(vision, text, projection_dim=6)


def siglip():
    vision = hub.SigLIPVisionEncoder(
        4, 24, 2, 3, 20, layer_norm_epsilon=1e-2, image_shape=(12, 12, 3), name="vision"
    )
    text = hub.SigLIPTextEncoder(
        31, 18, 18, 2, 3, 20, "gelu", 1e-3, max_sequence_length=14, projection_dim=24
    )
    return hub.SigLIPBackbone(vision, text)


def smollm3():
    return hub.SmolLM3Backbone(
        vocabulary_size=31, hidden_dim=24, intermediate_dim=20, num_layers=3,
        num_attention_heads=6, num_key_value_heads=3, attention_bias=False, attention_dropout=0.0,
        rope_layer_enabled_list=[True, True, False], layer_types=["full_attention"] * 3,
        mlp_bias=True, layer_norm_epsilon=1e-6, max_position_embeddings=64, rope_theta=500.0,
        partial_rotary_factor=1.0,
    )  # fmt: skip


PHI3_ROPE = {
    "max_sequence_length": 128,
    "pretraining_sequence_length": 64,
    "rope_scaling_type": "su",
    "rope_scaling_short_factor": [1.0, 2.0],
    "rope_scaling_long_factor": [2.0, 3.0],
}
MODELS = {
    "bert": bert,
    "bert-classifier": lambda: hub.BertTextClassifier(bert(), num_classes=5),
    "bert-probabilities": lambda: hub.BertTextClassifier(bert(), 5, activation="softmax"),
    "bert-masked": lambda: hub.BertMaskedLM(bert()),
    "bert-embedder": lambda: hub.BertTextEmbedder(bert()),
    "bert-embedder-cls": lambda: hub.BertTextEmbedder(bert(), pooling_mode="cls", normalize=False),
    "bert-embedder-max": lambda: hub.BertTextEmbedder(bert(), pooling_mode="max"),
    "roberta-classifier": lambda: hub.RobertaTextClassifier(roberta(), num_classes=5),
    "roberta-masked": lambda: hub.RobertaMaskedLM(roberta()),
    "xlm-r-classifier": lambda: hub.XLMRobertaTextClassifier(encoder("XLMRoberta"), num_classes=5),
    "xlm-r-embedder": lambda: hub.XLMRobertaTextEmbedder(encoder("XLMRoberta")),
    "distilbert-classifier": lambda: hub.DistilBertTextClassifier(
        encoder("DistilBert", **LENGTH), num_classes=5
    ),
    "distilbert-masked": lambda: hub.DistilBertMaskedLM(encoder("DistilBert", **LENGTH)),
    "albert-classifier": lambda: hub.AlbertTextClassifier(albert(), num_classes=5),
    "albert-masked": lambda: hub.AlbertMaskedLM(albert()),
    "electra": electra,
    "deberta-classifier": lambda: hub.DebertaV3TextClassifier(
        encoder("DebertaV3", bucket_size=4, **LENGTH), num_classes=5
    ),
    "deberta-masked": lambda: hub.DebertaV3MaskedLM(encoder("DebertaV3", bucket_size=4, **LENGTH)),
    "llama": lambda: decoder("Llama"),
    "llama-causal": lambda: hub.LlamaCausalLM(decoder("Llama", rope_max_wavelength=500.0)),
    "llama3-causal": lambda: hub.Llama3CausalLM(
        decoder("Llama3", tie_word_embeddings=True, **LLAMA3_ROPE)
    ),
    "mistral-causal": lambda: hub.MistralCausalLM(
        decoder("Mistral", sliding_window=3, head_dim=6, rope_scaling_factor=2.0)
    ),
    "qwen2-causal": lambda: hub.QwenCausalLM(decoder("Qwen", **WINDOW)),
    "qwen3-causal": lambda: hub.Qwen3CausalLM(
        decoder("Qwen3", head_dim=6, sliding_window_size=3, tie_word_embeddings=False)
    ),
    "gemma-causal": lambda: hub.GemmaCausalLM(decoder("Gemma", head_dim=6)),
    "gemma2-causal": lambda: hub.GemmaCausalLM(
        decoder(
            "Gemma", head_dim=6, attention_logit_soft_cap=5.0, final_logit_soft_cap=3.0,
            **POST_NORM, **WINDOW,
        )
    ),
    "gemma3-causal": lambda: hub.Gemma3CausalLM(
        backbone=gemma3(global_rope_scaling_factor=2.0, **POST_NORM, **WINDOW), preprocessor=None
    ),
    "gemma3-embedder": lambda: hub.Gemma3TextEmbedder(gemma3(2)),
    "gpt2-causal": lambda: hub.GPT2CausalLM(encoder("GPT2", **LENGTH)),
    "gpt-neox": lambda: encoder("GPTNeoX", rotary_percentage=0.5),
    "gpt-neox-causal": lambda: hub.GPTNeoXCausalLM(
        encoder("GPTNeoX", layer_norm_epsilon=0.1, rotary_max_wavelength=50)
    ),
    "t5": lambda: encoder("T5", use_gated_activation=False),
    "t5-seq2seq": lambda: hub.T5Seq2SeqLM(
        encoder("T5", tie_embedding_weights=False, activation="gelu", key_value_dim=6)
    ),
    "bart-seq2seq": lambda: hub.BartSeq2SeqLM(encoder("Bart", **LENGTH)),
    "whisper": lambda: encoder(
        "Whisper", num_mels=5, max_encoder_sequence_length=12, max_decoder_sequence_length=9
    ),
    "qwen3-embedder": lambda: hub.Qwen3TextEmbedder(decoder("Qwen3", head_dim=6)),
    "phi3-causal": lambda: hub.Phi3CausalLM(decoder("Phi3", **PHI3_ROPE)),
    "smollm3-causal": lambda: hub.SmolLM3CausalLM(smollm3()),
    "gemma4-causal": lambda: hub.Gemma4CausalLM(None, gemma4(**GEMMA4)),
    "gemma4-tied": lambda: gemma4(**GEMMA4_TIED),
    "qwen3.5": lambda: qwen3_5(tie_word_embeddings=True),
    "qwen3.5-causal": lambda: hub.Qwen3_5CausalLM(
        qwen3_5(
            partial_rotary_factor=0.5, rope_max_wavelength=500.0, rope_scaling_factor=2.0,
            layer_norm_epsilon=0.01,
        )
    ),
    "t5gemma": lambda: t5gemma_backbone(
        "T5Gemma", 31, decoder_hidden_dim=20, final_logit_softcapping=3.0, **NARROW
    ),
    "t5gemma-seq2seq": lambda: hub.T5GemmaSeq2SeqLM(
        t5gemma_backbone(
            "T5Gemma", 31, attention_bias=True, attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0, tie_word_embeddings=False, hidden_activation="silu",
            rope_max_wavelength=50.0, rms_norm_eps=0.01, encoder_layer_types=["full_attention"] * 2,
        )
    ),
    "t5gemma2-seq2seq": lambda: hub.T5Gemma2Seq2SeqLM(
        t5gemma_backbone(
            "T5Gemma2", 31, attention_bias=True, final_logit_softcapping=3.0,
            global_rope_scaling_factor=4.0, rope_max_wavelength=50.0, rms_norm_eps=0.01, **NARROW,
        )
    ),
    "vit": vit,
    "vit-classifier": lambda: hub.ViTImageClassifier(vit(), num_classes=5),
    "vit-probabilities": lambda: hub.ViTImageClassifier(
        vit(), num_classes=5, pooling="gap", activation="softmax"
    ),
    "deit-classifier": lambda: hub.DeiTImageClassifier(deit(), num_classes=5),
    "dinov2": dinov2,
    "dinov2-registers": lambda: dinov2(num_register_tokens=2, use_swiglu_ffn=True, name="dino"),
    "dinov3": lambda: dinov3(use_key_bias=False),
    "dinov3-gated": lambda: dinov3(use_gated_mlp=True, hidden_activation="silu", name="dino"),
    "resnet-classifier": lambda: hub.ResNetImageClassifier(resnet("bottleneck_block"), 5),
    "resnet": lambda: resnet("basic_block"),
    "clip": clip,
    "siglip": siglip,
}  # fmt: skip
# The weights that only the heads of other tasks use.
NO_POOLER_WEIGHTS = ["pooled_dense/kernel", "pooled_dense/bias"]
NO_POOLER = ("bert-masked", "bert-embedder", "albert-masked", "electra")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_there_and_back(name):
    """Both ways compare features, outputs and greedy tokens within 1e-5 of the largest value."""
    theirs = add_noise(MODELS[name]())
    if name == "gpt-neox-causal":  # attention to few positions, so that a wrong one is seen
        for weight in theirs.weights:
            if "query_key_value" in weight.path:
                weight.assign(3.0 * weight)
    if name == "t5gemma2-seq2seq":
        one_table(theirs)
    before = [np.array(x) for x in theirs.get_weights()]
    found = from_keras_hub(theirs)
    notes = {
        "electra": ["the model has features alone, without KerasHub's pooled output"],
        "bert-probabilities": ["the model returns logits, without the task's softmax"],
        "vit-probabilities": ["the model returns logits, without the task's softmax"],
    }
    own = "KerasHub's own generate leaves the most probable tokens of "
    windows = "as in KerasHub, the encoder has no windows and the decoder windows of "
    begins = {
        # Its cached steps rotate every query as if it were the first.
        "gpt-neox-causal": f"{own}gpt_neo",
        # Its states have seen the prompt's padding, and its last token twice.
        "qwen3.5-causal": f"{own}qwen3_5",
        "t5gemma": f"{windows}5 tokens; in transformers both have windows, the decoder of 4, so",
        "t5gemma-seq2seq": f"{windows}6 tokens; in transformers both",
    }
    if name in begins:
        (note,) = found.notes
        assert note.startswith(begins[name])
    elif name == "phi3-causal":
        (note,) = found.notes
        assert note.startswith("it has LongRoPE's short factors, for texts of at most 64 tokens")
    else:
        assert found.notes == notes.get(name, [])
    assert all((x == y).all() for x, y in zip(before, theirs.get_weights(), strict=True))
    add_noise(found.model)
    generates = name.endswith(("causal", "seq2seq"))  # compared once
    kept = to_keras_hub(found.model, theirs.backbone if generates else theirs)
    expected = NO_POOLER_WEIGHTS if name.startswith(NO_POOLER) else []
    assert kept == expected
    after = theirs.get_weights()
    unchanged = [np.array_equal(x, y) for x, y in zip(before, after, strict=True)]
    constant = ("inv_freq", "position_ids", "mask_token", "position_embeddings")
    constant = [x for x in theirs.weights if x.name in constant]
    assert sum(unchanged) == len(kept) + len(constant)


@pytest.mark.parametrize("trained", [3, 8])
def test_long_rope_has_the_factors_of_short_texts_or_of_long_ones(trained):
    """KerasHub chooses them by the length of each text, a model has one kind."""
    lengths = {"max_sequence_length": 20, "pretraining_sequence_length": trained}
    theirs = add_noise(hub.Phi3CausalLM(decoder("Phi3", **{**PHI3_ROPE, **lengths})))
    short, long = from_keras_hub(theirs), from_keras_hub(theirs, long_texts=True)
    assert f"at most {trained} tokens: from_keras_hub(..., long_texts=True)" in short.notes[0]
    assert long.notes == [
        "it has LongRoPE's long factors for every text, and KerasHub only for texts of more than "
        f"{trained} tokens"
    ]
    assert to_keras_hub(long.model, theirs) == to_keras_hub(short.model, theirs) == []
    for model, length in ((short.model, trained), (long.model, trained + 1)):
        tokens = rng.integers(1, 31, (2, length))
        expected = theirs({"token_ids": tokens, "padding_mask": np.ones_like(tokens)})
        # float32, two blocks, values up to 10.
        np.testing.assert_allclose(model(tokens), expected, atol=1e-4)
    with pytest.raises(ValueError, match="short factors, got 11"):
        short.model(np.ones((1, 11), "int32"))
    message = f"max_length must be at most {trained} .* got 9: .*from_keras_hub.*long_texts=True"
    with pytest.raises(ValueError, match=message):
        export_arguments(load_checkpoint(theirs), {"max_length": 9})
    export_arguments(load_checkpoint(theirs), {"max_length": 9, "signatures": ["predict"]})


def test_the_windows_of_transformers_for_t5gemma():
    found = from_keras_hub(
        t5gemma_backbone("T5Gemma", 31), verify=False, windows=[6, None], decoder_windows=5
    )
    assert found.notes == []
    assert (found.model.arguments["windows"], found.model.arguments["decoder_windows"]) == (
        [6, None],
        5,
    )


def test_a_wrong_weight_names_the_block(monkeypatch):
    theirs = add_noise(bert())
    model = from_keras_hub(theirs).model
    model.get_layer("encoder_1").feed_forward.outer.bias.assign(np.ones(24))
    from keras_tfm.checkpoints.keras_hub.comparison import check_equal
    from keras_tfm.checkpoints.keras_hub.source import Source

    with pytest.raises(ValueError, match=r"differ first in transformer_layer_1 \(encoder_1 here\)"):
        check_equal(model, Source.of(theirs))
    model.get_layer("embedding").embeddings.assign(np.ones((31, 24)))
    with pytest.raises(ValueError, match="differ in the embeddings, before transformer_layer_0"):
        check_equal(model, Source.of(theirs))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_adapters_are_merged_and_rounded_kernels_become_floats(mode):
    theirs = add_noise(decoder("Llama"))
    theirs.quantize(mode)
    theirs.enable_lora(2)
    for weight in theirs.weights:
        if weight.name.startswith("lora"):
            weight.assign(rng.normal(size=weight.shape))
    found = from_keras_hub(theirs)
    adapters = "the LoRA adapters of 4 layers were merged"
    assert found.notes == [f"15 layers in {mode} were dequantised", adapters]
    with pytest.raises(ValueError, match=f"without adapters, but 15 layers in {mode} were"):
        to_keras_hub(found.model, theirs)


def test_adapters_alone_are_merged():
    """The model is compared with KerasHub's own, which adds them in every call."""
    theirs = add_noise(hub.BertTextClassifier(bert(), num_classes=5))
    theirs.backbone.enable_lora(2)
    for weight in theirs.weights:
        if weight.name.startswith("lora"):
            weight.assign(rng.normal(size=weight.shape))
    assert from_keras_hub(theirs).notes == ["the LoRA adapters of 4 layers were merged"]


def test_weights_without_values_are_an_error():
    with without_storage():
        theirs = bert()
    with pytest.raises(ValueError, match="token_embedding/embeddings has no value, load its"):
        from_keras_hub(theirs)


@pytest.mark.parametrize(
    "dtype, note",
    [
        ("bfloat16", "weights in bfloat16 became float32"),
        ("float16", "weights in float16 became float32"),
        ("mixed_float16", "it computes in float32, not in mixed_float16"),
    ],
)
@pytest.mark.parametrize("make", [bert, clip])
def test_half_precision_becomes_float32(make, dtype, note):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        theirs = make()
    finally:
        keras.config.set_dtype_policy(before)
    found = from_keras_hub(add_noise(theirs))
    assert found.notes == [note]
    assert {x.dtype for x in found.model.weights} == {"float32"}


def test_a_converter_of_images_is_in_the_model():
    converter = hub.ViTImageClassifierPreprocessor(
        image_converter=keras_hub.layers.ViTImageConverter(
            image_size=(12, 16), scale=[1 / 100, 1 / 200, 1 / 50], offset=[-0.3, 0.0, 0.7]
        )
    )
    task = add_noise(hub.ViTImageClassifier(vit(), num_classes=5, preprocessor=converter))
    model = from_keras_hub(task).model
    pixels = rng.integers(0, 256, (2, 12, 16, 3)).astype("float32")
    np.testing.assert_allclose(model(pixels), task(converter(pixels)), rtol=1e-4, atol=1e-5)


class CustomBert(hub.BertBackbone):
    pass


class CustomTask(hub.BertTextClassifier):
    pass


class Pads(keras.layers.Layer):
    """A preprocessor whose tokenizer has another padding id."""

    def __init__(self, pad_id):
        super().__init__()
        self.tokenizer = types.SimpleNamespace(pad_token_id=pad_id)


def vision_encoder():
    return hub.Gemma3VisionEncoder(
        image_size=16, patch_size=4, num_heads=2, hidden_dim=8, num_layers=1, intermediate_dim=10,
        output_dim=24, pool_size=2,
    )  # fmt: skip


def gemma4_vision_encoder():
    return hub.Gemma4VisionEncoder(
        image_size=16, patch_size=4, num_heads=2, hidden_dim=8, num_layers=1, intermediate_dim=10,
        output_dim=24, pool_size=2, head_dim=4, num_key_value_heads=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda x: hub.BertTextClassifier(bert(), 5, preprocessor=x),
        lambda x: hub.DistilBertTextClassifier(encoder("DistilBert", **LENGTH), 5, preprocessor=x),
        lambda x: hub.AlbertTextClassifier(albert(), 5, preprocessor=x),
        lambda x: hub.DebertaV3TextClassifier(
            encoder("DebertaV3", bucket_size=4, **LENGTH), 5, preprocessor=x
        ),
        lambda x: hub.RobertaTextClassifier(roberta(), 5, preprocessor=x),
        lambda x: hub.BertTextEmbedder(bert(), preprocessor=x),
        lambda x: hub.T5Seq2SeqLM(encoder("T5"), preprocessor=x),
        pytest.param(  # of the same argument as T5's
            lambda x: hub.T5GemmaSeq2SeqLM(t5gemma_backbone("T5Gemma", 31), preprocessor=x),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bert", "distilbert", "albert", "deberta", "roberta", "embedder", "t5", "t5gemma"],
)
def test_the_padding_id_is_that_of_the_tokenizer(make):
    """Rows with padding are compared, in which id 0 is a token."""
    theirs = add_noise(make(Pads(3)))
    model = from_keras_hub(theirs).model
    assert model.arguments["pad_id"] == 3
    assert to_keras_hub(add_noise(model), theirs.backbone) in ([], NO_POOLER_WEIGHTS)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: keras.Sequential([]), TypeError, "Task or Backbone of KerasHub"),
        (lambda: 3, TypeError, "got int"),
        (lambda: CustomBert(31, 1, 3, 12, 20), ValueError, "a subclass of BertBackbone"),
        (lambda: hub.FNetBackbone(31, 1, 12, 20), ValueError, "no layers for a FNetBackbone"),
        (lambda: decoder("Llama", rope_position_scaling_factor=2.0), ValueError, "must be 1.0"),
        (lambda: hub.Backbone, TypeError, "got type"),
        (lambda: CustomTask(bert(), 5), ValueError, "expected a task of KerasHub itself"),
        (
            lambda: hub.RobertaTextClassifier(roberta(), 5, hidden_dim=12),
            ValueError,
            r"hidden_dim must be that of the backbone \(24\), got 12",
        ),
        (
            lambda: hub.ViTImageClassifier(vit(), 5, intermediate_dim=7),
            ValueError,
            "intermediate_dim must be None, got 7",
        ),
        (lambda: vit(use_patch_bias=False), ValueError, "use_patch_bias must be True, got False"),
        (
            lambda: gemma3(vision_encoder=vision_encoder()),
            ValueError,
            "Gemma 3 is supported for text alone: give a Gemma3Backbone with vision_encoder=None",
        ),
        (
            lambda: gemma4(vision_encoder=gemma4_vision_encoder()),
            ValueError,
            "give a Gemma4Backbone with vision_encoder=None and audio_encoder=None and the same",
        ),
        (
            lambda: gemma4(enable_moe_block=True, num_experts=2, expert_intermediate_dim=8),
            ValueError,
            "enable_moe_block must be False, got True",
        ),
        (
            lambda: hub.Gemma4CausalLM(None, gemma4(), final_logit_cap=2.0),
            ValueError,
            "final_logit_cap must be None, got 2.0: the cap is the final_logit_soft_cap of the",
        ),
        (
            lambda: gemma4(num_kv_shared_layers=4),
            ValueError,
            "num_shared_layers must leave a block with the window 3 before the",
        ),
        (
            lambda: gemma4(global_rope_partial_rotary_factor=0.1),
            ValueError,
            "partial_rotary_factor must be from 0.25 to 1 with 8 wide heads, got 0.1",
        ),
        (
            lambda: t5gemma_backbone("T5Gemma", 31, decoder_head_dim=4),
            ValueError,
            "decoder_head_dim must be 8, got 4",
        ),
        (
            lambda: t5gemma_backbone("T5Gemma2", 31),
            ValueError,
            "token embeddings must be equal, as one table is here, got a difference of",
        ),
        (
            lambda: t5gemma_backbone("T5Gemma2", 31, encoder_rope_max_wavelength=50.0),
            ValueError,
            "encoder_rope_max_wavelength must be None or 10000.0, got 50.0",
        ),
    ],
)  # fmt: skip
def test_a_model_of_another_kind_is_an_error(make, error, text):
    with pytest.raises(error, match=text) as caught:
        from_keras_hub(make())
    assert "\n" not in str(caught.value)


def test_folders(tmp_path, monkeypatch):
    task = add_noise(hub.BertTextClassifier(bert(), num_classes=5))
    task.save_to_preset(str(tmp_path / "preset"))
    found = from_keras_hub(tmp_path / "preset", verify=False).model
    for x, y in zip(from_keras_hub(task, verify=False).model.weights, found.weights, strict=True):
        np.testing.assert_array_equal(x, y)
    (tmp_path / "preset" / "model.weights.h5").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights, expected model"):
        from_keras_hub(tmp_path / "preset")
    with pytest.raises(FileNotFoundError, match="is no folder of a KerasHub preset"):
        from_keras_hub(tmp_path)
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    task.save_to_preset(str(tmp_path / "preset"))
    with pytest.raises(ModuleNotFoundError, match="a preset of KerasHub needs it: pip install"):
        from_keras_hub(tmp_path / "preset")


@pytest.mark.parametrize("is_task", [True, False])
def test_a_preset_of_a_tied_llama(tmp_path, is_task):
    """Its configuration does not say that it is tied, and KerasHub itself cannot load it."""
    theirs = add_noise(decoder("Llama3", tie_word_embeddings=True))
    (hub.Llama3CausalLM(theirs) if is_task else theirs).save_to_preset(str(tmp_path))
    found = from_keras_hub(tmp_path, verify=False).model
    for x, y in zip(from_keras_hub(theirs, verify=False).model.weights, found.weights, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"class_name": "FNetBackbone"}, "no layers for a FNetBackbone of KerasHub, only for Bert"),
        ({"module": "elsewhere"}, "module must be one of keras_hub, got 'elsewhere'"),
        ({"model_type": "bert"}, "is a folder of transformers: load it with load_huggingface"),
    ],
)
def test_a_folder_of_another_kind_is_an_error(tmp_path, change, text):
    bert().save_to_preset(str(tmp_path))
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=text) as caught:
        from_keras_hub(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: models.distilbert(31, 24, 2, 3, 20), "needs a model of models.bert, got"),
        (lambda: models.bert(31, 24, 2, 4, 20, num_segments=3), "has num_heads=3, and 'bert' 4"),
        (
            lambda: models.bert(31, 24, 2, 3, 20, activation="relu", num_segments=3),
            "has activation=.*, and 'bert'",
        ),
        (
            lambda: models.bert(
                31, 24, 2, 3, 20, activation=layers.gelu_tanh, num_segments=3, max_length=8
            ),
            r"position_embedding/embeddings of bert_backbone.* is \(9, 24\), here \(8, 24\)",
        ),
    ],
)
def test_a_model_that_does_not_fit_changes_nothing(make, text):
    theirs = add_noise(bert())
    before = [np.array(x) for x in theirs.get_weights()]
    with pytest.raises(ValueError, match=text):
        to_keras_hub(make(), theirs)
    assert all((x == y).all() for x, y in zip(before, theirs.get_weights(), strict=True))


def test_a_difference_changes_nothing():
    theirs = add_noise(bert())
    model = from_keras_hub(theirs, verify=False).model
    before = [np.array(x) for x in theirs.get_weights()]
    model.get_layer("embedding_norm").epsilon = 0.1
    with pytest.raises(ValueError, match="differ in the embeddings, before transformer_layer_0"):
        to_keras_hub(model, theirs)
    assert all((x == y).all() for x, y in zip(before, theirs.get_weights(), strict=True))


def test_a_model_that_is_not_causal():
    theirs = hub.LlamaBackbone(31, 1, 2, 8, 16, num_key_value_heads=2)
    model = models.llama(31, 8, 1, 2, 16, causal=False, pad_id=0)
    with pytest.raises(ValueError, match="has causal=True, and 'llama' False"):
        to_keras_hub(model, theirs)
