"""Every field of `config.json` with other values, beside transformers.

A value under which transformers computes something else is applied here, too, or refused in one
line that names the field.
"""

import copy
import dataclasses
import json
import warnings

import numpy as np
import pytest
from families import arguments_of
from saved_folders import CASES, LAST, architecture_of, inputs_of, save, save_outputs

from keras_tfm.checkpoints import huggingface, load_huggingface

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# They name the class that is compared, and its precision and container of outputs.
LEFT_OUT = {"architectures", "model_type", "dtype", "torch_dtype", "return_dict"}
# Our own fields, sizes of inputs, which transformers does not read.
# DINOv2 takes images of any size, and SigLIP those that have as many patches.
OWN = {
    "depth_anything": {"image_size"}, "detr": {"image_size"}, "lxmert": {"num_regions"},
    "siglip": {"image_size"}, "siglip_vision_model": {"image_size"},
    # Without it, transformers makes a Llama of 7 billion parameters.
    "idefics3": {"text_config"}, "smolvlm": {"text_config"},
    # Its older name, beside which transformers does not read it.
    "qwen3_moe": {"num_experts"},
}  # fmt: skip
# Parts of a configuration by other names than those that end in "_config".
PARTS = ("encoder", "decoder")
MISSING = object()
FULL, SLIDING = "full_attention", "sliding_attention"
BASE = {"rope_theta": 77.0}
LINEAR = {"factor": 3.0, "rope_type": "linear"}
DYNAMIC = {"factor": 3.0, "rope_type": "dynamic"}
YARN = {"factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": 8}
LLAMA3 = {"factor": 4.0, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    LINEAR,
    DYNAMIC,
    YARN,
    LLAMA3,
    {"factor": 1.0},
    {"factor": 4.0},
    {"factor": 1.0, "rope_type": "linear"},
    {"factor": 3.0, "type": "linear"},
    {"factor": 3.0, "rope_type": "linear", "partial_rotary_factor": 0.5},
    {"factor": 4.0, "rope_type": "yarn"},
    {"factor": 4.0, "rope_type": "yarn", "beta_fast": 9.0, "beta_slow": 0.5},
    {"factor": 4.0, "rope_type": "yarn", "beta_fast": None, "attention_factor": None},
    {"factor": 4.0, "rope_type": "yarn", "attention_factor": 1.5},
    {"factor": 4.0, "rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.5},
    {"factor": 4.0, "rope_type": "yarn", "truncate": False},
    {**LLAMA3, "original_max_position_embeddings": 8},
    {"factor": 2.0, "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"partial_rotary_factor": 0.5},
    {"partial_rotary_factor": 1.0},
    {},
    None,
]
BASES = [BASE, {**BASE, "rope_type": "default"}]
KINDS = [[FULL, FULL], [SLIDING, SLIDING], [SLIDING, FULL], [FULL, SLIDING]]
# Of rotary families and of Gemma 3, in the forms of versions 4 and 5 of transformers.
ROTARY = {
    "rope_theta": [77.0, 500],
    "rope_scaling": [*SCALINGS, *({**BASE, **x} for x in SCALINGS if x)],
    "rope_parameters": [*BASES, *SCALINGS, *({**BASE, **x} for x in SCALINGS if x)],
    "partial_rotary_factor": [0.5, 1.0],
    "rope_local_base_freq": [77.0],
    "original_max_position_embeddings": [4],
    "max_position_embeddings": [16],
}
ROTARY_BY_KIND = {
    **ROTARY,
    "rope_parameters": [
        *({FULL: x, SLIDING: y} for x in [*BASES, *SCALINGS] for y in (None, *BASES, LINEAR)),
        *({SLIDING: x} for x in [*BASES, *SCALINGS]),
        *({FULL: x} for x in [*BASES, *SCALINGS]),
        {},
        None,
        BASE,
    ],
}
BY_KIND = ("gemma3_text", "gemma4_text", "lfm3", "olmo3")
# Fields that classes have only by another name, in older files, or in another family.
MORE = {
    "_attn_implementation": ["eager"],
    "add_cross_attention": [True],
    "attention_bias": [True, False],
    "attention_multiplier": [0.3],
    "attention_type": ["full"],
    "attn_logit_softcapping": [1.0],
    "chunk_size_feed_forward": [2],
    "cross_attention_hidden_size": [8],
    "final_logit_softcapping": [1.0],
    "head_dim": [6],
    "image_token_id": [5],
    "hidden_activation": ["relu"],
    "id2label": [{"0": "no", "1": "yes", "2": "maybe"}],
    "is_causal": [False],
    "is_decoder": [True],
    "is_encoder_decoder": [True, False],
    "layer_types": [*KINDS, ["global", "local"]],
    "logit_scale": [0.3],
    "max_window_layers": [0, 2],
    "mlp_bias": [True],
    "n_ctx": [5],
    "num_labels": [5],
    "output_attentions": [True],
    "output_hidden_states": [True],
    "per_layer_config": [{"0": {"hidden_act": "relu"}}],
    "position_embedding_type": ["relative_key", "relative_key_query"],
    "pretraining_tp": [2],
    "problem_type": ["regression"],
    "pruned_heads": [{"0": [1]}],
    "qk_layernorm": [True],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}],
    "query_pre_attn_scalar": [7],
    "reorder_and_upcast_attn": [True],
    "scale_attn_by_inverse_layer_idx": [True],
    "sliding_window": [2],
    "sliding_window_pattern": [1, 2],
    "tie_encoder_decoder": [True],
    "tie_word_embeddings": [True, False],
    "use_bidirectional_attention": [True],
    "use_cache": [False],
    "use_sliding_window": [True, False],
}


def other_values(value):
    """Values like another, and values of no sense, for any field."""
    if isinstance(value, bool):
        return [not value, None, MISSING]
    if isinstance(value, int):
        return [value + 1, 2 * value, 0, None, MISSING]
    if isinstance(value, float):
        return [3 * value + 0.11, 0.5, None, MISSING]
    if isinstance(value, str):
        return ["relu", "gelu", "sigmoid", "no such value", None, MISSING]
    if isinstance(value, list):
        return [value[::-1], 2 * value, [], None, MISSING]
    if value is None:
        return [True, 2, 0.5, "relu", MISSING]
    return [None, MISSING]


def changes(config):
    """The names of a configuration's fields, as paths, and their other values."""
    fields = {(name,): value for name, value in config.to_dict().items()}
    fields |= {(alias,): getattr(config, name) for alias, name in config.attribute_map.items()}
    for (name,), value in list(fields.items()):
        if (name.endswith("_config") or name in PARTS) and isinstance(value, dict):
            fields |= {(name, key): x for key, x in value.items()}
    for path, value in fields.items():
        yield from ((path, x) for x in other_values(value))
    for name, values in MORE.items():
        yield from (((name,), x) for x in values)


def with_value(fields, path, value):
    """The fields with another value of one, or without it."""
    fields = copy.deepcopy(fields)
    part = fields
    for name in path[:-1]:
        part = part.setdefault(name, {})
    if value is MISSING:
        part.pop(path[-1], None)
    else:
        part[path[-1]] = value
    return fields


class Read(Exception):
    """The builder's arguments, instead of a model."""


def arguments_in(folder, model_type, monkeypatch):
    """What `load_huggingface` gives the builder, as a text."""

    def build(**arguments):
        raise Read(str(arguments))

    family = dataclasses.replace(huggingface.FAMILIES[model_type], builder=build)
    with monkeypatch.context() as patch, pytest.raises(Read) as read:
        patch.setitem(huggingface.FAMILIES, model_type, family)
        load_huggingface(folder)
    return str(read.value)


def names_in(path, value):
    """A field's names, and those inside its value, of which an error may name any."""
    names = set(path)
    if isinstance(value, dict):
        names |= {x for key, inside in value.items() for x in names_in((key,), inside)}
    return names


def case_of(model_type):
    """The model of `saved_folders.py` whose configuration has most fields."""
    options = f"{model_type}, other options"
    return options if options in CASES else f"{model_type}, {architecture_of(model_type)}"


def faults(case, folder, changed, monkeypatch):
    """Compares transformers with this package for each changed field.

    Args:
        case: one of `saved_folders.py`.
        folder: an empty one.
        changed: function of the configuration that returns paths of fields and values.

    Returns:
        a line for each fault, and the number of values that transformers accepts.
    """
    from read_by_transformers import TOLERANCE, answer, error_of

    model, file = save(case, folder), folder / "config.json"
    model_type = case.partition(",")[0]
    inputs = inputs_of(model)
    # What decides the inputs, which no field says, or another field than the one that changes.
    names = ("num_images", "image_size", "audio")
    options = {name: model.arguments[name] for name in names if name in model.arguments}
    fields, before = json.loads(file.read_text()), arguments_in(folder, model_type, monkeypatch)
    assert error_of(folder, answer(folder)) <= TOLERANCE
    outputs_are_of = before
    found, compared = [], 0
    config = transformers.AutoConfig.from_pretrained(folder)
    for path, value in changed(config):
        other = with_value(fields, path, value)
        if other == fields or path[-1] in LEFT_OUT or path[-1] in OWN.get(model_type, ()):
            continue
        if path[-1] == "pad_token_id" and value == LAST:
            continue  # the last token would be padding, which transformers masks only on request
        file.write_text(json.dumps(other))
        try:
            theirs = answer(folder)
        except Exception:  # whatever transformers raises, it computes nothing
            continue
        if any(np.isnan(x).any() for x in theirs.values()):
            continue
        compared += 1
        shown = f"{'.'.join(path)}={'(missing)' if value is MISSING else repr(value)}"
        try:
            arguments = arguments_in(folder, model_type, monkeypatch)
            if arguments != outputs_are_of:
                again = model if arguments == before else load_huggingface(folder, **options)
                save_outputs(again, inputs, folder)
                outputs_are_of = arguments
            error = error_of(folder, theirs)
        except ValueError as refusal:
            text = str(refusal)
            names = names_in(path, value) | {config.attribute_map.get(path[-1], path[-1])}
            if "\n" in text or not any(name in text for name in names):
                found.append(f"{shown}: refused with {text!r}")
        except Exception as problem:
            found.append(f"{shown}: raised {type(problem).__name__}: {problem}")
        else:
            if not error <= TOLERANCE:
                found.append(f"{shown}: relative error {error:.2g}")
    return found, compared


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns of most of these values
        yield


@pytest.mark.slow
@pytest.mark.parametrize("model_type", huggingface.FAMILIES)
def test_a_changed_field_is_applied_or_refused(model_type, tmp_path, monkeypatch):
    found, compared = faults(case_of(model_type), tmp_path, changes, monkeypatch)
    assert not found, "\n".join(found)
    assert compared > 50


@pytest.mark.slow
@pytest.mark.parametrize("case", [x for x in CASES if x.startswith("vision-encoder-decoder, ")])
def test_a_changed_field_of_each_decoder_is_applied_or_refused(case, tmp_path, monkeypatch):
    found, compared = faults(case, tmp_path, changes, monkeypatch)
    assert not found, "\n".join(found)
    assert compared > 50


def check_fields(model_type, values, folder, monkeypatch, at_least):
    def changed(config):
        yield from (((name,), x) for name, each in values.items() for x in each)

    found, compared = faults(case_of(model_type), folder, changed, monkeypatch)
    assert not found, "\n".join(found)
    assert compared >= at_least


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        (
            "llama",
            {
                "rope_theta": [77.0],
                "rope_scaling": [DYNAMIC, {**BASE, **YARN}],
                "rope_parameters": [BASE, LINEAR],
            },
        ),
        (
            "gemma3_text",
            {
                "rope_local_base_freq": [77.0],
                "rope_scaling": [LINEAR],
                "rope_parameters": [{FULL: BASE}, {FULL: YARN, SLIDING: BASE}, {SLIDING: LINEAR}],
            },
        ),
    ],
    ids=["llama", "gemma3_text"],
)
def test_rotary_fields_are_applied_or_refused(model_type, values, tmp_path, monkeypatch):
    check_fields(model_type, values, tmp_path, monkeypatch, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type", [x for x in huggingface.FAMILIES if "rope_scaling" in arguments_of(x)]
)
def test_all_rotary_fields_are_applied_or_refused(model_type, tmp_path, monkeypatch):
    values = ROTARY_BY_KIND if model_type in BY_KIND else ROTARY
    # transformers refuses most scalings for these.
    at_least = {"phi3": 25, "gemma4_text": 12}.get(model_type, 40)
    check_fields(model_type, values, tmp_path, monkeypatch, at_least)
