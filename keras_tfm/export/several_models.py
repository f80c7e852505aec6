"""Several models in one .tflite file: each a signature, all with one manifest.

Example:

>>> import keras
>>> from keras_tfm.export.several_models import check_models
>>> x = keras.Input((2,))
>>> one, other = keras.Model(x, keras.layers.Dense(3)(x)), keras.Model(x, x * 2)
>>> list(check_models({"one": one, "other": other}, {}))
['one', 'other']
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from keras_tfm.export import files
from keras_tfm.export.carried_tokenizers import Carried, carry
from keras_tfm.export.graph.conversion import (
    convert,
    exportable,
    identity_record,
    manifest_of,
    own_names,
)
from keras_tfm.export.graph.gpu_graph import for_gpu
from keras_tfm.export.graph.int8_caches import with_int8_operators
from keras_tfm.export.graph.model_group import ModelGroup
from keras_tfm.export.image_entries import image_entries, label_entry
from keras_tfm.export.quantization.precision import quantized_models
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.report import Report
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import ExportArguments, Request
from keras_tfm.export.signatures.signature import Signature
from keras_tfm.export.verification.verify import Verification
from keras_tfm.export.verification.verify import verify as verify_file
from keras_tfm.export.written_file import written
from keras_tfm.generation.interface import interface_of
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest import storage as manifests
from keras_tfm.runtime.manifest.manifest import Member as MemberRecord

# What a file of several models cannot have, because it belongs to a single model.
_SINGLE = ("detokenizer", "chat_template", "separate_adapters")
# The arguments of the one model that generates, which `signatures` names.
_GENERATION = (
    *("start_id", "end_id", "max_length", "prompt_length", "default_prompt", "target", "strategy"),
    *("whole_caches", "cache", "draft_length"),
)


@dataclass(frozen=True)
class Member:
    """One model of a file, with its arguments.

    Attributes:
        model: the functional model.
        request: the checked arguments.
        signatures: its signatures, named after the model.
        carried: its tokenizers.
        record: its entry in the manifest's "models", without tokenizers.
    """

    model: keras.Model
    request: Request
    signatures: list[Signature]
    carried: Carried
    record: MemberRecord


def export_models(
    models: Mapping[str, Any],
    path: Path,
    quantization: str,
    representative_data: Any,
    custom_operators: bool,
    verify: bool,
    options: Mapping[str, Any],
    arguments: ExportArguments,
) -> Report:
    """`export_tflite` of several models.

    Args:
        options: the other arguments of `export_tflite` by name.
        arguments: those of `ExportArguments`.
    """
    given, models = models, check_models(models, {**options, **arguments})
    group = ModelGroup(models)
    quantized = Quantization(
        group, quantization, options["keep_float"], representative_data, options["keep_int8"]
    )
    manifests.import_litert("interpreter")
    files.check_file(path, options["overwrite"])
    found = members(
        models,
        arguments,
        options["tokenizer"],
        options["images"],
        options["labels"],
        options["signatures"],
    )
    made = [signature for x in found.values() for signature in x.signatures]
    for member in found.values():
        quantized.check_request(member.request)
    quantized.read_data(made)
    content = convert(group, made, quantized, custom_operators)
    on_gpu = arguments.get("accelerator") == "gpu"
    if on_gpu:
        content = for_gpu(content)
    cache = arguments.get("cache", "float32")
    if cache == "int8":
        content = with_int8_operators(content)
    described, tokenizers, tokenizer_options = manifest_entries(found)
    manifest = replace(
        manifest_of(group, content, made, quantization, cache),
        models=described,
        tokenizer_options=tokenizer_options,
    )
    content = flatbuffer.add_manifest(content, manifest, tokenizers, own_names(made))

    def verified(new: Path, folder: Path) -> Verification:
        return verify_file(
            models,
            new,
            options["verify_inputs"] or quantized.rows or None,
            options["tolerance"],
            arguments.get("strategy"),
        )

    report = written(
        path,
        content,
        manifest,
        options["overwrite"],
        custom_operators,
        verified if verify else None,
        on_gpu,
    )
    report.dequantized = quantized_models(given)
    return report


def check_models(models: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, keras.Model]:
    """The models in float32, by name.

    Args:
        models: the mapping given to `export_tflite`.
        given: the other arguments of the export by name.

    Raises:
        ValueError: fewer than two models; a name that cannot be a signature's; an argument that is
            for a file of one model.
        TypeError: a model is not functional.
    """
    if len(models) < 2:
        raise ValueError(
            f"expected two or more models by name, got {list(models)}: give a single model itself"
        )
    for name in models:
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
            raise ValueError(
                "the name of a model becomes that of its signature: expected letters, digits and "
                f"underscores, the first a letter, got {name!r}"
            )
    signatures = given.get("signatures")
    of_one = signatures if isinstance(signatures, Mapping) else None
    names = _SINGLE if of_one is not None else (*_SINGLE, "signatures", *_GENERATION)
    used = [name for name in names if given.get(name) not in (None, False)]
    if used:
        raise ValueError(
            f"{used[0]} is for a file of one model, got {used[0]}={given[used[0]]!r} with the "
            f"models {list(models)}: in a file of several, each has one full pass, as 'predict' of "
            "a file of its own, but one may generate: name its signatures, as in "
            f"signatures={{{next(iter(models))!r}: ['generate']}}"
        )
    if of_one is not None and (len(of_one) != 1 or not set(of_one) <= set(models)):
        raise ValueError(
            f"signatures must be those of one model among {list(models)}, got {dict(of_one)}"
        )
    result = {}
    for name, model in models.items():
        try:
            result[name] = exportable(model)
        except (TypeError, ValueError) as error:
            raise type(error)(f"model {name!r}: {error}") from error
    return result


def members(
    models: Mapping[str, keras.Model],
    arguments: ExportArguments,
    tokenizer: Any,
    images: Any,
    labels: Any,
    signatures: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Member]:
    """The models of a file with their arguments, by name.

    Args:
        models: functional models in float32.
        arguments: as given to `export_tflite`; `source_length` may be a dictionary by model.
        tokenizer, images, labels: each for the only model that it fits, or a dictionary by model.
        signatures: dict of the signatures of the model that generates; the others have "predict".

    Raises:
        TypeError, ValueError: as `export_tflite`; the error names the model.
    """
    reads_text = [name for name, x in models.items() if _reads_ids(x)]
    reads_pictures = [
        name
        for name, x in models.items()
        if any(y.is_pixels for y in interface_of(x).inputs.values())
    ]
    with_lengths = [name for name, x in models.items() if _has_open_length(x)]
    lengths = arguments.get("source_length")
    by_model = {
        "tokenizer": _by_model("tokenizer", models, tokenizer, reads_text, shared=True),
        "images": _by_model("images", models, images, reads_pictures),
        "labels": _by_model("labels", models, labels, list(models)),
        "source_length": _by_model(
            "source_length", models, lengths, with_lengths or [*models], shared=True
        ),
    }
    result = {}
    for name, model in models.items():
        own = {key: x.get(name) for key, x in by_model.items()}
        try:
            own_arguments: Any = {**arguments, "source_length": own["source_length"]}
            roles = None if signatures is None else signatures.get(name)
            if roles is None:
                own_arguments = {k: x for k, x in own_arguments.items() if k not in _GENERATION}
            request = Request(model, ["predict"] if roles is None else roles, **own_arguments)
            made = [
                replace(
                    signature,
                    name=_name_of(name, signature),
                    settings={**signature.settings, "model": name},
                )
                for signature in make_signatures(request)
            ]
            result[name] = Member(
                model,
                request,
                made,
                carry(request, own["tokenizer"], None),
                MemberRecord(
                    model=identity_record(model),
                    images=image_entries(model, own["images"]),
                    labels=label_entry(model, own["labels"]),
                ),
            )
        except (TypeError, ValueError, FileNotFoundError) as error:
            raise type(error)(f"model {name!r}: {error}") from error
    names = [signature.name for x in result.values() for signature in x.signatures]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"the signatures of all models must have different names, got {twice[0]!r} twice: "
            "rename a model"
        )
    return result


def _name_of(model: str, signature: Signature) -> str:
    """The name of a model's signature: "text", "text_16", "dalle_decode"."""
    rest = signature.name
    return (
        model + rest.removeprefix("predict") if signature.role == "predict" else f"{model}_{rest}"
    )


def manifest_entries(
    found: Mapping[str, Member],
) -> tuple[dict[str, MemberRecord], dict[str, bytes], dict[str, dict[str, Any]]]:
    """The manifest's entries of the models; the tokenizers' bytes and options by metadata entry.

    A tokenizer that several models have is stored once.
    """
    contents: dict[str, bytes] = {}
    options: dict[str, dict[str, Any]] = {}
    models = {}
    for name, member in found.items():
        given, renamed = member.carried.options, {}
        for entry, content in member.carried.entries.items():
            known = [
                key
                for key, x in contents.items()
                if x == content and options.get(key) == given.get(entry)
            ]
            new = known[0] if known else entry if entry not in contents else f"{name}_{entry}"
            renamed[entry] = new
            contents[new] = content
            if entry in given:
                options[new] = given[entry]
        tokenizers = {key: renamed[x] for key, x in member.carried.names.items()}
        models[name] = replace(member.record, tokenizers=tokenizers)
    return models, contents, options


def _reads_ids(model: keras.Model) -> bool:
    return any(x.takes_ids for x in interface_of(model).inputs.values())


def _reads_pictures(model: keras.Model) -> bool:
    return any(x.is_pixels for x in interface_of(model).inputs.values())


def _has_open_length(model: keras.Model) -> bool:
    return any(x.is_open for x in interface_of(model).inputs.values())


def _by_model(
    argument: str,
    models: Mapping[str, Any],
    given: Any,
    fitting: Sequence[str],
    shared: bool = False,
) -> dict[str, Any]:
    """An argument by model: a dictionary by model, or one value for the models that it fits.

    Args:
        argument: its name, for errors.
        models: the models by name.
        given: the value.
        fitting: the models that one value may be for.
        shared: bool, whether one value may be for several models.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in models]
        if unknown:
            raise ValueError(
                f"{argument} must be a dictionary by model, of {list(models)}, got {list(given)}"
            )
        return dict(given)
    if not fitting or (len(fitting) > 1 and not shared):
        raise ValueError(
            f"{argument} must be a dictionary by model, as it fits {list(fitting) or 'none'} of "
            f"{list(models)}, got {type(given).__name__}"
        )
    return dict.fromkeys(fitting, given)
