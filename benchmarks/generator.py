"""`generation.Generator` in Keras: without caches, with drafts, Hugging Face and CTranslate2.

    pip install -e ".[benchmarks]" torch==2.13.0 transformers
    python benchmarks/generator.py --markdown       # four minutes; skips what is not installed

float32, all cores, `jit_compile=True`, greedy search unless stated otherwise; 4 layers (4+4 with an
encoder), D=256, H=8, F=1024, V=8000. Contestants take turns within a row; medians of the rounds.

Drafts: all weights are random. Greedy search soon repeats a token, which most drafts guess then, so
"tokens a step" is that of these weights. "A step" is the time of a drafted step divided by that of
a step of greedy search, whatever the weights: with as many tokens a step as that, drafts are as
fast as greedy search. The draft model has one layer.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from keras_tfm.runtime import native_log

DIM, HEADS, INNER, LAYERS, VOCABULARY = 256, 8, 1024, 4, 8000
PROMPT, SOURCE, TOKENS, DRAFTS, START = 8, 32, 64, 3, 1
rng = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    with native_log.remove():
        import keras

        keras.utils.set_random_seed(0)
    growth(arguments)
    with_drafts(arguments)
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        against_hugging_face(arguments)
    if importlib.util.find_spec("ctranslate2"):
        against_ctranslate2(arguments)


def growth(arguments) -> None:
    """Decoder-only, batch 1: seconds by length, with KV caches and with a full pass per token."""
    from keras_tfm.generation import Generator

    model = language_model(1024)
    rows = []
    for tokens in (64, 128, 256, 512, 1024):
        generator = Generator(model, max_length=tokens, jit_compile=True)
        prompt = rng.integers(1, VOCABULARY, (1, PROMPT))
        contestants = {"cached": lambda p=prompt, g=generator: g(p)}
        if tokens <= 256:  # longer ones take a minute per call
            contestants["uncached"] = lambda p=prompt, n=tokens: uncached(model, p, n)
        rows.append((str(tokens), race(contestants, arguments.rounds)))
    show("tokens, including the prompt", ("cached", "uncached"), rows, arguments.markdown)


def uncached(model, prompt, length: int):
    """A full pass over all tokens for each new token, compiled once with an unknown length."""
    import tensorflow as tf

    if not hasattr(uncached, "run"):
        uncached.run = tf.function(lambda ids: model(ids, training=False), reduce_retracing=True)
    tokens = np.zeros((1, length), "int32")
    tokens[:, :PROMPT] = prompt
    for i in range(PROMPT, length):
        logits = uncached.run(tf.constant(tokens[:, :i]))
        tokens[:, i] = np.argmax(logits[0, -1])
    return tokens


def with_drafts(arguments) -> None:
    """Decoder-only and encoder-decoder, 64 new tokens: greedy search with and without drafts."""
    from keras_tfm import models
    from keras_tfm.generation import DraftHeads, DraftModel, PromptLookup

    sizes = {"dim": DIM, "num_heads": HEADS, "intermediate_dim": INNER}
    translator = models.transformer(VOCABULARY, num_layers=LAYERS, **sizes)
    small_translator = models.transformer(VOCABULARY, num_layers=1, **sizes)
    kinds = {
        "decoder-only": (language_model(1024), language_model(1024, layers=1)),
        "encoder-decoder": (translator, small_translator),
    }
    bar = "| " if arguments.markdown else ""
    columns = ("greedy s", "drafted s", "times greedy", "tokens a step", "a step")
    title = f"{TOKENS} tokens, {DRAFTS} drafts"
    print(f"\n{bar}{title:44}{bar}" + bar.join(f"{x:>14}" for x in columns) + bar)
    if arguments.markdown:
        print("|---|" + "---:|" * len(columns))
    for kind, (model, small) in kinds.items():
        drafts = {
            "PromptLookup": (model, PromptLookup(2)),
            "DraftHeads": (models.with_draft_heads(model, DRAFTS), DraftHeads()),
            "DraftModel": (model, DraftModel(small)),
        }
        for batch in (1, 8):
            inputs = rng.integers(
                1, VOCABULARY, (batch, SOURCE if len(model.inputs) == 2 else PROMPT)
            )
            for name, (drafted, draft) in drafts.items():
                label = f"{kind}, batch {batch}, {name}"
                cells = drafted_row(label, model, drafted, draft, inputs, arguments.rounds)
                print(f"{bar}{label:44}{bar}" + bar.join(f"{x:>14}" for x in cells) + bar)


def drafted_row(label: str, model, drafted, draft, inputs, rounds: int) -> tuple[str, ...]:
    """Greedy search of `model`, and of `drafted`: the same one, or one with heads."""
    from keras_tfm.generation import Drafted, Generator

    start_id = None if len(model.inputs) == 1 else START
    new = {"max_new_tokens": TOKENS, "start_id": start_id, "jit_compile": True}
    greedy = Generator(model, **new)
    faster = Generator(drafted, strategy=Drafted(draft, DRAFTS), **new)
    if not np.array_equal(greedy(inputs).tokens, faster(inputs).tokens):
        raise SystemExit(f"{label}: not the tokens of greedy search")
    seconds = race({"greedy": lambda: greedy(inputs), "drafted": lambda: faster(inputs)}, rounds)
    a_step = TOKENS / steps(faster, inputs)
    ratio = seconds["greedy"] / seconds["drafted"]
    numbers = (seconds["greedy"], seconds["drafted"])
    return *(f"{x:.3f}" for x in numbers), f"{ratio:.2f}", f"{a_step:.2f}", f"{a_step / ratio:.2f}"


def steps(generator, inputs) -> int:
    """The number of steps that a drafted generation takes."""
    from keras_tfm.generation.loop import GenerationLoop

    others, prompt = {}, inputs.astype("int32")
    if generator.start_id is not None:
        others["source"] = prompt
        prompt = np.full((len(inputs), 1), generator.start_id, "int32")
    loop = GenerationLoop(
        generator.model, others, generator.target, prompt, prompt.shape[1] + TOKENS,
        strategy=generator.strategy,
    )  # fmt: skip
    return int(loop.run()["passes"])


def against_hugging_face(arguments) -> None:
    """Decoder-only, 64 new tokens: GPT-2's architecture on both sides."""
    import torch
    import transformers

    from keras_tfm.generation import Beam, Generator, Greedy

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=1024, n_embd=DIM, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    model = language_model(1024)
    rows = []
    for batch in (1, 8):
        for beams in (1, 4):
            strategy = Greedy() if beams == 1 else Beam(beams)
            ours = Generator(model, max_new_tokens=TOKENS, strategy=strategy, jit_compile=True)
            prompt = rng.integers(1, VOCABULARY, (batch, PROMPT))
            ids = torch.tensor(prompt)
            mask = torch.ones_like(ids)

            def hugging_face(ids=ids, mask=mask, beams=beams):
                with torch.inference_mode():
                    return theirs.generate(
                        ids, attention_mask=mask, max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                        do_sample=False, num_beams=beams,
                    )  # fmt: skip

            contestants = {
                "keras_tfm": lambda p=prompt, g=ours: g(p),
                "Hugging Face": hugging_face,
            }
            label = f"batch {batch}, " + ("greedy" if beams == 1 else f"beam {beams}")
            rows.append((label, race(contestants, arguments.rounds)))
    title = f"{TOKENS} tokens after {PROMPT}, decoder-only"
    show(title, ("keras_tfm", "Hugging Face"), rows, arguments.markdown)


def against_ctranslate2(arguments) -> None:
    """Encoder-decoder, the same weights on both sides."""
    import ctranslate2
    import ctranslate2_peer as peer

    from keras_tfm.generation import Beam, Generator, Greedy
    from keras_tfm.models import transformer

    model = transformer(
        VOCABULARY, dim=DIM, num_layers=LAYERS, num_heads=HEADS, intermediate_dim=INNER
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ct2"
        peer.write_model(
            peer.weights_of(model), path, num_heads=HEADS, normalize_first=False, start_id=START
        )
        translator = ctranslate2.Translator(
            str(path), compute_type="float32", intra_threads=os.cpu_count()
        )
        for batch in (1, 8):
            for beams in (1, 4):
                strategy = Greedy() if beams == 1 else Beam(beams)
                ours = Generator(model, TOKENS + 1, START, strategy=strategy, jit_compile=True)
                source = rng.integers(1, VOCABULARY, (batch, SOURCE))
                words = [[str(i) for i in row] for row in source]

                def theirs(words=words, beams=beams):
                    return translator.translate_batch(
                        words, beam_size=beams, end_token=[], max_decoding_length=TOKENS
                    )

                contestants = {
                    "keras_tfm": lambda s=source, g=ours: g(s), "CTranslate2": theirs
                }  # fmt: skip
                label = f"batch {batch}, " + ("greedy" if beams == 1 else f"beam {beams}")
                rows.append((label, race(contestants, arguments.rounds)))
    title = f"{TOKENS} tokens, source {SOURCE}, encoder-decoder"
    show(title, ("keras_tfm", "CTranslate2"), rows, arguments.markdown)


def language_model(max_length: int, layers: int = LAYERS):
    """GPT-2's architecture."""
    import keras
    from keras import ops

    from keras_tfm.layers import PositionEmbedding, TokenEmbedding, TransformerDecoderBlock

    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(VOCABULARY, DIM)
    x = PositionEmbedding(max_length)(embedding(ids))
    for _ in range(layers):
        x = TransformerDecoderBlock(
            INNER, HEADS, cross_attention=False, normalize_first=True,
            activation=lambda x: ops.gelu(x, approximate=True),
        )(x)  # fmt: skip
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(ids, embedding(x, reverse=True))


def race(contestants: dict, rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 2):  # the first two compile and warm up
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if number > 1:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def show(title: str, names: tuple[str, str], rows: list, markdown: bool) -> None:
    ours, theirs = names
    bar = "| " if markdown else ""
    print(f"\n{bar}{title:40}{bar}{ours + ' s':>14}{bar}{theirs + ' s':>16}{bar}{'ratio':>8}{bar}")
    if markdown:
        print("|---|---:|---:|---:|")
    for label, medians in rows:
        other = medians.get(theirs)
        shown = ("", "") if other is None else (f"{other:.3f}", f"{other / medians[ours]:.2f}")
        print(
            f"{bar}{label:40}{bar}{medians[ours]:14.3f}{bar}{shown[0]:>16}{bar}{shown[1]:>8}{bar}"
        )


if __name__ == "__main__":
    main()
