"""The translator of examples/translation.py against `torch.nn.Transformer`, both trained here.

    pip install -e ".[examples]" torch==2.13.0
    python examples/translation.py                # trains our model
    python benchmarks/translation.py --train      # trains PyTorch's, at least as long
    python benchmarks/translation.py --steps 40   # both without dropout: a minute
    python benchmarks/translation.py --markdown   # tokens per second, BLEU, chrF: ten minutes

Both models have the same vocabulary and size, and are trained on the same batches in the same
order, with the same learning rates, label smoothing, dropout rates and clipping. The example has
rotary positions, which `torch.nn.Transformer` does not offer: it gets the paper's sinusoids. For a
like-for-like comparison our model has sinusoids, too: in --steps, in a second row of tokens per
second, and in the scores of a folder where the example was trained with --sinusoids. Both models
then start with the same weights, and differ only in layers, gradients, optimizer and the random
numbers of dropout. PyTorch's weights are copied into a Keras model, so that the same beam search
and sentences score both. Training speed is measured in turns, in one process, with all cores.
"""

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

import keras_weights  # noqa: E402
import torch_weights  # noqa: E402
import translation  # noqa: E402
import translation_data as data  # noqa: E402


class Reference(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and logits."""

    def __init__(self, vocabulary_size, dim, num_layers, num_heads, intermediate_dim, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dim)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            dim,
            num_heads,
            num_layers,
            num_layers,
            intermediate_dim,
            dropout,
            norm_first=True,
            batch_first=True,
        )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0  # the example has no dropout inside the feed-forward network
        positions = torch.arange(512.0)[:, None]
        angles = positions * torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
        table = torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).reshape(512, dim)
        self.register_buffer("table", table, persistent=False)

    def embedded(self, ids):
        vectors = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(vectors + self.table[: ids.shape[1]])

    def forward(self, source, target):
        """Ids (B, S) and (B, T) -> logits (B, T, V)."""
        padding = source == translation.PADDING
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        features = self.transformer(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=later,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return features @ self.embedding.weight.T


def from_keras(reference, model) -> None:
    """Copies the weights of our model to PyTorch's."""
    weights = keras_weights.transformer_weights(model)
    state = {"embedding.weight": weights["target_embedding"]}
    for stack in ("encoder", "decoder"):
        for i, block in enumerate(weights[stack]):
            state |= torch_block(block, f"transformer.{stack}.layers.{i}")
        state |= torch_norm(weights[f"{stack}_norm"], f"transformer.{stack}.norm")
    state = {name: torch.tensor(np.asarray(value)) for name, value in state.items()}
    reference.load_state_dict(state)


def torch_block(block, name):
    """The state of an encoder or decoder layer; tests/torch_weights.py has the inverse."""
    numbers = {"self_attention": 1, "feed_forward": 2}
    state = torch_attention(block["self_attention"], f"{name}.self_attn")
    if "cross_attention" in block:
        numbers = {"self_attention": 1, "cross_attention": 2, "feed_forward": 3}
        state |= torch_attention(block["cross_attention"], f"{name}.multihead_attn")
    for part, number in numbers.items():
        state |= torch_norm(block[f"{part}_norm"], f"{name}.norm{number}")
    for part, number in (("inner", 1), ("outer", 2)):
        state[f"{name}.linear{number}.weight"] = block["feed_forward"][part].T
        state[f"{name}.linear{number}.bias"] = block["feed_forward"][f"{part}_bias"]
    return state


def torch_attention(weights, name):
    parts = ("query", "key", "value")
    return {
        f"{name}.in_proj_weight": np.concatenate([weights[part].T for part in parts]),
        f"{name}.in_proj_bias": np.concatenate([weights[f"{part}_bias"] for part in parts]),
        f"{name}.out_proj.weight": weights["output"].T,
        f"{name}.out_proj.bias": weights["output_bias"],
    }


def torch_norm(weights, name):
    return {f"{name}.weight": weights["gamma"], f"{name}.bias": weights["beta"]}


def into_keras(parameters, model) -> None:
    """Copies the weights of PyTorch's model to ours."""
    parameters = {name.removeprefix("transformer."): x for name, x in parameters.items()}
    model.get_layer("embedding").embeddings.assign(parameters["embedding.weight"])
    for layer in model.layers:
        stack, _, number = layer.name.partition("_")
        if stack in ("encoder", "decoder") and number == "norm":
            layer.gamma.assign(parameters[f"{stack}.norm.weight"])
            layer.beta.assign(parameters[f"{stack}.norm.bias"])
        elif stack in ("encoder", "decoder"):
            keras_weights.assign_block(
                layer, torch_weights.block(parameters, f"{stack}.layers.{number}")
            )


class Trainer:
    """PyTorch's model and its training step."""

    def __init__(self, model):
        size = {name: value for name, value in translation.SIZE.items() if name != "dropout"}
        self.reference = Reference(
            model.output.shape[-1], dropout=translation.SIZE["dropout"], **size
        )
        from_keras(self.reference, model)
        self.rate = model.optimizer._learning_rate
        self.optimizer = torch.optim.Adam(
            self.reference.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9
        )
        self.step = 0

    def train(self, inputs, labels) -> float:
        self.reference.train()
        self.optimizer.param_groups[0]["lr"] = float(self.rate(self.step))
        self.optimizer.zero_grad()
        logits = self.reference(*(torch.tensor(inputs[x]).long() for x in ("source", "target")))
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1),
            torch.tensor(labels).long().flatten(),
            ignore_index=translation.PADDING,
            label_smoothing=0.1,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(self.reference.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        state = self.reference.state_dict()
        np.savez(path, **{name: value.numpy() for name, value in state.items()})


def train(corpus, model, epochs: int, folder: Path, seed: int) -> None:
    """Trains as many steps as ours; saves the weights after every epoch."""
    torch.manual_seed(seed)
    trainer = Trainer(model)
    start = time.perf_counter()
    for epoch in range(epochs):
        losses, tokens = 0.0, 0
        for step in range(epoch * corpus.training.steps, (epoch + 1) * corpus.training.steps):
            inputs, labels = corpus.training.batch(step)
            losses += trainer.train(inputs, labels) * np.count_nonzero(labels)
            tokens += np.count_nonzero(labels)
            if (step + 1) % 100 == 0:
                minutes = (time.perf_counter() - start) / 60
                loss = f"loss {losses / tokens:.3f} in this epoch"
                print(f"step {step + 1:,}: {minutes:.1f} minutes, {loss}", flush=True)
        trainer.save(folder / "torch.npz")


def compare_steps(corpus, model, steps: int) -> None:
    """Trains both models for some steps without dropout, and compares losses and embeddings."""
    trainer = Trainer(model)
    for step in range(steps):
        batch = corpus.training.batch(step)
        losses = model.train_on_batch(*batch, return_dict=True)["loss"], trainer.train(*batch)
        model.reset_metrics()
        if step % 5 == 0 or step == steps - 1:
            print(f"step {step + 1}: losses {losses[0]:.5f} and {losses[1]:.5f}", flush=True)
    ours = np.asarray(keras_weights.transformer_weights(model)["target_embedding"])
    theirs = trainer.reference.embedding.weight.detach().numpy()
    print(
        f"the embeddings differ by up to {np.abs(ours - theirs).max():.1e}, "
        f"their largest value is {np.abs(ours).max():.2f}"
    )


def speed(corpus, models: dict, rounds: int, markdown: bool, steps: int = 20) -> None:
    """Target tokens per second in training: medians of rounds in which the models take turns."""
    contestants = {name: model.train_on_batch for name, model in models.items()}
    contestants["torch.nn.Transformer"] = Trainer(models["keras_tfm, sinusoids"]).train
    batches = [corpus.training.batch(step) for step in range(steps)]
    tokens = sum(np.count_nonzero(labels) for _, labels in batches)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(1 + rounds):  # the first round is the warm-up
        for name, step in contestants.items():
            start = time.perf_counter()
            for inputs, labels in batches:
                step(inputs, labels)
            rates[name].append(tokens / (time.perf_counter() - start))
    medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
    for name, median in medians.items():
        ratio = median / medians["torch.nn.Transformer"]
        cells = (name, f"{median:,.0f} tokens/s", f"{ratio:.2f}")
        print(
            f"| {' | '.join(cells)} |" if markdown else f"{cells[0]:24}{cells[1]:>18}{cells[2]:>8}"
        )


def scores(corpus, model, folder: Path) -> None:
    """Scores both models with the same beam search."""
    import keras_tfm

    test = corpus.test()
    sources = [pair.source for pair in test]
    with np.load(folder / "torch.npz") as parameters:
        into_keras(dict(parameters), model)
    models = {
        "keras_tfm": keras_tfm.load_model(folder / "translation.keras", compile=False),
        "torch": model,
    }
    answers = {
        name: translation.translate(one, corpus.tokenizer, sources) for name, one in models.items()
    }
    seen = {pair.source for pair in corpus.parts.training}
    translation.print_table(answers, test, seen)
    print("Paired bootstrap over 1,000 draws of the pairs (Koehn, EMNLP 2004), BLEU:")
    for name, chosen in (
        ("all", list(range(len(test)))),
        ("unseen", [i for i, pair in enumerate(test) if pair.source not in seen]),
    ):
        result = bootstrapped(answers, [pair.target for pair in test], chosen)
        print(f"{name:8}{result}")


def bootstrapped(answers: dict[str, list[str]], targets: list[str], chosen: list[int]) -> str:
    """sacrebleu's paired bootstrap test: is the difference significant?"""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems = [(name, [texts[i] for i in chosen]) for name, texts in answers.items()]
    references = [[targets[i] for i in chosen]]
    _, table = PairedTest(systems, {"BLEU": BLEU()}, references, "bs", n_samples=1_000)()
    cells = [
        f"{name} {result.score:.2f} (95 % in {result.mean:.2f} +- {result.ci:.2f})"
        + ("" if result.p_value is None else f", p = {result.p_value:.3f}")
        for name, result in zip(table["System"], table["BLEU"], strict=True)
    ]
    return "; ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true", help="trains PyTorch's model")
    parser.add_argument("--score", action="store_true", help="only BLEU, no speed")
    parser.add_argument("--steps", type=int, help="compares this many steps without dropout")
    parser.add_argument("--epochs", type=int, default=translation.EPOCHS)
    parser.add_argument("--folder", type=Path, default=translation.FOLDER)
    parser.add_argument("--seed", type=int, default=0, help="seed of initial weights and dropout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    vocabulary = arguments.folder / "tokenizer.json"
    if not vocabulary.exists():
        parser.error(f"{vocabulary} is missing: run python examples/translation.py first")
    if arguments.steps:
        translation.SIZE["dropout"] = 0.0
    pairs = data.read(data.fetch(arguments.folder))
    corpus = translation.Corpus(pairs, translation.VOCABULARY, vocabulary)
    steps = arguments.epochs * corpus.training.steps
    model = translation.build(corpus, False, steps, arguments.seed, rotary=False)
    if arguments.steps:
        compare_steps(corpus, model, arguments.steps)
        return
    if arguments.train:
        train(corpus, model, arguments.epochs, arguments.folder, arguments.seed)
        return
    if not arguments.score:
        example = translation.build(corpus, False, steps, arguments.seed)
        models = {"keras_tfm": example, "keras_tfm, sinusoids": model}
        speed(corpus, models, arguments.rounds, arguments.markdown)
    scores(corpus, model, arguments.folder)


if __name__ == "__main__":
    main()
