"""Compares folders of `saved_folders.py` with what transformers reads in them.

`python tests/read_by_transformers.py FOLDER`: needs NumPy, PyTorch and transformers alone, of any
version. It prints the largest relative error by family, and exits with 1 if one is too large or a
tensor is missing, unknown or of another shape.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

# float32, relative to the largest output.
TOLERANCE = 3e-5


def outputs_of(model, inputs):
    """By name; embeddings of length 1, as they are here."""
    with torch.no_grad():
        if isinstance(model, transformers.FlavaImageCodebook):
            return {"logits": model(inputs["pixel_values"]).numpy()}
        found = model(**inputs)
    found = {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}
    for name in found:
        if name.endswith("_embeds"):
            found[name] = found[name] / found[name].norm(dim=-1, keepdim=True)
    return {name: x.numpy() for name, x in found.items()}


def class_of(folder):
    """The class in a folder's configuration; None if this version does not have it."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, architecture, None)


def read(folder):
    """The model in a folder, which must have exactly the tensors that transformers expects."""
    # Other attention of version 4 leaves out Gemma 2's cap of scores and GPT-2's scaling by layer.
    model, report = class_of(folder).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    wrong = {key: list(x) for key, x in report.items() if x and key != "error_msgs"}
    if wrong:
        raise ValueError(f"{folder.name}: {wrong}")
    for module in model.modules():
        # Version 5 leaves the sinusoids of TrOCR on the meta device.
        if type(module).__name__ == "TrOCRSinusoidalPositionalEmbedding":
            module.weights = module.get_embedding(99, module.embedding_dim, module.padding_idx)
    return model.eval()


def answer(folder):
    """What transformers computes from a folder's model and inputs."""
    inputs = {name: torch.from_numpy(x) for name, x in arrays_in(folder, "in/").items()}
    return outputs_of(read(folder), inputs)


def arrays_in(folder, prefix):
    arrays = np.load(folder / "expected.npz")
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


def error_of(folder, found):
    """The largest error of what transformers computes, relative to the folder's outputs."""
    errors = []
    for name, x in arrays_in(folder, "out/").items():
        y = found[name]
        if y.shape != x.shape:
            raise ValueError(f"{folder.name}: {name} is {y.shape}, expected {x.shape}")
        errors.append(float(np.abs(y - x).max() / np.abs(x).max()))
    return float(np.max(errors))  # NaN too, which Python's `max` drops


def main(folder):
    transformers.logging.set_verbosity_error()
    errors, failures = {}, []
    old = int(transformers.__version__.split(".")[0]) < 5
    if old:  # version 4.57 gives patches of SmolVLM the positions of those before them
        find = torch.bucketize
        torch.bucketize = lambda x, *args, **options: find(x + 2e-6, *args, **options)
    for path in sorted(Path(folder).iterdir()):
        if old and (path.name.endswith("version 5") or class_of(path) is None):
            continue  # what version 4 does not have, or reads otherwise
        try:
            error = error_of(path, answer(path))
        except Exception as problem:  # the next folder all the same
            failures.append(f"{type(problem).__name__}: {problem}")
            continue
        if not error <= TOLERANCE:
            failures.append(f"{path.name}: relative error {error:.2g}")
        errors.setdefault(path.name.split(",")[0], []).append(error)
    print(f"transformers {transformers.__version__}")
    for family, each in errors.items():
        print(f"{family:24} {len(each):2} folders, relative error at most {max(each):.1e}")
    print(*failures, sep="\n")
    return int(bool(failures) or not errors)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
