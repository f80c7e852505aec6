"""Adapters that PEFT saved, merged into the tensors of their base model.

"LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685): a matrix W (out, in)
becomes W' = W + s B A, with A (r, in), B (out, r) and s = alpha / r, or alpha / sqrt(r) with
`use_rslora` (arXiv:2312.03732). With `use_dora` ("DoRA: Weight-Decomposed Low-Rank Adaptation",
arXiv:2402.09353) each row w of W' becomes m w / ||w||, with m of the adapter.
"""

import math
import re
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.names import Names
from keras_tfm.checkpoints.stored_tensor import Tensor
from keras_tfm.checkpoints.tensors import AnyTensors, Tensors, read_json

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
ROOT = "base_model.model."
# The ends of an adapter's names: those of a matrix, and of a table of embeddings. Files that were
# not written by PEFT's own `save_pretrained` have the adapter's name in them, too.
_FACTORS = re.compile(r"(.*)\.lora_(embedding_)?(A|B|magnitude_vector)(?:\.default)?(?:\.weight)?")
# Rows of a table that were trained alone, those of `trainable_token_indices`.
_ROWS = re.compile(r"(.*)\.token_adapter\.trainable_tokens_delta(?:\.default)?")
# The last matrix of a classifier, which has a row for each label.
_CLASSIFIER = re.compile(
    r"(.*\.)?(score|classifier|classification_head)(\.(out_proj|dense2?))?\.weight"
)
# Fields that change nothing once an adapter is trained, or are read here. Others must be off.
_READ = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config",
    "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r",
    "rank_pattern", "revision", "runtime_config", "target_modules", "task_type",
    "trainable_token_indices", "use_dora", "use_rslora",
}  # fmt: skip
# Texts in `init_lora_weights` that leave the base model as it is; PiSSA's, for example, does not.
_STARTS = ("gaussian", "eva", "orthogonal", "mica")


class _Adapter(NamedTuple):
    """What is added to a matrix: scale B A; with `magnitude` its rows get these lengths."""

    a: str
    b: str
    magnitude: str | None
    scale: float
    transposed: bool  # the matrix is (in, out)


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

    def __init__(self, base: AnyTensors, folder: Path, names: Names):
        super().__init__()
        if not (folder / CONFIG).is_file():
            folders = sorted(x.parent.name for x in folder.glob(f"*/{CONFIG}"))
            hint = f"; its folders {folders} have one" if folders else ""
            raise FileNotFoundError(f"{folder} has no {CONFIG}: expected a folder of PEFT{hint}")
        config = Config.of(folder / CONFIG, read_json(folder / CONFIG))
        _check(config)
        self._base, self._adapter, self._names = base, Tensors(folder, FILES), names
        self._folder, self._tensors = folder, dict(base)
        self._added: dict[str, _Adapter] = {}
        self._replaced: dict[str, str] = {}
        # The tensors of the base under second names, which they have once they differ.
        self._copied: dict[str, str] = {}
        self._rows: dict[str, tuple[str, list[int]]] = {}  # the tensor of rows, and their ids
        self._ties = config.flag("ensure_weight_tying", False)
        known = {names.in_table(name): name for name in base}
        factors: dict[str, dict[str, str]] = {}
        tables = set()
        for name in self._adapter:
            found = _FACTORS.fullmatch(name)
            if found:
                module = found[1].removeprefix(ROOT)
                factors.setdefault(module, {})[found[3]] = name
                if found[2]:
                    tables.add(module)
                continue
            if ".original_module." in name:  # what a tensor of `modules_to_save` replaces
                continue
            rows = _ROWS.fullmatch(name)
            if rows:
                self._take_rows(config, rows[1].removeprefix(ROOT), name, known)
                continue
            own = name.removeprefix(ROOT)
            own = re.sub(r"\.(modules_to_save(\.default)?|base_layer)\.", ".", own)
            own = known.setdefault(names.in_table(own), own)
            self._replaced[own], self._tensors[own] = name, self._adapter[name]
        expected = {"A", "B", *(["magnitude_vector"] if config.flag("use_dora", False) else [])}
        for module, parts in factors.items():
            weight, table = f"{module}.weight", names.in_table(f"{module}.weight")
            if table not in known and names.aliases.get(table) in known:
                self._copied[weight] = known[names.aliases[table]]
                self._tensors[weight] = self._tensors[self._copied[weight]]
                known[table] = weight
            if table not in known:
                raise ValueError(f"{config.file}: the base model has no matrix for {module}")
            if set(parts) != expected:
                names_of = [[f"lora_{x}" for x in sorted(y)] for y in (expected, parts)]
                raise ValueError(
                    f"{config.file}: {module} must have {names_of[0]}, got {names_of[1]}"
                )
            weight = known[table]
            transposed = module in tables or re.fullmatch(names.transposed, table) is not None
            scale = _scale(config, module, self._adapter[parts["A"]].shape[0])
            magnitude = parts.get("magnitude_vector")
            self._added[weight] = _Adapter(parts["A"], parts["B"], magnitude, scale, transposed)
            self._tensors[weight] = self._sum(weight)

    def _take_rows(self, config: Config, module: str, name: str, known: dict[str, str]) -> None:
        """Checks and keeps the rows of a table that were trained alone."""
        indices = config.fields.get("trainable_token_indices")
        if isinstance(indices, dict):  # by the ends of the modules' names
            found = [x for key, x in indices.items() if f".{module}".endswith(f".{key}")]
            indices = found[0] if found else None
        weight = known.get(self._names.in_table(f"{module}.weight"))
        if weight is None:
            raise ValueError(f"{config.file}: the base model has no matrix for {module}")
        count, width = self._tensors[weight].shape[0], self._tensors[weight].shape[1:]
        if not isinstance(indices, list) or not all(type(x) is int for x in indices):
            config.refuse("trainable_token_indices", indices, f"a list of ids, for {module}")
        shape = self._adapter[name].shape
        if not all(0 <= x < count for x in indices) or shape != (len(indices), *width):
            raise ValueError(
                f"{self._adapter[name].file}: {name} {shape} and the {len(indices)} "
                f"trainable_token_indices do not fit {weight} {self._tensors[weight].shape}"
            )
        self._rows[weight] = name, indices

    def _sum(self, name: str) -> Tensor:
        """The location of a matrix that an adapter changes; raises if it has another shape."""
        tensor, adapter = self._tensors[name], self._added[name]
        a, b = (self._adapter[x].shape for x in (adapter.a, adapter.b))
        shape = (*b[:1], *a[1:])  # a kernel of a convolution has more axes
        if adapter.transposed:
            shape = shape[::-1]
        if len(a) < 2 or len(b) < 2 or a[0] != math.prod(b[1:]) or shape != tensor.shape:
            raise ValueError(
                f"{self._adapter[adapter.a].file}: {adapter.a} {a} and {adapter.b} {b} do not fit "
                f"{name} {tensor.shape} of the base model"
            )
        if adapter.magnitude is not None:  # of a convolution (1, out, 1, 1)
            lengths = self._adapter[adapter.magnitude].shape
            if math.prod(lengths) != b[0]:
                raise ValueError(
                    f"{self._adapter[adapter.magnitude].file}: {adapter.magnitude} {lengths} must "
                    f"have {b[0]} values"
                )
        return tensor._replace(dtype="F32")

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor, in float32 with an adapter."""
        if name in self._replaced:
            values = self._adapter.array(self._replaced[name])
        else:
            source = self._copied.get(name, name)
            # The copy is of what the adapter's file has for the tensor, if it has it.
            saved = self._replaced.get(source)
            values = self._adapter.array(saved) if saved else self._base.array(source)
        if name in self._rows:
            rows, indices = self._rows[name]
            values = values.astype("float32")
            values[indices] = self._adapter.array(rows)
        if name not in self._added:
            return values
        adapter = self._added[name]
        a, b = (self._adapter.array(x).astype("float32") for x in (adapter.a, adapter.b))
        values = values.astype("float32")
        matrix = values.T if adapter.transposed else values.reshape(len(b), -1)
        change = np.float32(adapter.scale) * (b.reshape(len(b), -1) @ a.reshape(len(a), -1))
        matrix = matrix + change
        if adapter.magnitude is not None:
            lengths = self._adapter.array(adapter.magnitude).astype("float32").reshape(-1, 1)
            matrix *= lengths / np.linalg.norm(matrix, axis=1, keepdims=True)
        return (matrix.T if adapter.transposed else matrix).reshape(values.shape)

    def sizes(self) -> dict[str, int]:
        """The fields of the model's configuration that the tensors saved whole determine.

        PEFT does not save the configuration: its user gives the number of labels, and resizes the
        vocabulary, before the adapters are loaded.
        """
        fields: dict[str, int] = {}
        for own, name in self._replaced.items():
            table, shape = self._names.in_table(own), self._adapter[name].shape
            if len(shape) == 2 and _CLASSIFIER.fullmatch(table):
                fields["num_labels"] = shape[0]
            if len(shape) == 2 and table in self._names.aliases.values():
                fields["vocab_size"] = shape[0]
        return fields

    def check_tables(self, model: str, read: Container[str], output: bool) -> None:
        """Raises if the adapters change one of two tensors that are one in the model.

        Args:
            model: name of the architecture, for the message.
            read: names of the tensors that the model reads.
            output: whether the model has an output with the table of the embedding.
        """
        changed = {self._names.in_table(x): x for x in (*self._replaced, *self._added)}
        for alias, table in self._names.aliases.items():
            exists = output or "embed_tokens" in alias
            first = table in changed and alias not in changed
            second = alias in changed and changed[alias] in self._added
            if self._ties and table in changed and alias in changed:  # both alike
                continue
            if exists and (first or second) and alias not in read:
                one, other = (table, alias) if first else (alias, table)
                raise ValueError(
                    f"{self._folder}: the adapters change {changed[one]}, but not {other}, "
                    f"and both are one table in {model}: merge them with PEFT (merge_and_unload)"
                )

    def check_heads(self, model: str, read: Container[str]) -> None:
        """Raises if the model does not read a head that the adapters' file has.

        Args:
            model: name of the architecture.
            read: names of the tensors that it reads.
        """
        for own, name in self._replaced.items():
            table = self._names.in_table(own)
            if table not in read and table not in self._names.aliases and own not in self._base:
                raise ValueError(
                    f"{self._adapter[name].file}: {model} does not have {own}: give the class of "
                    "the adapted model as architecture="
                )

    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed, replaced or removed since it was opened."""
        self._base.check_unchanged()
        self._adapter.check_unchanged()


def check_no_adapters(folder: Path) -> None:
    """Raises if a folder has adapters."""
    if (folder / CONFIG).is_file():
        base = read_json(folder / CONFIG).get("base_model_name_or_path")
        raise ValueError(
            f"{folder} has adapters of PEFT ({CONFIG}): give the folder of their base model"
            f"{f' ({base})' if base else ''}, and this one as peft= (in a shell --peft); for a "
            "base model in the same folder remove the file"
        )


def _check(config: Config) -> None:
    """Raises unless the adapters are LoRA's, and complete without a changed base model."""
    config.only(peft_type="LORA")
    start = config.fields.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in _STARTS:
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
