"""Writes the folders of transformers_tf: small models of transformers 4's TensorFlow classes.

In an environment of its own: pip install "transformers<5" tensorflow tf-keras
python tests/parity/make_transformers_tf.py
"""

import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import transformers as t

FOLDER = Path(__file__).parent / "transformers_tf"
IDS = np.array([[3, 4, 5, 6]], "int32")


def write(name, model, output="logits", options=None, **inputs):
    model(**inputs)
    for weight in model.weights:
        if "embed_positions" not in weight.name:  # sines
            rng = np.random.default_rng(len(weight.name))
            noise = 0.2 * rng.normal(size=weight.shape)
            weight.assign(abs(noise) if "variance" in weight.name else noise)
    model.save_pretrained(FOLDER / name, **{"safe_serialization": False, **(options or {})})
    np.save(FOLDER / name / "logits.npy", getattr(model(**inputs), output).numpy())


bert = t.BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=8,
    num_labels=3,
)
gpt2 = t.GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_inner=12, n_positions=8)
t5 = t.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2)
write("bert", t.TFBertForSequenceClassification(bert), input_ids=IDS)
write("gpt2", t.TFGPT2LMHeadModel(gpt2), input_ids=IDS)
write("t5", t.TFT5ForConditionalGeneration(t5), input_ids=IDS, decoder_input_ids=IDS)

sizes = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
# Its two biases of logits differ.
albert = t.AlbertConfig(**sizes, embedding_size=6, max_position_embeddings=8)
write("albert", t.TFAlbertForMaskedLM(albert), input_ids=IDS)
# In several files.
distilbert = t.DistilBertConfig(
    vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=8
)
several = {"max_shard_size": "2KB"}
write("distilbert", t.TFDistilBertForMaskedLM(distilbert), options=several, input_ids=IDS)
# As safetensors, under TensorFlow's names.
marian = t.MarianConfig(
    vocab_size=20,
    decoder_vocab_size=20,
    d_model=8,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=12,
    decoder_ffn_dim=12,
    max_position_embeddings=8,
    pad_token_id=19,
    eos_token_id=0,
    decoder_start_token_id=19,
)
safe = {"safe_serialization": True}
write("marian", t.TFMarianMTModel(marian), options=safe, input_ids=IDS, decoder_input_ids=IDS)
# Kernels of convolutions: over pictures with batch normalisation, over time, and of positions.
pictures = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("float32")
resnet = t.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3)
write("resnet", t.TFResNetForImageClassification(resnet), pixel_values=pictures)
sizes = {**sizes, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
wav2vec2 = t.Wav2Vec2Config(**sizes, conv_dim=[4, 4], conv_kernel=[10, 3], conv_stride=[5, 2])
sound = np.random.default_rng(0).normal(size=(1, 200)).astype("float32")
write("wav2vec2", t.TFWav2Vec2ForCTC(wav2vec2), input_values=sound)
clip = t.CLIPConfig(
    text_config={**sizes, "max_position_embeddings": 8, "eos_token_id": 19, "bos_token_id": 18},
    vision_config={**sizes, "image_size": 32, "patch_size": 16},
    projection_dim=4,
)
ids = np.array([[3, 4, 5, 19]], "int32")
model = t.TFCLIPModel(clip)
write("clip", model, "logits_per_text", input_ids=ids, pixel_values=pictures)
