"""The arguments of several models in one .tflite file, whose signatures are named after them.

Example:

>>> import keras
>>> from keras_tfm.export.several_models import check_models
>>> x = keras.Input((2,))
>>> check_models({"one": keras.Model(x, x * 2)}, None, {})
Traceback (most recent call last):
ValueError: expected two or more models by name, got ['one']: give a single model itself
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from keras_tfm.export.member import Images, Member, make_member
from keras_tfm.export.signatures.request import WITHOUT_STEPS, ExportArguments, Request
from keras_tfm.export.signatures.signature import Signature
from keras_tfm.export.signatures.text import TEXT
from keras_tfm.generation.interface import Input, interface_of
from keras_tfm.runtime.manifest.manifest import ROLES

# What a file of several models cannot have, because it belongs to a single model.
_SINGLE = ("detokenizer", "chat_template", "separate_adapters")
# The arguments of the one model that generates, which `signatures` names.
_GENERATION = (
    *("start_id", "end_id", "max_length", "prompt_length", "default_prompt", "target", "strategy"),
    *("whole_caches", "cache", "draft_length"),
)


def check_models(
    models: Mapping[str, keras.Model],
    signatures: Sequence[str] | Mapping[str, Sequence[str]] | None,
    arguments: Mapping[str, object],
) -> None:
    """Checks what `export_tflite` was given for several models.

    Args:
        models, signatures: as there.
        arguments: the other arguments by name.

    Raises:
        ValueError: fewer than two models; a name that cannot be a signature's; an argument that is
            for a file of one model.
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
    given = {"signatures": signatures, **arguments}
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
    generating = [x for x, roles in (of_one or {}).items() if not set(roles) <= set(WITHOUT_STEPS)]
    if of_one is not None and (len(generating) > 1 or not of_one or not set(of_one) <= set(models)):
        raise ValueError(
            f"signatures must be those of models among {list(models)}, one of which may generate, "
            f"got {dict(of_one)}"
        )
    for roles in (of_one or {}).values():
        if any(role.endswith(TEXT) for role in roles):
            raise ValueError(f"signatures must be among {list(ROLES)}, got {list(roles)}")


def make_members(
    models: Mapping[str, keras.Model],
    signatures: Mapping[str, Sequence[str]] | None,
    arguments: ExportArguments,
    check: Callable[[Request], None],
    *,
    tokenizer: object,
    images: Images | Mapping[str, Images],
    labels: Sequence[str] | Mapping[str, Sequence[str]] | None,
) -> dict[str, Member]:
    """The models of a file with their arguments, by name.

    Args:
        models: functional models in float32.
        signatures: dict of the signatures of the model that generates; the others have "predict".
        arguments: as given to `export_tflite`; `source_length` may be a dictionary by model.
        check: as of `make_member`.
        tokenizer, images, labels: each for the only model that it fits, or a dictionary by model.

    Raises:
        TypeError, ValueError: as `export_tflite`; the error names the model.
    """

    def with_input(holds: Callable[[Input], bool]) -> list[str]:
        return [
            name for name, x in models.items() if any(map(holds, interface_of(x).inputs.values()))
        ]

    open_, lengths = with_input(lambda x: x.is_open), arguments.get("source_length")
    tokenizers = _by_model(
        "tokenizer", models, tokenizer, with_input(lambda x: x.takes_ids), shared=True
    )
    pictures = _by_model("images", models, images, with_input(lambda x: x.is_pixels))
    classes = _by_model("labels", models, labels, [*models])
    source_lengths = _by_model("source_length", models, lengths, open_ or [*models], shared=True)
    result = {}
    for name, model in models.items():
        own: Any = {**arguments, "source_length": source_lengths.get(name)}
        roles = (signatures or {}).get(name)
        if set(roles or ()) <= set(WITHOUT_STEPS):
            own = {key: x for key, x in own.items() if key not in _GENERATION}
        if "stream" not in (roles or ()):
            own["piece_length"] = None
        try:
            member = make_member(
                model,
                ["predict"] if roles is None else roles,
                own,
                check,
                tokenizer=tokenizers.get(name),
                images=pictures.get(name),
                labels=classes.get(name),
            )
        except (TypeError, ValueError, FileNotFoundError) as error:
            raise type(error)(f"model {name!r}: {error}") from error
        renamed = [
            replace(x, name=_name_of(name, x), settings={**x.settings, "model": name})
            for x in member.signatures
        ]
        result[name] = replace(member, signatures=renamed)
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


def _by_model(
    argument: str,
    models: Mapping[str, keras.Model],
    given: Any,
    fitting: Sequence[str],
    shared: bool = False,
) -> dict[str, Any]:
    """An argument by model: a dictionary by model, or one value for the models that it fits.

    `shared`: whether one value may be for several models.
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
