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


def write(name, model, **inputs):
    model(**inputs)
    for weight in model.weights:
        rng = np.random.default_rng(len(weight.name))
        weight.assign(0.2 * rng.normal(size=weight.shape))
    model.save_pretrained(FOLDER / name, safe_serialization=False)
    np.save(FOLDER / name / "logits.npy", model(**inputs).logits.numpy())


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
