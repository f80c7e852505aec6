"""Speculative decoding in LiteRT-LM: tokens a second with draft heads, on and off.

    pip install -e ".[litertlm]"
    python benchmarks/litertlm_drafts.py                    # two minutes

A GPT of random weights, exported with three draft heads, continues a prompt in Google's runtime,
on one thread, in turns; medians of the rounds. It writes the same token again and again, which the
untrained heads of the first file guess: all drafts are right. Those of the second always guess
another: all are wrong. A trained model is between the two.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import keras
import litert_lm
import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models

from keras_tfm import models
from keras_tfm.export import export_litertlm

VOCABULARY, HEADS, TOKENS = 8192, 3, 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--presets", nargs="+", default=["float32", "int8"])
    arguments = parser.parse_args()
    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    ids = {f"t{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(ids, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for preset in arguments.presets:
        for right in (True, False):
            model = drafting(arguments.dim, arguments.layers, right)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.litertlm"
                export_litertlm(
                    model, path, tokenizer, preset, max_length=256, start_id=1, end_id=2,
                    prefill_lengths=[32], verify=False,
                )  # fmt: skip
                rates = measure(path, arguments.rounds)
            kind = "right" if right else "wrong"
            print(
                f"{preset}, all drafts {kind}: {rates[False]:.0f} tokens/s without, "
                f"{rates[True]:.0f} with drafts, {rates[True] / rates[False]:.2f} times"
            )


def drafting(dim: int, layers: int, right: bool) -> keras.Model:
    """A model whose heads draft what it writes, or something else."""
    keras.utils.set_random_seed(0)
    model = models.gpt(
        VOCABULARY, dim=dim, num_layers=layers, num_heads=8, intermediate_dim=4 * dim,
        max_length=256,
    )  # fmt: skip
    table = model.get_layer("embedding").weights[0]
    norm = model.get_layer("decoder_norm")  # its outputs are always the vector of one token
    norm.gamma.assign(0.01 * norm.gamma)
    norm.beta.assign(table[7])
    model = models.with_draft_heads(model, HEADS)
    if not right:
        bias = model.get_layer("draft_heads").bias
        bias.assign(np.random.default_rng(0).normal(scale=9.0, size=bias.shape))
    return model


def measure(path: Path, rounds: int) -> dict[bool, float]:
    """Tokens a second of a file, by whether drafts are on."""
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
    rates: dict[bool, list[float]] = {False: [], True: []}
    backend = litert_lm.Backend.CPU(thread_count=1)
    with litert_lm.Engine(str(path), backend, cache_dir=":nocache") as engine:
        for _ in range(rounds):
            for drafted, found in rates.items():
                with engine.create_session(
                    apply_prompt_template=False,
                    sampler_config=greedy,
                    max_output_tokens=TOKENS,
                    enable_speculative_decoding=drafted,
                ) as session:
                    session.run_prefill(["t7"])
                    start = time.perf_counter()
                    text = session.run_decode().texts[0]
                    seconds = time.perf_counter() - start
                found.append(len(engine.tokenize(text)) / seconds)
    return {drafted: statistics.median(found) for drafted, found in rates.items()}


if __name__ == "__main__":
    main()
