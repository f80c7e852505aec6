"""Evoformer on alignments of proteins: fills in residues, predicts contacts, runs on LiteRT.

    pip install -e ".[examples]"
    python examples/contacts.py

Data: see contacts_data.py; no network but Debian's packages. A small Evoformer learns to fill in
masked residues of 20 alignments without a structure, then contacts from the structures of all
families but one, and is tested on that one: seven families, seven times. Beside it stand what needs
no training: the profile of a column, and mutual information of columns with the average product
correction (APC). Both are also inputs of the model, as the profile is in AlphaFold 2 (supplement
1.2.9): Evoformer learns what has to be added to them.

Minutes: 30 on 2 cores beside four other programs, 7 of them pretraining (1,500 steps). Expected,
means of seven families that neither training has seen, with the standard error of the difference:

                                     Evoformer   without training        difference
masked residues, accuracy                62.7%    61.7% (profile)    +1.0% +- 0.4%
the same with gaps                       63.1%    61.1% (profile)    +2.1% +- 0.7%
contacts, precision of L/5               18.4%        13.6% (APC)    +4.8% +- 1.1%

Each of the seven families gains in both. From 20 alignments Evoformer is too sure of what it adds
to the profile: half of it is best, a share that is chosen for each family by the six others. The
file has 0.74 MB in float32 and 0.61 MB in int8; a crop of 16 sequences and 64 residues took 17 ms
on a calm machine.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import contacts_data as data
import contacts_scores as scores
import numpy as np

from keras_tfm.runtime import native_log
from keras_tfm.text import MaskAlignments, crop_alignment
from keras_tfm.text.alignments import ALIGNMENT_IDS, GAP_ID, MASK_ID

FOLDER = Path("artifacts/contacts")
SIZE = {
    "dim": 32, "pair_dim": 16, "num_layers": 3, "num_heads": 4, "num_pair_heads": 2, "outer_dim": 8,
    "transition_factor": 2, "single_dim": 16, "dropout": 0.1, "pair_dropout": 0.1,
}  # fmt: skip
# Crops in pretraining and in training: sequences, residues; examples a step.
MASKED_ROWS, MASKED_LENGTH, ROWS, LENGTH, BATCH = 32, 32, 16, 56, 4
STEPS, CONTACT_STEPS, PEAK, WEIGHT_DECAY = 1500, 150, 1.5e-3, 0.02
# Alignments in the test, and in the exported file.
TEST_ROWS, TEST_LENGTH, FILE_ROWS, FILE_LENGTH = 48, 256, 16, 64
PER_FAMILY = 4
# Masks of a small alignment are drawn again, up to this many letters; factors of what is added.
LETTERS, SHARES = 8000, (0.25, 0.5, 0.75, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help=f"default: {FOLDER}, with --smoke {FOLDER / 'smoke'}"
    )
    parser.add_argument("--smoke", action="store_true", help="a short run on made-up families")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of pretraining")
    parser.add_argument("--contact-steps", type=int, default=CONTACT_STEPS)
    arguments = parser.parse_args()
    arguments.folder = arguments.folder or (FOLDER / "smoke" if arguments.smoke else FOLDER)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with native_log.remove():
        run(arguments)
    print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")


def run(arguments: argparse.Namespace) -> None:
    """Pretrains, trains and tests by families, draws a map, exports."""
    import keras

    from keras_tfm import models

    keras.utils.set_random_seed(0)
    if arguments.smoke:
        steps, contact_steps = 3, 2
        known = data.made_up()
        alignments = [x.ids for x in data.made_up(4)]
        size = {**SIZE, "num_layers": 1}
    else:
        steps, contact_steps, size = arguments.steps, arguments.contact_steps, SIZE
        docs = data.download(arguments.folder / "debian")
        known = data.known_alignments(docs, PER_FAMILY)
        alignments = list(data.pretraining_alignments(docs).values())
    families = list(dict.fromkeys(x.family for x in known))
    print(
        f"{len(alignments)} alignments to pretrain with; {len(known)} structures of "
        f"{len(families)} families",
        flush=True,
    )
    trunk = models.evoformer(**size)
    print(f"{trunk.count_params():,} parameters", flush=True)
    pretrain(trunk, alignments, steps, arguments.folder / f"pretrained_{steps}.weights.h5")
    fill_in(with_profile(trunk), arguments.folder / f"head_{steps}.weights.h5", known)
    model, found = by_families(trunk, known, families, contact_steps)
    draw(arguments.folder / "contacts.png", *found)
    export(model, known, size, families[0], arguments.folder, arguments.smoke)


def with_profile(trunk):
    """Logits of the masked residues: those of the profile, plus what Evoformer adds, at first 0."""
    import keras

    from keras_tfm import models

    head = models.masked_msa(trunk, kernel_initializer="zeros")
    profile = keras.Input((None, ALIGNMENT_IDS), name="profile")
    return keras.Model([*head.inputs, profile], head.output + profile[:, None])


def with_coupling(trunk):
    """Logits of contacts: those of mutual information, plus what Evoformer adds, at first 0."""
    import keras

    from keras_tfm import models

    head = models.pair_classifier(trunk, 2, kernel_initializer="zeros")
    size = head.output.shape[1]
    coupling = keras.Input((size, size, 2), name="coupling")
    contact_or_not = keras.layers.Dense(2, name="coupling_logits")
    logits = head.output + contact_or_not(coupling)
    contact_or_not.kernel.assign([[-0.5, 0.5], [0.0, 0.0]])  # the ranks of mutual information
    return keras.Model([*head.inputs, coupling], logits)


def pretrain(trunk, alignments: list[np.ndarray], steps: int, file: Path) -> None:
    """Masked residues; the weights are kept, and read again by the next run."""
    import keras

    head = file.with_name(file.name.replace("pretrained", "head"))
    model = with_profile(trunk)
    if file.exists() and head.exists():
        trunk.load_weights(file)
        model.load_weights(head)
    else:
        compiled(model, steps)
        # A family counts by the root of its residues: small ones are not repeated too often.
        shares = np.sqrt([x.size for x in alignments])
        mask = MaskAlignments(seed=1)

        def batch(step: int):
            rng = np.random.default_rng([0, step])
            chosen = rng.choice(len(alignments), BATCH, p=shares / shares.sum())
            crops = []
            for i in chosen:
                rows = MASKED_ROWS
                if rng.random() < 0.25:  # alignments of few sequences, too
                    rows = int(np.exp(rng.uniform(np.log(2), np.log(MASKED_ROWS))))
                some = shuffled(alignments[i], rng)[:rows]
                crops.append(crop_alignment(some, MASKED_ROWS, MASKED_LENGTH, rng)[0])
            whole = np.stack(crops)
            inputs, labels, weights = mask({"tokens": whole}, step)
            profile = scores.log_profile(whole, weights > 0)
            return {**inputs, "profile": profile}, labels, weights

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=progress(100))
        model.fit(Steps(batch, steps), epochs=1, verbose=0, callbacks=[callback], shuffle=False)
        trunk.save_weights(file)
        model.save_weights(head)


def fill_in(model, head: Path, known: list[data.Known]) -> None:
    """Accuracy on masked residues of families that were not in pretraining.

    How much of what Evoformer adds to the profile's logits is added, one of `SHARES`, is for each
    family what is best for the others.
    """
    if head.exists():
        model.load_weights(head)
    rows: dict[str, list] = {}
    for i, one in enumerate(known):
        draws = max(1, LETTERS // one.ids[:TEST_ROWS, : TEST_LENGTH // 2].size)
        found = [filled_in(model, one, np.random.default_rng([2, i, k])) for k in range(draws)]
        rows.setdefault(one.family, []).append(np.mean(found, axis=0))
    means = np.stack([np.mean(x, axis=0) for x in rows.values()])  # (families, 1 + shares, 2)
    others = [np.delete(means[:, 1:, 0], i, axis=0).mean(axis=0) for i in range(len(means))]
    best = [int(np.argmax(x)) for x in others]
    print(
        f"\n{'masked residues, accuracy':36}{'Evoformer':>11}{'profile':>9}{'share':>7}", flush=True
    )
    for family, mean, i in zip(rows, means, best, strict=True):
        print(f"{family:36}{mean[1 + i, 0]:11.1%}{mean[0, 0]:9.1%}{SHARES[i]:7}", flush=True)
    for name, kind in (("mean of families", 0), ("with gaps", 1)):
        ours = [float(x[1 + i, kind]) for x, i in zip(means, best, strict=True)]
        profile = [float(x[0, kind]) for x in means]
        more, error = scores.mean_and_error(np.subtract(ours, profile).tolist())
        print(
            f"{name:36}{np.mean(ours):11.1%}{np.mean(profile):9.1%}   difference {more:+.1%}, "
            f"standard error {error:.1%}",
            flush=True,
        )


def filled_in(model, one: data.Known, rng) -> np.ndarray:
    """Accuracy of the profile and with each of `SHARES`, without and with gaps: (1 + shares, 2)."""
    ids, _ = crop_alignment(one.ids, TEST_ROWS, TEST_LENGTH // 2, rng)
    ids = ids[(ids != 0).any(1)][:, (ids != 0).any(0)]
    hidden = rng.random(ids.shape) < 0.15
    profile = scores.log_profile(ids, hidden)
    inputs = {"tokens": np.where(hidden, MASK_ID, ids)[None], "profile": profile[None]}
    added = np.array(model(inputs))[0] - profile
    result = np.zeros((1 + len(SHARES), 2))
    for kind, last in enumerate((GAP_ID, GAP_ID + 1)):
        where = hidden & (ids < last)
        guesses = [scores.from_profile(ids, hidden, last == GAP_ID)]
        guesses += [(profile + x * added)[..., 1:last].argmax(-1) + 1 for x in SHARES]
        result[:, kind] = [(guess == ids)[where].mean() for guess in guesses]
    return result


def by_families(trunk, known: list[data.Known], families: list[str], steps: int):
    """Trains without one family and tests on it, for each; returns the model of the first."""
    model = with_coupling(trunk)
    couplings = [scores.coupling(x.ids, data.SEPARATION) for x in known]
    first = model.get_weights()
    compiled(model, steps)
    results, kept, shown = {}, None, None
    for family in families:
        model.set_weights(first)
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape))
        others = [x for x in zip(known, couplings, strict=True) if x[0].family != family]
        train_contacts(model, others, steps)
        values = []
        for one in (x for x in known if x.family == family):
            part = window(one, TEST_LENGTH)
            coupling = scores.coupling(part.ids, data.SEPARATION)
            ours = predicted(model, part.ids[None, :TEST_ROWS], coupling[None])[0]
            information = scores.mutual_information(part.ids)
            values.append(
                [scores.precision(x, part.contacts, part.measured) for x in (ours, information)]
            )
            if shown is None:
                shown = ours, part.contacts, part.measured
        results[family] = np.mean(values, axis=0)
        kept = model.get_weights() if kept is None else kept
    print(f"\n{'contacts, precision of L/5':36}{'Evoformer':>11}{'APC':>9}", flush=True)
    for family, (ours, other) in results.items():
        print(f"{family:36}{ours:11.1%}{other:9.1%}", flush=True)
    columns = list(zip(*results.values(), strict=True))
    means = [scores.mean_and_error(list(x)) for x in columns]
    more, error = scores.mean_and_error([a - b for a, b in results.values()])
    print(
        f"{'mean of families':36}{means[0][0]:11.1%}{means[1][0]:9.1%}\n"
        f"{'standard error':36}{means[0][1]:11.1%}{means[1][1]:9.1%}\n"
        f"difference {more:+.1%}, standard error {error:.1%}",
        flush=True,
    )
    model.set_weights(kept)
    return model, shown


def train_contacts(model, known: list[tuple[data.Known, np.ndarray]], steps: int) -> None:
    """On alignments and their couplings, each family as often as any other."""
    import keras

    names = sorted({x.family for x, _ in known})

    def batch(step: int):
        rng = np.random.default_rng([3, step])
        tokens, coupling, labels, weights = [], [], [], []
        for _ in range(BATCH):
            family = names[rng.integers(len(names))]
            mine = [x for x in known if x[0].family == family]
            one, pairs = mine[rng.integers(len(mine))]
            ids, part = cropped(one, ROWS, LENGTH, rng)
            tokens.append(ids)
            coupling.append(padded(pairs[part, part], LENGTH))
            labels.append(padded(one.contacts[part, part], LENGTH))
            weights.append(padded(one.measured[part, part], LENGTH))
        labels = np.stack(labels).astype("int32")
        weights = np.stack(weights) * (1.0 + 4.0 * labels)
        inputs = {"tokens": np.stack(tokens), "coupling": np.stack(coupling)}
        return inputs, labels, weights.astype("float32")

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=progress(50))
    model.fit(Steps(batch, steps), epochs=1, verbose=0, callbacks=[callback], shuffle=False)


def cropped(one: data.Known, rows: int, length: int, rng) -> tuple[np.ndarray, slice]:
    """A crop of the alignment, and which of its columns it has."""
    ids, first = crop_alignment(one.ids, rows, length, rng)
    return ids, slice(first, first + length)


def padded(pairs: np.ndarray, length: int) -> np.ndarray:
    """(N, N, ...) -> (length, length, ...)."""
    more = length - len(pairs)
    return np.pad(pairs, [(0, more)] * 2 + [(0, 0)] * (pairs.ndim - 2))


def compiled(model, steps: int) -> None:
    import keras

    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=PEAK, warmup_steps=max(1, steps // 10)
    )
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=WEIGHT_DECAY, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def Steps(batch, steps: int):
    """Batches by their step, as a data set of Keras."""
    import keras

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            return batch(index)

    return Data()


def progress(count: int):
    from progress import every

    return every(count)


def shuffled(ids: np.ndarray, rng) -> np.ndarray:
    """Another sequence as the target, without the columns of its gaps."""
    order = rng.permutation(len(ids))
    ids = ids[order]
    return ids[:, ids[0] != GAP_ID]


def window(one: data.Known, length: int) -> data.Known:
    """The middle of a long alignment."""
    first = max(0, (one.ids.shape[1] - length) // 2)
    part = slice(first, first + length)
    return data.Known(
        one.family, one.name, one.ids[:, part], one.contacts[part, part], one.measured[part, part]
    )


def predicted(model, tokens: np.ndarray, coupling: np.ndarray) -> np.ndarray:
    """How much a contact is preferred: (B, S, N) and (B, N, N, 2) -> (B, N, N)."""
    logits = np.array(model({"tokens": tokens, "coupling": coupling}))
    return logits[..., 1] - logits[..., 0]


def draw(file: Path, found: np.ndarray, contacts: np.ndarray, measured: np.ndarray) -> None:
    """Above the diagonal the true contacts; below, the best L predictions, right ones in green."""
    from PIL import Image

    length = len(found)
    picture = np.full((length, length, 3), 255, "uint8")
    picture[np.triu(contacts)] = 60
    picture[~measured & (np.abs(np.subtract.outer(range(length), range(length))) < 2)] = 200
    lower = np.tril(measured)
    best = np.argsort(-np.where(lower, found, -np.inf), axis=None)[:length]
    for i, j in zip(*np.unravel_index(best, found.shape), strict=True):
        picture[i, j] = (0, 140, 60) if contacts[i, j] else (220, 60, 40)
    scale = max(1, 640 // length)
    Image.fromarray(np.kron(picture, np.ones((scale, scale, 1), "uint8"))).save(file)
    print(f"\ndrawn: {file}", flush=True)


def export(
    model, known: list[data.Known], size: dict, family: str, folder: Path, smoke: bool
) -> None:
    """One file each in float32 and int8 for crops of one size, beside the model."""
    from keras_tfm import models, runtime
    from keras_tfm.export import export_tflite

    rows, length = (6, 24) if smoke else (FILE_ROWS, FILE_LENGTH)
    fixed = models.evoformer(**size, num_sequences=rows, num_residues=length)
    fixed = with_coupling(fixed)
    fixed.set_weights(model.get_weights())
    parts, tokens, couplings = [], [], []
    for i, one in enumerate(x for x in known if x.family == family):
        pairs = scores.coupling(one.ids, data.SEPARATION)
        for k in range(4):
            rng = np.random.default_rng([4, i, k])
            ids, part = cropped(one, rows, length, rng)
            tokens.append(ids)
            couplings.append(padded(pairs[part, part], length))
            parts.append((one.contacts[part, part], one.measured[part, part]))
    tokens, couplings = np.stack(tokens), np.stack(couplings)

    def mean(found: np.ndarray) -> float:
        values = [
            scores.precision(x[: len(a), : len(a)], a, b)
            for x, (a, b) in zip(found, parts, strict=True)
        ]
        return float(np.mean(values))

    keras_precision = mean(predicted(fixed, tokens, couplings))
    print(f"\nLiteRT: crops of {family}, precision of L/5 in Keras {keras_precision:.1%}")
    for kind in ("float32", "int8"):
        file = folder / f"contacts_{kind}.tflite"
        export_tflite(fixed, file, ["predict"], kind)
        loaded = runtime.load(file)
        start = time.perf_counter()
        logits = [
            loaded.predict({"tokens": x[None], "coupling": pairs[None]})
            for x, pairs in zip(tokens, couplings, strict=True)
        ]
        seconds = (time.perf_counter() - start) / len(tokens)
        logits = np.concatenate([next(iter(x.values())) for x in logits])
        print(
            f"{kind}: {mean(logits[..., 1] - logits[..., 0]):.1%}, "
            f"{file.stat().st_size / 1e6:.2f} MB, {1000 * seconds:.0f} ms an alignment",
            flush=True,
        )


if __name__ == "__main__":
    main()
