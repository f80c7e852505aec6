"""Adapters that PEFT saved, merged into the tensors of their base model.

"LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685): a matrix W (out, in)
becomes W + s B A, with A (r, in), B (out, r) and s = alpha / r, or alpha / sqrt(r) with
`use_rslora` (arXiv:2312.03732).
"""

import math
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.names import Names
from keras_tfm.checkpoints.stored_tensor import Tensor
from keras_tfm.checkpoints.tensors import AnyTensors, Tensors, read_json

_CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_ROOT = "base_model.model."
# The ends of an adapter's names: those of a matrix, and of a table of embeddings.
_FACTORS = re.compile(r"(.*)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
# Fields that change nothing once an adapter is trained, or are read here. Others must be off.
_READ = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
# How `init_lora_weights` starts where it changes the base model, too.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class _Adapter(NamedTuple):
    """What is added to a matrix: scale B A."""

    a: str
    b: str
    scale: float


class PeftTensors(AnyTensors):
    """The tensors of a folder, with the adapters of another added to them.

    Args:
        base: the tensors of the base model.
        folder: of `adapter_config.json` and `adapter_model.safetensors` or `.bin`.
        names: how names differ from those of the family's table.

    Raises:
        FileNotFoundError: the folder, or a file of it, does not exist.
        ValueError: a file is damaged, the adapters are of another kind than LoRA's, or do not match
            the base.
    """

    def __init__(self, base: Tensors, folder: Path, names: Names):
        super().__init__()
        if not (folder / _CONFIG).is_file():
            raise FileNotFoundError(f"{folder} has no {_CONFIG}: expected a folder of PEFT")
        config = Config.of(folder / _CONFIG, read_json(folder / _CONFIG))
        _check(config)
        self._base, self._adapter = base, Tensors(folder, _FILES)
        self._transposed = config.flag("fan_in_fan_out", False)
        self._tensors = dict(base)
        self._added: dict[str, _Adapter] = {}
        self._replaced: dict[str, str] = {}
        self._tables: dict[str, str] = {}
        known = {names.in_table(name): name for name in base}
        factors: dict[str, dict[str, str]] = {}
        for name in self._adapter:
            found = _FACTORS.fullmatch(name)
            if found:
                module = found[1].removeprefix(_ROOT)
                factors.setdefault(module, {})[found[2]] = name
                continue
            if ".original_module." in name:  # what a tensor of `modules_to_save` replaces
                continue
            own = re.sub(r"\.(modules_to_save|base_layer)\.", ".", name.removeprefix(_ROOT))
            own = known.get(names.in_table(own), own)
            self._replaced[own], self._tensors[own] = name, self._adapter[name]
        for module, parts in factors.items():
            weight = known.get(names.in_table(f"{module}.weight"))
            if weight is None or set(parts) != {"A", "B"}:
                raise ValueError(f"{config.file}: the base model has no matrix for {module}")
            if "embedding" in parts["A"]:
                self._tables[names.in_table(weight)] = weight
            rank = self._adapter[parts["A"]].shape[0]
            self._added[weight] = _Adapter(parts["A"], parts["B"], _scale(config, module, rank))
            self._tensors[weight] = self._sum(weight)

    def _sum(self, name: str) -> Tensor:
        """The location of a matrix that an adapter changes; raises if it has another shape."""
        tensor, adapter = self._base[name], self._added[name]
        a, b = (self._adapter[x].shape for x in (adapter.a, adapter.b))
        shape = (a[1], b[0]) if self._is_transposed(adapter) else (b[0], a[1])
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or shape != tensor.shape:
            raise ValueError(
                f"{self._adapter[adapter.a].file}: {adapter.a} {a} and {adapter.b} {b} do not fit "
                f"{name} {tensor.shape} of the base model"
            )
        return tensor._replace(dtype="F32")

    def _is_transposed(self, adapter: _Adapter) -> bool:
        """Whether the matrix is (in, out), as those of GPT-2 and tables of embeddings are."""
        return self._transposed or "embedding" in adapter.a

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor, in float32 with an adapter."""
        if name in self._replaced:
            return self._adapter.array(self._replaced[name])
        values = self._base.array(name)
        if name not in self._added:
            return values
        adapter = self._added[name]
        a, b = (self._adapter.array(x).astype("float32") for x in (adapter.a, adapter.b))
        change = np.float32(adapter.scale) * (b @ a)
        return values.astype("float32") + (change.T if self._is_transposed(adapter) else change)

    def check_tables(self, aliases: Mapping[str, str], read: Container[str]) -> None:
        """Raises if an adapter is one of a table of embeddings that is the output's, too.

        Args:
            aliases: those of the family's names.
            read: names of the tensors that a model of tokens reads.
        """
        for table, name in self._tables.items():
            second = [alias for alias, own in aliases.items() if own == table]
            if second and not any(alias in read for alias in second):
                raise ValueError(
                    f"{self._adapter[self._added[name].a].file}: adapters of {name}, which is the "
                    "table of the output, too, change one of the two: merge them with PEFT "
                    "(merge_and_unload)"
                )

    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed, replaced or removed since it was opened."""
        self._base.check_unchanged()
        self._adapter.check_unchanged()


def check_no_adapters(folder: Path) -> None:
    """Raises if a folder has adapters."""
    if (folder / _CONFIG).is_file():
        raise ValueError(
            f"{folder} has adapters of PEFT ({_CONFIG}): give the folder of their base model, and "
            "this one as peft=; for a base model in the same folder remove the file"
        )


def _check(config: Config) -> None:
    """Raises unless the adapters are LoRA's, and complete without a changed base model."""
    config.only(peft_type="LORA")
    start = config.fields.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        expected = "one that leaves the base model as it is; merge these adapters with PEFT"
        config.refuse("init_lora_weights", start, expected)
    for name, value in config.fields.items():
        if name not in _READ and value not in (None, False, {}, []):
            config.refuse(name, value, "off; merge these adapters with PEFT (merge_and_unload)")


def _scale(config: Config, module: str, rank: int) -> float:
    """The factor of a module's adapter, whose pattern is the end of its name."""
    patterns = config.part("alpha_pattern").fields
    alphas = [x for pattern, x in patterns.items() if re.fullmatch(rf"(.*\.)?({pattern})", module)]
    alpha = alphas[0] if alphas else config.number("lora_alpha", 8)
    return float(alpha) / (math.sqrt(rank) if config.flag("use_rslora", False) else rank)
