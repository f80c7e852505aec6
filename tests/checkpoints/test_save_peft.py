"""Adapters in the format of PEFT: read again here, their names in transformers, and PEFT itself."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from families import TYPES
from safetensors.numpy import load_file
from saved_folders import architecture_of, inputs_of, outputs_of, save

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.save_peft import OTHER_MODULES

IDS = np.array([[3, 4, 5, 6, 7]], "int32")
FAST = {"gpt2", "gpt_neox", "nomic_bert"}


def train(model, **options):
    """The number of adapters, with which the model gives other outputs; its head is changed."""
    count = models.enable_lora(model, rank=2, alpha=6, **options)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight) + rng.normal(size=weight.shape) * 0.1)
    return count


def fields_of(folder):
    return json.loads((folder / "adapter_config.json").read_text())


def tensors_of(folder):
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in FAST))
        for x in TYPES
        if x not in ("resnet", "flava_image_codebook")  # without dense layers in blocks
    ],
)
def test_every_family(name, tmp_path):
    """The outputs are those of the trained model, and transformers has all modules."""
    model = save(f"{name}, {architecture_of(name)}", tmp_path / "base")
    if model.arguments.get("experts"):  # PEFT adapts the attention beside them
        adapted = checkpoints.load_huggingface(tmp_path / "base")
        train(adapted)
        with pytest.raises(ValueError, match="PEFT has no adapters of experts and routers, got"):
            checkpoints.save_peft(adapted, tmp_path / "adapters", tmp_path / "base")
    train(model, names=["query_key_value"] if model.arguments.get("experts") else None)
    if name in OTHER_MODULES:
        with pytest.raises(ValueError, match=f"other modules for {name} than its files"):
            checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
        assert not (tmp_path / "adapters").exists()
        return
    checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
    fields = fields_of(tmp_path / "adapters")
    assert (fields["r"], fields["lora_alpha"]) == (2, 6)
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from read_by_transformers import class_of

    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(tmp_path / "base")
        theirs = class_of(tmp_path / "base")(config)
    known = {x for x, _ in theirs.named_modules()}
    whole = fields["modules_to_save"] or []
    assert {*fields["target_modules"], *whole} <= known
    # PEFT expects all tensors of these.
    expected = {f"{x}.{key}" for x in whole for key in theirs.get_submodule(x).state_dict()}
    assert {f"base_model.model.{x}" for x in expected} <= tensors_of(tmp_path / "adapters").keys()


def test_what_the_files_say(tmp_path):
    """A base by its name, for which the adapters cannot be compared; one kind of projection."""
    model = save("llama, LlamaForCausalLM", tmp_path / "base")
    model.get_layer("output").trainable = False
    assert train(model, names=["output_projection"]) == 2
    layer = next(x for x in model.blocks[1]._flatten_layers() if x.name == "output_projection")
    layer.lora_alpha = 5.0
    checkpoints.save_peft(model, tmp_path / "adapters", "someone/llama")
    fields = fields_of(tmp_path / "adapters")
    one, other = (f"model.layers.{i}.self_attn.o_proj" for i in range(2))
    assert fields["target_modules"] == [one, other]
    assert fields["modules_to_save"] is None and fields["task_type"] == "CAUSAL_LM"
    assert fields["base_model_name_or_path"] == "someone/llama"
    (pattern, alpha), = fields["alpha_pattern"].items()  # fmt: skip
    assert pattern.replace("\\", "") in (one, other) and alpha in (5, 6)
    again = checkpoints.load_huggingface(tmp_path / "base", peft=tmp_path / "adapters")
    inputs = inputs_of(model)
    for key, x in outputs_of(again, inputs).items():
        assert_close(x, outputs_of(model, inputs)[key], 1e-5)


def test_a_classifier_on_a_language_model(tmp_path):
    """Its head is saved whole; the base has none."""
    save("llama, LlamaForCausalLM", tmp_path / "base")
    base = checkpoints.load_huggingface(tmp_path / "base")
    model = models.sequence_classifier(base, 3, pooling="last")
    train(model)
    checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
    fields = fields_of(tmp_path / "adapters")
    assert (fields["task_type"], fields["modules_to_save"]) == ("SEQ_CLS", ["score"])
    architecture = "LlamaForSequenceClassification"
    again = checkpoints.load_huggingface(
        tmp_path / "base", architecture, peft=tmp_path / "adapters"
    )
    assert_close(to_numpy(again(IDS)), to_numpy(model(IDS)), 1e-5)


def test_what_cannot_be_saved_is_refused(tmp_path):
    model = save("gpt2, GPT2LMHeadModel", tmp_path / "base")
    adapters = tmp_path / "adapters"
    with pytest.raises(ValueError, match=r"gpt has no adapters: call models\.enable_lora"):
        checkpoints.save_peft(model, adapters, "gpt2")
    train(model)
    model.embedding.embeddings.assign(model.embedding.embeddings + 1.0)
    with pytest.raises(ValueError, match="after loading, its outputs differ by"):
        checkpoints.save_peft(model, adapters, tmp_path / "base")  # not this base
    rounded = models.gpt(31, dim=64, num_layers=1, num_heads=2, intermediate_dim=64, max_length=7)
    models.enable_quantization(rounded, "int8")
    models.enable_lora(rounded, rank=2)
    with pytest.raises(ValueError, match="gpt has rounded weights beside its adapters"):
        checkpoints.save_peft(rounded, adapters, "gpt2")
    assert not adapters.exists()


def test_modules_are_whole_and_a_tied_table_has_both_names(tmp_path):
    """PEFT has no default for a norm's offset, and copies the embedding apart from the output."""
    model = save("gpt2, GPT2LMHeadModel", tmp_path / "base")
    models.enable_lora(model, rank=2)
    norm = next(x for x in model.blocks[0]._flatten_layers() if x.name.endswith("norm"))
    for weight in (model.embedding.embeddings, norm.gamma):
        weight.trainable = True
        weight.assign(weight + 0.5 * np.arange(weight.shape[-1]))
    checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
    names = {"transformer.wte.weight", "lm_head.weight"}
    names |= {f"transformer.h.0.ln_1.{x}" for x in ("weight", "bias")}
    tensors = tensors_of(tmp_path / "adapters")
    assert {x.removeprefix("base_model.model.") for x in tensors if "lora" not in x} == names
    assert {f"{x}.weight" for x in fields_of(tmp_path / "adapters")["modules_to_save"]} <= names
    again = checkpoints.load_huggingface(tmp_path / "base", peft=tmp_path / "adapters")
    assert_close(to_numpy(again(IDS)), to_numpy(model(IDS)), 1e-5)


def test_adapters_that_were_trained_in_mixed_precision(tmp_path):
    """What is saved, merged or apart, is not rounded to the dtype that the layers compute in."""
    base = save("gpt2, GPT2LMHeadModel", tmp_path / "base")
    model = models.with_dtype(base, "mixed_bfloat16")
    train(model)
    checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
    models.enable_lora(base, rank=2, alpha=6)
    for weight, trained in zip(base.weights, model.weights, strict=True):
        weight.assign(trained)
    again = checkpoints.load_huggingface(tmp_path / "base", peft=tmp_path / "adapters")
    assert_close(to_numpy(again(IDS)), to_numpy(base(IDS)), 1e-5)
    assert_close(to_numpy(models.with_dtype(model, "float32")(IDS)), to_numpy(base(IDS)), 1e-5)


def test_a_trained_bias_beside_an_adapter_is_refused(tmp_path):
    model = models.gpt(31, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    models.enable_lora(model, rank=2, names=["output_projection"])
    layer = next(x for x in model.blocks[0]._flatten_layers() if x.name == "output_projection")
    layer.bias.trainable = True
    with pytest.raises(
        ValueError, match=r"\['transformer\.h\.0\.attn\.c_proj'\] have an adapter and"
    ):
        checkpoints.save_peft(model, tmp_path / "adapters", "gpt2")
    assert not (tmp_path / "adapters").exists()


def test_the_base_is_a_folder_or_a_name(tmp_path):
    """A path with a mistake is no name, and adapters beside their base would hide it."""
    model = save("gpt2, GPT2LMHeadModel", tmp_path / "base")
    save("gpt_neox, GPTNeoXForCausalLM", tmp_path / "other")
    train(model)
    adapters = tmp_path / "adapters"
    for base in (tmp_path / "bsae", str(tmp_path / "bsae"), "./bsae", ""):
        with pytest.raises(FileNotFoundError, match="base must be a folder of transformers, or"):
            checkpoints.save_peft(model, adapters, base)
    with pytest.raises(TypeError, match="base must be a folder or a name, got None"):
        checkpoints.save_peft(model, adapters, None)
    with pytest.raises(FileExistsError, match=r"it has a model \(config\.json\)"):
        checkpoints.save_peft(model, tmp_path / "base", tmp_path / "base")
    with pytest.raises(ValueError, match=r"so .*other is not what the adapters were") as caught:
        checkpoints.save_peft(model, adapters, tmp_path / "other")
    assert ".keras_tfm-" not in str(caught.value) and not adapters.exists()
    assert not list((tmp_path / "base").glob("adapter*"))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of its use of transformers
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    "case",
    [
        "llama, LlamaForCausalLM",
        "gpt2, GPT2LMHeadModel",
        "distilbert, DistilBertForMaskedLM",
        "bert, BertForMaskedLM",
    ],
)
def test_peft_has_the_logits(case, tmp_path):
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from read_by_transformers import read

    model = save(case, tmp_path / "base")
    train(model)
    checkpoints.save_peft(model, tmp_path / "adapters", tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(read(tmp_path / "base"), tmp_path / "adapters").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS.astype("int64"))).logits.numpy()
    inputs = {"tokens": IDS, "segments": np.zeros_like(IDS)}
    found = model({x: inputs[x] for x in model.input} if "MaskedLM" in case else IDS)
    assert_close(to_numpy(found), expected, 1e-5)
