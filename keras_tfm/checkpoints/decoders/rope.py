"""Fields of `config.json` for rotary positions: their bases and scalings.

Version 5 of `transformers` has `rope_parameters`, with the base as "rope_theta"; earlier ones have
`rope_theta`, `rope_scaling` and, for Gemma 3, `rope_local_base_freq`. Version 5 reads these, too,
and prefers `rope_scaling` to `rope_parameters`.
"""

import math
import warnings
from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, SLIDING
from keras_tfm.layers import (
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    ProportionalScaling,
    YaRNScaling,
)

_TRAINED = "original_max_position_embeddings"
_PARTIAL = "partial_rotary_factor"
# Fields of a scaling by its `rope_type`, and the arguments of its class.
_SCALINGS: dict[str, tuple[Any, dict[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "yarn": (
        YaRNScaling,
        {
            "factor": "factor",
            _TRAINED: "original_length",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "attention_factor": "attention_factor",
            "truncate": "truncate",
        },
    ),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            _TRAINED: "original_length",
            "low_freq_factor": "low_turns",
            "high_freq_factor": "high_turns",
        },
    ),
    "longrope": (
        LongRoPEScaling,
        {
            "factor": "factor",
            _TRAINED: "original_length",
            "short_factor": "short_factors",
            "long_factor": "long_factors",
            "attention_factor": "attention_factor",
        },
    ),
    "proportional": (ProportionalScaling, {"factor": "factor", _PARTIAL: "part"}),
}
_MSCALES = ("mscale", "mscale_all_dim")
# Values that change nothing, whatever the `rope_type`.
_NEUTRAL = {_PARTIAL: 1.0}
_BASE, _LOCAL_BASE, _GLOBAL_BASE = 10000.0, 10000.0, 1000000.0


def read_rope(config: Config, default: float = _BASE) -> Arguments:
    """The builder's arguments for rotary positions that are the same in all blocks.

    Args:
        config: the configuration.
        default: float, the base if no field names it: `default_theta` in `transformers`.
    """
    return _read_rope(config, default)[0]


def read_partial_rope(
    config: Config, head_dim: int, default_part: float = 1.0, trained: int | None = None
) -> Arguments:
    """As `read_rope`, with `rotary_dim`: of a family that may rotate a part of each head.

    Args:
        config: the configuration.
        head_dim: int, width of a head.
        default_part: float, the part of a head that is rotated if no field names it.
        trained: int, the sequence length in training, if no field names it. Default:
            `max_position_embeddings`.
    """
    arguments, part = _read_rope(config, _BASE, default_part, trained)
    if not isinstance(part, int | float) or isinstance(part, bool) or not 0 < part <= 1:
        config.refuse(_PARTIAL, part, "a number above 0, at most 1")
    rotary_dim = int(head_dim * part)
    if rotary_dim == 0 or rotary_dim % 2:
        config.refuse(_PARTIAL, part, f"an even part of a head ({head_dim})")
    return {**arguments, "rotary_dim": None if rotary_dim == head_dim else rotary_dim}


def _read_rope(
    config: Config, default: float, default_part: float | None = None, trained: int | None = None
) -> tuple[Arguments, Any]:
    """The base and the scaling, and the part of a head that is rotated, if it may be a part."""
    newer, older = config.fields.get("rope_parameters"), config.fields.get("rope_scaling")
    name = "rope_scaling" if older else "rope_parameters"
    rope = _dictionary(config, name, older or newer or {})
    theta = config.fields.get("rope_theta")
    rope = {"rope_theta": default if theta is None else theta, **rope}
    if older and isinstance(newer, dict):
        other = newer.get("rope_theta", rope["rope_theta"])
        if other != rope["rope_theta"]:
            warnings.warn(
                f"{config.file}: rope_scaling replaces rope_parameters, as in transformers, so "
                f"rope_theta is {rope['rope_theta']} and not {other}: if that is not intended, "
                "write rope_theta into rope_scaling",
                stacklevel=2,
            )
    length = config.fields.get(_TRAINED, trained)
    if length is not None and _kind(rope) in ("yarn", "llama3", "longrope"):
        rope[_TRAINED] = length  # has priority in transformers
    part = default_part
    if part is not None:
        if _kind(rope) == "proportional":  # which would rotate whole heads
            config.refuse("rope_type", "proportional", "another one with parts of heads")
        parts = (rope.pop(_PARTIAL, None), config.fields.get(_PARTIAL))
        part = next((x for x in parts if x is not None), default_part)
    else:
        config.only(**_NEUTRAL)
    base, scaling = _read(config, name, rope)
    return {"rope_theta": base, "rope_scaling": scaling}, part


def read_rope_by_layer_type(
    config: Config,
    whole: tuple[str | None, float] = ("rope_theta", _GLOBAL_BASE),
    local: tuple[str | None, float] = ("rope_local_base_freq", _LOCAL_BASE),
) -> Arguments:
    """The builder's arguments for rotary positions of blocks without and with a window.

    Args:
        config: the configuration.
        whole, local: the fields that earlier versions have for both bases, if any, and their
            defaults.
    """
    config.only(**_NEUTRAL)
    by_type = config.fields.get("rope_parameters")
    by_type = {} if by_type is None else by_type
    if not isinstance(by_type, dict) or not set(by_type) <= {FULL, SLIDING}:
        config.refuse("rope_parameters", by_type, f"a dictionary of {FULL} and {SLIDING}")
    older = _dictionary(config, "rope_scaling", config.fields.get("rope_scaling") or {})
    found = []
    for kind, (field, default), rest in ((FULL, whole, older), (SLIDING, local, {})):
        theta = None if field is None else config.fields.get(field)
        rope = _dictionary(config, "rope_parameters", by_type.get(kind) or {})
        rope = {"rope_theta": default if theta is None else theta, **rope, **rest}
        if rope.get("truncate", True) is not True:  # transformers does not read it here
            config.refuse("truncate", rope["truncate"], "true with rotary positions by layer type")
        found.append(_read(config, "rope_scaling" if rest else "rope_parameters", rope))
    (theta, scaling), (local_theta, local_scaling) = found
    is_same = found[0] == found[1]
    if local_scaling is not None and not is_same:
        config.refuse(
            "rope_parameters", by_type[SLIDING], f"without scaling in {SLIDING}, or as in {FULL}"
        )
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": None if is_same else local_theta,
    }


def _dictionary(config: Config, name: str, value: object) -> Fields:
    if not isinstance(value, dict):
        config.refuse(name, value, "a dictionary")
    return dict(value)


def _kind(rope: Fields) -> Any:
    kind = rope.get("rope_type", rope.get("type", "default"))
    return "longrope" if kind == "su" else kind  # its name in the first folders of Phi-3


def _read(config: Config, name: str, rope: Fields) -> tuple[float, Any]:
    """The base and the scaling of one dictionary; no scaling if it changes nothing.

    Args:
        name: str, the field that is named in errors.
        rope: the dictionary, with "rope_theta".
    """
    theta, kind = rope["rope_theta"], _kind(rope)
    if not isinstance(theta, int | float) or isinstance(theta, bool) or not theta > 0:
        config.refuse("rope_theta", theta, "a positive number")
    if kind != "default" and kind not in _SCALINGS:
        config.refuse("rope_type", kind, f"one of {['default', *_SCALINGS]}")
    given = {key: x for key, x in rope.items() if key not in ("rope_type", "type", "rope_theta")}
    fields = {
        key: x for key, x in given.items() if x is not None and (key, x) not in _NEUTRAL.items()
    }
    if kind == "default":
        # Without a scaling nothing reads the others; a factor says that one was meant.
        known = {key for _, names in _SCALINGS.values() for key in names} | set(_MSCALES)
        if (
            not set(fields) <= known
            or fields.get("factor", 1) != 1
            or fields.get("attention_factor", 1) != 1
        ):
            config.refuse(
                name, given, 'without a factor or unknown fields if "rope_type" is default'
            )
        return theta, None
    cls, names = _SCALINGS[kind]
    if kind == "yarn":
        _take_mscales(config, name, fields)
    if kind not in ("linear", "proportional"):
        fields.setdefault(_TRAINED, config.integer("max_position_embeddings", None))
    if kind == "longrope" and "factor" not in fields:
        fields["factor"] = _times_longer(config, name, fields[_TRAINED])
    if not set(fields) <= set(names):
        config.refuse(name, given, f"of the fields {list(names)}")
    try:
        scaling = cls(**{names[key]: x for key, x in fields.items()})
    except (TypeError, ValueError) as error:
        config.refuse(name, given, f"of the fields {list(names)}, in their ranges ({error})")
    changes = kind == "longrope" or scaling.factor != 1 or scaling.magnitude != 1
    changes = changes or getattr(scaling, "part", 1) != 1
    return theta, scaling if changes else None


def _times_longer(config: Config, name: str, trained: Any) -> float:
    """How many times longer sequences are than in training, at least 1."""
    length = config.integer("max_position_embeddings", None)
    if length is None or type(trained) is not int or trained < 1:
        config.refuse(name, trained, f"with a factor, or with {_TRAINED}")
    return max(1.0, length / trained)


def _take_mscales(config: Config, name: str, fields: Fields) -> None:
    """Replaces DeepSeek's two factors by the attention factor that they mean."""
    scales = [fields.pop(key, None) for key in _MSCALES]
    if "attention_factor" in fields or not all(scales):
        return
    factor = fields.get("factor")
    numbers = [x for x in (*scales, factor) if type(x) in (int, float) and x > 0]
    if len(numbers) != len(scales) + 1:
        config.refuse(name, scales, "of positive numbers")
    logarithm = math.log(max(1.0, float(numbers[2])))
    one, all_dims = (0.1 * x * logarithm + 1.0 for x in numbers[:2])
    fields["attention_factor"] = one / all_dims


def rope_fields(model: models.Model) -> Fields:
    """The fields of rotary positions that are the same in all blocks, for every version."""
    given = model.arguments
    return for_every_version(_rope(model, given["rope_theta"], given["rope_scaling"]))


def partial_rope_fields(
    model: models.Model, rotary_dim: int | None = None, head_dim: int | None = None
) -> Fields:
    """As `rope_fields`, of a builder with `rotary_dim`.

    Args:
        model: the model.
        rotary_dim: int, the builder's default. Default: the whole head.
        head_dim: int, width of a head. Default: the builder's `dim` / `num_heads`.
    """
    given, fields = model.arguments, rope_fields(model)
    head_dim = head_dim or given.get("head_dim") or given["dim"] // given["num_heads"]
    rotary_dim = given["rotary_dim"] or rotary_dim or head_dim
    part = rotary_dim / head_dim
    while int(head_dim * part) < rotary_dim:  # rounding
        part = math.nextafter(part, 1.0)
    return {
        **fields,
        _PARTIAL: part,
        "rope_parameters": {**fields["rope_parameters"], _PARTIAL: part},
    }


def rope_fields_by_layer_type(model: models.Model, has_windows: bool, kind: str) -> Fields:
    """The fields of rotary positions of blocks without and with a window, for every version.

    Args:
        model: the model.
        has_windows: bool, whether a block has a window.
        kind: str, the family, for errors.
    """
    given = model.arguments
    whole = _rope(model, given["rope_theta"], given["rope_scaling"])
    theta = given["local_rope_theta"]
    local = whole if theta is None else _rope(model, theta, None)
    if "truncate" in whole:
        raise ValueError(
            f"{model.name}: rope_scaling must truncate its ramp to be saved as {kind}, got "
            f"{given['rope_scaling']}"
        )
    if has_windows and local["rope_type"] != "default":
        warnings.warn(
            f"{model.name}: transformers before version 5 does not scale the rotary positions of "
            "blocks with a window, so it will read another model than this one",
            stacklevel=2,
        )
    return {
        **for_every_version(whole),
        "rope_parameters": {FULL: whole, SLIDING: local},
        "rope_local_base_freq": local["rope_theta"],
    }


def for_every_version(rope: Fields) -> Fields:
    """Both forms, which agree: version 5 of `transformers` prefers `rope_scaling`."""
    scaling = {key: x for key, x in rope.items() if key != "rope_theta"}
    older = {} if rope["rope_type"] == "default" else {"rope_scaling": scaling}
    return {"rope_parameters": rope, "rope_theta": rope["rope_theta"], **older}


def _rope(model: models.Model, theta: float, scaling: Any) -> Fields:
    """One dictionary of `rope_parameters`."""
    if scaling is None:
        return {"rope_theta": theta, "rope_type": "default"}
    for kind, (cls, names) in _SCALINGS.items():
        if isinstance(scaling, cls):
            values = {key: getattr(scaling, x) for key, x in names.items()}
            values = {key: list(x) if isinstance(x, tuple) else x for key, x in values.items()}
            # Defaults that older versions warn of.
            values = {
                key: x
                for key, x in values.items()
                if (key, x) not in (("attention_factor", None), ("truncate", True))
                and (kind, key, x) != ("proportional", "factor", 1.0)
            }
            return {"rope_theta": theta, "rope_type": kind, **values}
    raise ValueError(
        f"{model.name}: rope_scaling must be one of "
        f"{[cls.__name__ for cls, _ in _SCALINGS.values()]} to be saved, "
        f"got {type(scaling).__name__}"
    )
