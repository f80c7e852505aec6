"""Saves the LoRA adapters of a model in the format of PEFT, apart from their base model."""

import inspect
import json
import math
import re
from collections.abc import Container
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm import atomic_files
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.huggingface import (
    float32_model,
    load_huggingface,
    model_family,
    new_files,
)
from keras_tfm.checkpoints.peft import CONFIG, FILES, ROOT
from keras_tfm.checkpoints.round_trip import check_equal
from keras_tfm.checkpoints.rows import Entry
from keras_tfm.checkpoints.tensors import TensorKind, write_tensors
from keras_tfm.keras_internals import sublayers
from keras_tfm.models import Model
from keras_tfm.models.quantization.state import is_quantized, quantization_of
from keras_tfm.models.quantization_aware import without_quantization
from keras_tfm.models.with_dtype import ADAPTERS

# PEFT's name of what a model is for, by the kind of its head.
_TASKS = {
    "sequence_classifier": "SEQ_CLS",
    "token_classifier": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    None: "FEATURE_EXTRACTION",
}
# Model types of which transformers 5 has other modules than the files have tensors.
OTHER_MODULES = (
    *("deit", "depth_anything", "detr", "dinov2", "dinov2_with_registers", "gte", "nomic_bert"),
    *("siglip_text_model", "vit"),
)
# A name of a model for PEFT; other texts are paths.
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Of the largest change of a weight by an adapter: sums in another order.
_TOLERANCE = 1e-4


def save_peft(model: keras.Model, folder: str | Path, base: str | Path) -> None:
    """Saves LoRA adapters as `adapter_config.json` and `adapter_model.safetensors`, as PEFT does.

    PEFT reads the folder: `PeftModel.from_pretrained(base_model, folder)`; so does
    `load_huggingface(base, peft=folder)`. Weights beside the adapters that are trained, such as
    those of a head, are saved with all weights of their module, in PEFT's words `modules_to_save`.
    The tokenizer is not saved. The base may be quantized, as by GPTQ: the adapters are those of the
    values of its integers, and its other matrices are compared without the rounding that
    `load_huggingface` gives them.

    Args:
        model: `keras.Model` that `load_huggingface` loaded, or that has its weights, with the
            adapters of `models.enable_lora`. It is not changed.
        folder: str or Path. Created if it does not exist; existing files of these names are
            replaced.
        base: str or Path, the base model: a folder of `transformers`, with which the files are
            loaded and compared before they are kept, or its name for PEFT, such as
            "HuggingFaceTB/SmolLM2-135M", which is not read.

    Raises:
        TypeError: `model` is not a Keras model, or `base` neither a path nor a name.
        FileNotFoundError: `base` is the path of a folder that does not exist.
        FileExistsError: the folder has a model, such as the base.
        ValueError: the model has no adapters, or weights beside them that `enable_quantization` or
            Keras rounded, or a bias that is trained beside an adapter; or is of another kind than
            `save_huggingface` can save, or of one whose modules in `transformers` have other names
            than its tensors, such as ViT and GTE; or an adapter is not of low rank in the tensors
            of `transformers`; or the base with the adapters gives other outputs than the model.

    After an error the folder is unchanged.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tfm import checkpoints, models
    >>> model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints.save_huggingface(model, folder + "/base")
    ...     count = models.enable_lora(model, rank=2)
    ...     # model.fit(...)
    ...     checkpoints.save_peft(model, folder + "/adapters", folder + "/base")
    ...     sorted(path.name for path in pathlib.Path(folder, "adapters").iterdir())
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    folder = Path(folder)
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a keras.Model, got {type(model).__name__}")
    base = _checked_base(base)
    if (folder / "config.json").is_file():
        raise FileExistsError(
            f"cannot write adapters to {folder}: it has a model (config.json), which would no "
            "longer be loaded without them"
        )
    rounding = quantization_of(model)
    if is_quantized(model) or (rounding is not None and not rounding.is_published):
        raise ValueError(
            f"{model.name} has rounded weights beside its adapters: save_huggingface merges them"
        )
    layers = [x for x in sublayers(model) if getattr(x, "lora_enabled", False)]
    if not layers:
        raise ValueError(f"{model.name} has no adapters: call models.enable_lora first")
    # PEFT does not round the matrices that a quantized base has as floats.
    with nullcontext() if rounding is None else without_quantization(model):
        family, merged = model_family(float32_model(model))
    if family.model_type in OTHER_MODULES:
        raise ValueError(
            f"{model.name}: transformers has other modules for {family.model_type} than its files "
            "have tensors, so PEFT has none of these adapters: save_huggingface merges them"
        )
    architecture = family.architecture_of(merged)
    prefix = family.prefix_of(architecture)
    entries = {x.weight.path: x for x in family.entries(merged)}
    tensors, modules = dict[str, np.ndarray](), dict[str, tuple[int, float]]()
    own = set[int]()
    for layer in layers:
        own |= {id(getattr(layer, name)) for name in ADAPTERS if hasattr(layer, name)}
        entry = entries.get(f"{layer.path}/kernel")
        if entry is None:
            raise ValueError(f"{model.name}: expected adapters of dense layers, got {layer.path}")
        if re.search(r"/(router|expert_\d+)/", entry.weight.path):
            raise ValueError(
                f"{model.name}: PEFT has no adapters of experts and routers, got {layer.path}: "
                "give enable_lora other names, or merge them with save_huggingface"
            )
        for name, (a, b) in _factors(entry, layer, family).items():
            name = family.names.in_module(name if entry.head else prefix + name)
            module = name.removesuffix(".weight")
            modules[module] = int(layer.lora_rank), float(layer.lora_alpha)
            tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    parts, whole = _whole(model, merged, family, own)
    both = sorted(x for x in modules if any(f"{x}.".startswith(f"{y}.") for y in whole))
    if both:
        raise ValueError(
            f"{model.name}: {both} have an adapter and another weight that is trained, such as a "
            "bias, which PEFT does not save together: save_huggingface merges them"
        )
    tensors |= parts
    fields = _fields(merged, modules, sorted(whole), base)
    fields["fan_in_fan_out"] = any(
        re.fullmatch(family.names.transposed, f"{x.removeprefix(prefix)}.weight") for x in modules
    )
    with new_files(folder) as new:
        text = json.dumps(fields, indent=2, sort_keys=True)
        (new / CONFIG).write_text(text + "\n", encoding="utf-8")
        named = {ROOT + name: np.ascontiguousarray(x) for name, x in tensors.items()}
        kinds = {name: TensorKind(x.dtype, x.shape) for name, x in named.items()}
        write_tensors(new / FILES[0], kinds, iter(named.items()))
        if Path(base).is_dir():
            known = inspect.signature(family.builder).parameters
            options = {
                x: merged.arguments[x]
                for x in (*family.not_saved, "segments")
                if x in known and x in merged.arguments
            }
            cause = f"so {base} is not what the adapters were trained on"
            try:
                again = load_huggingface(base, architecture, peft=new, **options)
            except ValueError as error:
                text = str(error).replace(str(new), str(folder))
                raise ValueError(f"{model.name} cannot be saved: {text}: {cause}") from None
            check_equal(merged, again, f"{cause}, or another weight was changed, too")
        for name in (FILES[0], CONFIG):
            atomic_files.flush(new / name)
        for name in (FILES[0], CONFIG):
            atomic_files.replace(new / name, folder / name)


def _checked_base(base: str | Path) -> str:
    """The folder of the base model, or its name for PEFT; raises if it is neither."""
    if not isinstance(base, str | Path):
        raise TypeError(f"base must be a folder or a name, got {base!r}")
    is_name = isinstance(base, str) and _NAME.fullmatch(base) and not Path(base).exists()
    if not is_name and (not str(base) or not Path(base).is_dir()):
        raise FileNotFoundError(
            "base must be a folder of transformers, or the name of a model such as "
            f"'HuggingFaceTB/SmolLM2-135M', got {str(base)!r}"
        )
    return str(base)


def _whole(
    model: keras.Model, merged: Model, family: Family, own: Container[int]
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The tensors of modules with a weight that is trained beside the adapters, and the modules.

    PEFT expects all tensors of such a module, also those that are not trained, and a table that is
    the output's, too, under both names.

    Args:
        model, merged: the model, and that with its adapters merged.
        family: of the model.
        own: the ids of the weights of adapters.
    """
    entries = list(family.entries(merged))
    trained = {x.path for x in model.trainable_weights if id(x) not in own}
    prefix = family.prefix_of(family.architecture_of(merged))
    output = merged.head is not None and "language" in merged.head.kind
    # Such as "decoder" of a model from images to text, whose head is "decoder.lm_head".
    towers = {
        family.names.in_module(prefix + table).split(".")[0]
        for entry in entries
        if not entry.head
        for table in entry.tensors
    }

    def names_of(table: str, is_head: bool) -> tuple[str, str]:
        """The name of a tensor, and its module; a head is one, unless it is inside a tower."""
        name = family.names.in_module(table if is_head else prefix + table)
        first = name.split(".")[0]
        return name, first if is_head and first not in towers else name.rpartition(".")[0]

    # By the name in the table: the entry, which of its tensors, and the names.
    sources = {
        table: (entry, i, *names_of(table, entry.head))
        for entry in entries
        for i, table in enumerate(entry.tensors)
    }
    whole = {module for entry, _, _, module in sources.values() if entry.weight.path in trained}
    for alias, table in family.names.aliases.items():
        while table not in sources and table in family.names.aliases:
            table = family.names.aliases[table]
        if alias in sources or table not in sources:
            continue
        is_head = "embed_tokens" not in alias
        entry, i, _, module = sources[table]
        name, second = names_of(alias, is_head)
        sources[alias] = entry, i, name, second
        if module in whole and (output or not is_head):
            whole.add(second)
    # A module is saved with all inside.
    whole = {x for x in whole if not any(x.startswith(f"{y}.") for y in whole)}
    tensors = {}
    for entry, i, name, module in sources.values():
        if any(f"{module}.".startswith(f"{x}.") for x in whole):
            value = ops.convert_to_numpy(ops.cast(entry.weight, "float32"))
            tensors[name] = entry.save(value)[entry.tensors[i]]
    return tensors, whole


def _factors(entry: Entry, layer: Any, family: Family) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A (rank, in) and B (out, rank) of each tensor of a layer's kernel, by the tensor's name.

    The kernel (in, out) has several tensors side by side, or in another order of its outputs. The
    same is done with the rows of B, as if they were those of a kernel.
    """
    a, b = (
        ops.convert_to_numpy(ops.cast(x, "float32"))
        for x in (layer.lora_kernel_a, layer.lora_kernel_b)
    )
    parts, result = entry.transform.save(b), {}
    changes = entry.transform.save(a @ b)
    for name, part, change in zip(entry.tensors, parts, changes, strict=True):
        is_transposed = bool(re.fullmatch(family.names.transposed, name))
        part = part.T if is_transposed else part
        change = change.T if is_transposed else change
        fits = part.shape == (change.shape[0], a.shape[1]) and np.allclose(
            part @ a.T, change, rtol=0, atol=_TOLERANCE * max(1e-30, float(np.abs(change).max()))
        )
        if not fits:
            raise ValueError(
                f"{layer.path}: its adapter is not one of {name}: {entry.transform} changes more "
                "than the order of the outputs"
            )
        result[name] = a.T, part
    return result


def _fields(
    model: Model, modules: dict[str, tuple[int, float]], whole: list[str], base: str
) -> dict[str, Any]:
    """The fields of `adapter_config.json`."""
    kinds = list(modules.values())
    rank, alpha = max(kinds, key=kinds.count)
    others = {name: x for name, x in modules.items() if x != (rank, alpha)}
    kind = None if model.head is None else model.head.kind
    alone = len(model.inputs) == 1
    task = _TASKS.get(kind)  # none of a masked language model
    if kind == "language_model":
        task = "CAUSAL_LM" if alone else "SEQ_2_SEQ_LM"
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": _as_integer(alpha),
        "lora_dropout": 0.0,
        "modules_to_save": whole or None,
        "peft_type": "LORA",
        "r": rank,
        "alpha_pattern": {re.escape(x): _as_integer(y[1]) for x, y in others.items()},
        "rank_pattern": {re.escape(x): y[0] for x, y in others.items()},
        "target_modules": sorted(modules),
        "task_type": task,
        "use_rslora": False,
    }


def _as_integer(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) else value
