"""python tests/parity/make_huggingface_fixture.py

Needs: pip install torch==2.13.0 transformers==5.23.0 numpy. Writes huggingface/ beside this file:

<case>/config.json, <case>/model.safetensors   as transformers' save_pretrained writes them, of tiny
    models with random weights, none left at 0 or 1
<case>/expected.npz   what that model makes of some inputs, computed in float64:
    tokens or source, segments, target    ids; 0 is padding of tokens and source, and masked there,
        except between tokens, where it is a token, as in what a tokenizer gives
    hidden (B, T, D), and the outputs by transformers' names: logits...
    greedy (B, T), beam (B, N, T), beam_scores (B, N)   generated from prompt (B, P) or source;
        beams of 3, best first, sums of log-probabilities; what follows an end means nothing
    end_id, max_length
parameter_counts.json   parameters of every size in keras_tfm.models, counted on torch's meta device
    (T5 1.1 with an output of its own, as it was released: transformers 5 would tie it)
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).with_name("huggingface")
BEAMS = 3

# Axes have sizes of their own: B 4, T 7, D 15 or 14, H 3, F 11, V 31.
BERT = {
    "vocab_size": 31, "hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 2,
    "intermediate_size": 11, "max_position_embeddings": 13, "type_vocab_size": 3,
}  # fmt: skip
GPT = {"vocab_size": 29, "n_embd": 15, "n_head": 3, "n_layer": 2, "n_positions": 17}
T5 = {
    "vocab_size": 23, "d_model": 14, "num_heads": 3, "d_kv": 5, "d_ff": 11, "num_layers": 2,
    "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 11, "decoder_start_token_id": 0,
}  # fmt: skip
CASES = {
    "bert_model": ("BertModel", BERT),
    "bert_masked": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new", "layer_norm_eps": 0.1}),
    "bert_pretraining": ("BertForPreTraining", BERT),
    "bert_next": ("BertForNextSentencePrediction", {**BERT, "hidden_act": "relu"}),
    "bert_sequence": ("BertForSequenceClassification", {**BERT, "num_labels": 5}),
    "bert_token": ("BertForTokenClassification", {**BERT, "num_labels": 4}),
    "bert_question": ("BertForQuestionAnswering", BERT),
    "gpt2": ("GPT2LMHeadModel", {**GPT, "n_inner": 11, "layer_norm_epsilon": 0.01}),
    "gpt2_scaled": (
        "GPT2LMHeadModel",
        {
            **GPT, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False,
            "activation_function": "silu",
        },
    ),
    "gpt2_unscaled": ("GPT2Model", {**GPT, "scale_attn_weights": False}),
    "gpt1": ("OpenAIGPTLMHeadModel", GPT),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5_gated": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5_encoder": ("T5EncoderModel", {**T5, "feed_forward_proj": "gated-silu"}),
}  # fmt: skip
SEED = 3
TOKENS = np.array(
    [
        [3, 4, 5, 6, 7, 8, 9],
        [10, 11, 12, 13, 0, 0, 0],
        [14, 0, 0, 0, 0, 0, 0],
        [3, 3, 0, 15, 16, 0, 0],
    ]
)
MASK = TOKENS != 0
MASK[3, 2] = True
SEGMENTS = np.array(
    [[0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 2, 2, 0, 0]]
)
TARGET = np.array([[0, 3, 4, 5, 6], [0, 7, 8, 0, 0], [0, 9, 10, 11, 12], [0, 1, 2, 3, 4]])
PROMPT = np.array([[5, 6, 7], [11, 3, 20], [4, 4, 9], [18, 0, 2]])
MAX_LENGTH, END = 11, 1


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for case, (architecture, options) in CASES.items():
        make_case(case, architecture, options)
    counts = parameter_counts()
    text = json.dumps(counts, indent=2)
    (FOLDER / "parameter_counts.json").write_text(text + "\n")


def make_case(case: str, architecture: str, options: dict) -> None:
    cls = getattr(transformers, architecture)
    config = cls.config_class(**options)
    model = cls(config).eval()
    if case == "t5_gated":  # transformers 5 ties it; released checkpoints have one of its own
        model.lm_head.weight = torch.nn.Parameter(torch.empty(model.lm_head.weight.shape))
    fill(model, np.random.default_rng(SEED))
    folder = FOLDER / case
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    if architecture.startswith("Bert"):
        arrays = run(model, TOKENS, attention_mask=MASK, token_type_ids=SEGMENTS)
        arrays |= {"tokens": TOKENS, "segments": SEGMENTS}
    elif architecture == "T5EncoderModel":
        arrays = run(model, TOKENS, attention_mask=MASK) | {"source": TOKENS}
    elif architecture.startswith("T5"):
        arrays = run(model, TOKENS, attention_mask=MASK, decoder_input_ids=TARGET)
        arrays |= {"source": TOKENS, "target": TARGET}
        arrays |= generated(model, TOKENS, MASK)
    else:
        arrays = run(model, TOKENS) | {"tokens": TOKENS}
        if "LMHead" in architecture:
            arrays |= generated(model, PROMPT, np.ones_like(PROMPT)) | {"prompt": PROMPT}
    arrays = {
        name: x.astype("int32" if np.issubdtype(x.dtype, np.integer) else "float64")
        for name, x in arrays.items()
    }
    np.savez_compressed(folder / "expected.npz", **arrays)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case}: {sorted(arrays)}, {size:,} bytes")
    if "greedy" in arrays:
        print(arrays["greedy"].tolist(), arrays["beam"].tolist())


def fill(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Random float32 weights, wide enough that attention is far from uniform."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        norm = any(x in name for x in ("LayerNorm", "layer_norm", "ln_")) and len(shape) == 1
        if norm and name.endswith("weight"):
            values = rng.normal(1.0, 0.2, shape)
        elif len(shape) == 1:
            values = rng.normal(0.0, 0.1, shape)
        elif "embed" in name or "shared" in name or ".wte" in name or ".wpe" in name:
            values = rng.normal(0.0, 0.5, shape)
        else:
            values = rng.normal(0.0, 1.3 * min(shape) ** -0.5, shape)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype("float32")))


def run(model: torch.nn.Module, ids: np.ndarray, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
    with torch.no_grad():
        output = model(torch.from_numpy(ids), output_hidden_states=True, **tensors)
    arrays = {
        name: output[name].numpy()
        for name in output
        if isinstance(output[name], torch.Tensor) and "encoder" not in name
    }
    if "last_hidden_state" in arrays:
        return {"hidden": arrays.pop("last_hidden_state"), **arrays}
    last = "decoder_hidden_states" if "decoder_hidden_states" in output else "hidden_states"
    return {"hidden": output[last][-1].numpy(), **arrays}


def generated(model: torch.nn.Module, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    options = {
        "max_length": MAX_LENGTH, "do_sample": False, "pad_token_id": 0, "eos_token_id": END,
        "use_cache": False,  # transformers 5.23 makes one of as many layers as the encoder has
    }  # fmt: skip
    greedy, beams, scores = [], [], []
    for row in range(len(ids)):  # one at a time: nothing of a row depends on the others
        options["attention_mask"] = torch.from_numpy(mask[row : row + 1]).long()
        row_ids = torch.from_numpy(ids[row : row + 1])
        greedy.append(padded(model.generate(row_ids, **options).numpy())[0])
        found = model.generate(
            row_ids, num_beams=BEAMS, num_return_sequences=BEAMS, length_penalty=0.0,
            early_stopping="never", return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        beams.append(padded(found.sequences.numpy()))
        scores.append(found.sequences_scores.numpy())
    return {
        "greedy": np.array(greedy),
        "beam": np.array(beams),
        "beam_scores": np.array(scores),
        "end_id": np.array(END),
        "max_length": np.array(MAX_LENGTH),
    }


def padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, MAX_LENGTH - rows.shape[1])))


def neox_relatives() -> dict[str, tuple[str, int, dict]]:
    """By size: the class without its ending, the number of ids, and the fields."""
    bloom = {
        "560m": (1024, 24, 16), "1.1b": (1536, 24, 16), "1.7b": (2048, 24, 16),
        "3b": (2560, 30, 32), "7.1b": (4096, 30, 32), "176b": (14336, 70, 112),
    }  # fmt: skip
    codegen = {
        "350m": (1024, 20, 16, 32), "2b": (2560, 32, 32, 64), "6b": (4096, 33, 16, 64),
        "16b": (6144, 34, 24, 64),
    }  # fmt: skip
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    others = {
        "stablelm-3b": ("StableLm", 50304, (2560, 32, 32, 6912), {}),
        "stablelm-2-1.6b": ("StableLm", 100352, (2048, 24, 32, 5632), {"use_qkv_bias": True}),
        "minitron-4b": (
            "Nemotron", 256000, (3072, 32, 24, 9216), {"num_key_value_heads": 8, "head_dim": 128},
        ),
        "olmo-1b": ("Olmo", 50304, (2048, 16, 16, 8192), {"tie_word_embeddings": True}),
        "olmo-7b": ("Olmo", 50304, (4096, 32, 32, 11008), {}),
    }  # fmt: skip
    large = {"num_kv_heads": 8, "new_decoder_architecture": True}
    return {
        "falcon-7b": ("Falcon", 65024, dict(zip(names, (4544, 32, 71), strict=True))),
        "falcon-40b": ("Falcon", 65024, dict(zip(names, (8192, 60, 128), strict=True)) | large),
        **{
            f"bloom-{size}": ("Bloom", 250880, {"hidden_size": d, "n_layer": n, "n_head": h})
            for size, (d, n, h) in bloom.items()
        },
        "gpt-j-6b": ("GPTJ", 50400, {"n_embd": 4096, "n_layer": 28, "n_head": 16}),
        **{
            f"codegen-{size}": (
                "CodeGen", 51200, {"n_embd": d, "n_layer": n, "n_head": h, "rotary_dim": part},
            )
            for size, (d, n, h, part) in codegen.items()
        },
        **{
            size: (
                name, vocabulary,
                dict(zip((*names, "intermediate_size"), sizes, strict=True)) | more,
            )
            for size, (name, vocabulary, sizes, more) in others.items()
        },
    }  # fmt: skip


def _vit(layers: int, dim: int, heads: int) -> dict[str, int]:
    """The fields of a ViT's size."""
    return {
        "num_hidden_layers": layers, "hidden_size": dim, "num_attention_heads": heads,
        "intermediate_size": 4 * dim,
    }  # fmt: skip


def parameter_counts() -> dict[str, dict[str, dict]]:
    """By family and size: the builder's sizes are those of `keras_tfm.models`, by hand."""
    bert = {
        "tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512),
        "base": (12, 768), "large": (24, 1024),
    }  # fmt: skip
    gpt = {
        "gpt2": (12, 768, 12, 1024), "gpt2-medium": (24, 1024, 16, 1024),
        "gpt2-large": (36, 1280, 20, 1024), "gpt2-xl": (48, 1600, 25, 1024),
        "gpt3-small": (12, 768, 12, 2048), "gpt3-medium": (24, 1024, 16, 2048),
        "gpt3-large": (24, 1536, 16, 2048), "gpt3-xl": (24, 2048, 16, 2048),
        "gpt3-2.7b": (32, 2560, 32, 2048), "gpt3-6.7b": (32, 4096, 32, 2048),
        "gpt3-13b": (40, 5120, 40, 2048), "gpt3-175b": (96, 12288, 96, 2048),
    }  # fmt: skip
    t5 = {
        "small": (6, 512, 8, 64, 2048), "base": (12, 768, 12, 64, 3072),
        "large": (24, 1024, 16, 64, 4096), "3b": (24, 1024, 32, 128, 16384),
        "11b": (24, 1024, 128, 128, 65536), "v1.1-small": (8, 512, 6, 64, 1024),
        "v1.1-base": (12, 768, 12, 64, 2048), "v1.1-large": (24, 1024, 16, 64, 2816),
        "v1.1-xl": (24, 2048, 32, 64, 5120), "v1.1-xxl": (24, 4096, 64, 64, 10240),
        "madlad-3b": (32, 1024, 16, 128, 8192), "madlad-7b": (48, 2048, 16, 128, 8192),
        "madlad-10b": (32, 2048, 32, 128, 16384),
    }  # fmt: skip
    t5 |= {f"mt5-{x[5:]}": t5[x] for x in list(t5) if x.startswith("v1.1")}
    t5 |= {f"u{x}": t5[x] for x in list(t5) if x.startswith("mt5") and x != "mt5-large"}
    m2m = {
        "418m": (12, 1024, 4096), "1.2b": (24, 1024, 8192), "nllb-600m": (12, 1024, 4096),
        "nllb-1.3b": (24, 1024, 8192), "nllb-3.3b": (24, 2048, 8192),
    }  # fmt: skip
    neo = {
        "gpt-neo-125m": (12, 768, 12), "gpt-neo-1.3b": (24, 2048, 16),
        "gpt-neo-2.7b": (32, 2560, 20),
    }  # fmt: skip
    opt = {
        "opt-125m": (12, 768, 12), "opt-350m": (24, 1024, 16), "opt-1.3b": (24, 2048, 32),
        "opt-2.7b": (32, 2560, 32), "opt-6.7b": (32, 4096, 32), "opt-13b": (40, 5120, 40),
        "opt-30b": (48, 7168, 56), "opt-66b": (64, 9216, 72),
    }  # fmt: skip
    gpt_neox = {
        "20b": (44, 6144, 64, 50432), "pythia-70m": (6, 512, 8, 50304),
        "pythia-160m": (12, 768, 12, 50304), "pythia-410m": (24, 1024, 16, 50304),
        "pythia-1b": (16, 2048, 8, 50304), "pythia-1.4b": (24, 2048, 16, 50304),
        "pythia-2.8b": (32, 2560, 32, 50304), "pythia-6.9b": (32, 4096, 32, 50432),
        "pythia-12b": (36, 5120, 40, 50688), "phi-1": (24, 2048, 32, 51200),
        "phi-1.5": (24, 2048, 32, 51200), "phi-2": (32, 2560, 32, 51200),
        "starcoder2-3b": (30, 3072, 24, 49152), "starcoder2-7b": (32, 4608, 36, 49152),
        "starcoder2-15b": (40, 6144, 48, 49152),
    }  # fmt: skip
    ettin = {
        "17m": (7, 256, 4, 384), "32m": (10, 384, 6, 576), "68m": (19, 512, 8, 768),
        "150m": (22, 768, 12, 1152), "400m": (28, 1024, 16, 2624), "1b": (28, 1792, 28, 3840),
    }  # fmt: skip
    gemma = {
        "gemma-2b": (18, 2048, 8, 1, 256, 16384), "gemma-7b": (28, 3072, 16, 16, 256, 24576),
        "gemma2-2b": (26, 2304, 8, 4, 256, 9216), "gemma2-9b": (42, 3584, 16, 8, 256, 14336),
        "gemma2-27b": (46, 4608, 32, 16, 128, 36864), "gemma3-270m": (18, 640, 4, 1, 256, 2048),
        "gemma3-1b": (26, 1152, 4, 1, 256, 6912),
        "embeddinggemma-300m": (24, 768, 3, 1, 256, 1152),
    }  # fmt: skip
    # Before the width is adjusted.
    lfm2 = {"350m": (1024, 16, 6656), "700m": (1536, 24, 10240), "1.2b": (2048, 32, 12288)}
    qwen3_5 = {
        "0.8b": (24, 1024, 8, 2, 3584, 16), "2b": (24, 2048, 8, 2, 6144, 16),
        "4b": (32, 2560, 16, 4, 9216, 32), "9b": (32, 4096, 16, 4, 12288, 32),
    }  # fmt: skip
    granite4 = {"h-350m": (32, 768, 12, 4, 2048, 48), "h-micro": (40, 2048, 32, 8, 8192, 64)}
    granite4["h-tiny"] = (40, 1536, 12, 4, 1024, 48)
    counts: dict[str, dict[str, dict]] = {
        "bert": {}, "gpt": {}, "gemma": {}, "t5": {}, "m2m_100": {}, "t5gemma2": {},
        "smolvlm": {}, "gemma3": {}, "lfm2_vl": {}, "lfm2": {}, "qwen3_5": {}, "granite4": {},
        "nomic_bert": {}, "gpt_neox": {}, "modernbert_decoder": {}, "glm": {},
        "mamba2": {}, "falcon_h1": {}, "vision_encoder_decoder": {},
    }  # fmt: skip
    with torch.device("meta"):
        for size, (layers, dim) in bert.items():
            config = transformers.BertConfig(
                hidden_size=dim, num_hidden_layers=layers, num_attention_heads=dim // 64,
                intermediate_size=4 * dim,
            )  # fmt: skip
            counts["bert"][size] = counted(transformers.BertModel(config), 30522)
        config = transformers.OpenAIGPTConfig()
        counts["gpt"]["gpt1"] = counted(transformers.OpenAIGPTLMHeadModel(config), 40478)
        for size, (layers, dim, heads, positions) in gpt.items():
            config = transformers.GPT2Config(
                n_embd=dim, n_layer=layers, n_head=heads, n_positions=positions
            )
            counts["gpt"][size] = counted(transformers.GPT2LMHeadModel(config), 50257)
        for size, (layers, dim, heads) in neo.items():
            config = transformers.GPTNeoConfig(
                hidden_size=dim, num_layers=layers, num_heads=heads,
                attention_types=[[["global", "local"], layers // 2]],
            )  # fmt: skip
            counts["gpt"][size] = counted(transformers.GPTNeoForCausalLM(config), 50257)
        for size, (layers, dim, heads) in opt.items():
            config = transformers.OPTConfig(
                hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
                ffn_dim=4 * dim, do_layer_norm_before=size != "opt-350m",
                word_embed_proj_dim=512 if size == "opt-350m" else dim,
            )  # fmt: skip
            counts["gpt"][size] = counted(transformers.OPTForCausalLM(config), 50272)
        for size, (layers, dim, heads, vocabulary) in gpt_neox.items():
            name = {"phi": "Phi", "starcoder2": "Starcoder2"}.get(size.split("-")[0], "GPTNeoX")
            own = {
                "num_key_value_heads": 2 if layers == 30 else 4,
                "tie_word_embeddings": size != "starcoder2-15b",
            }  # fmt: skip
            model = getattr(transformers, f"{name}ForCausalLM")
            config = model.config_class(
                vocab_size=vocabulary, hidden_size=dim, num_hidden_layers=layers,
                num_attention_heads=heads, intermediate_size=4 * dim,
                **(own if name == "Starcoder2" else {}),
            )  # fmt: skip
            counts["gpt_neox"][size] = counted(model(config), vocabulary)
        for size, (name, vocabulary, fields) in neox_relatives().items():
            model = getattr(transformers, f"{name}ForCausalLM")
            model = model(model.config_class(vocab_size=vocabulary, **fields))
            counts["gpt_neox"][size] = counted(model, vocabulary)
        for size, (layers, dim, heads, inner) in ettin.items():
            config = transformers.ModernBertDecoderConfig(
                hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
                intermediate_size=inner,
            )  # fmt: skip
            model = transformers.ModernBertDecoderForCausalLM(config)
            counts["modernbert_decoder"][f"ettin-{size}"] = counted(model, 50368)
        mamba2 = {
            "130m": (24, 768), "370m": (48, 1024), "780m": (48, 1536), "1.3b": (48, 2048),
            "2.7b": (64, 2560),
        }  # fmt: skip
        for size, (layers, dim) in mamba2.items():
            config = transformers.Mamba2Config(
                vocab_size=50288, hidden_size=dim, num_hidden_layers=layers, num_heads=dim // 32,
                n_groups=1, tie_word_embeddings=True,
            )  # fmt: skip
            counts["mamba2"][size] = counted(transformers.Mamba2ForCausalLM(config), 50288)
        glm, glm4 = transformers.GlmConfig(), transformers.Glm4Config()
        counts["glm"]["4-9b"] = counted(transformers.GlmForCausalLM(glm), 151552)
        counts["glm"]["4-9b-0414"] = counted(transformers.Glm4ForCausalLM(glm4), 151552)
        for size, (layers, dim, heads, groups, channels, inner) in gemma.items():
            name = {"gemma-": "Gemma", "gemma2": "Gemma2"}.get(size[:6], "Gemma3")
            model = getattr(transformers, f"{name}ForCausalLM")
            vocabulary = 262144 if name == "Gemma3" else 256000
            config = model.config_class(
                vocab_size=vocabulary, hidden_size=dim, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=groups, head_dim=channels,
                intermediate_size=inner,
            )  # fmt: skip
            counts["gemma"][size] = counted(model(config), vocabulary)
        for size, (layers, dim, heads, channels, inner) in t5.items():
            kind = size.partition("-")[0]
            new = "-" in size
            vocabulary = {"mt5": 250112, "umt5": 256384, "madlad": 256000}.get(kind, 32128)
            name = {"mt5": "MT5", "umt5": "UMT5"}.get(kind, "T5")
            model = getattr(transformers, f"{name}ForConditionalGeneration")
            config = model.config_class(
                vocab_size=vocabulary, d_model=dim, num_layers=layers, num_heads=heads,
                d_kv=channels, d_ff=inner, feed_forward_proj="gated-gelu" if new else "relu",
            )  # fmt: skip
            counts["t5"][size] = counted(model(config), vocabulary, own_output=new)
        for size, (layers, dim, inner) in m2m.items():
            vocabulary = 256206 if size.startswith("nllb") else 128112
            config = transformers.M2M100Config(
                vocab_size=vocabulary, d_model=dim, encoder_layers=layers, decoder_layers=layers,
                encoder_ffn_dim=inner, decoder_ffn_dim=inner,
            )  # fmt: skip
            model = transformers.M2M100ForConditionalGeneration(config)
            counts["m2m_100"][size] = counted(model, vocabulary)
        for size, gemma3 in (("270m-270m", "gemma3-270m"), ("1b-1b", "gemma3-1b"), ("4b-4b", "")):
            layers, dim, heads, groups, channels, inner = (
                gemma[gemma3] if gemma3 else (34, 2560, 8, 4, 256, 10240)
            )
            stack = {
                "vocab_size": 262144, "hidden_size": dim, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": channels,
                "intermediate_size": inner,
            }  # fmt: skip
            vision = {"model_type": "siglip_vision_model", "num_hidden_layers": 0}
            config = transformers.T5Gemma2Config(
                encoder={"text_config": stack, "vision_config": vision}, decoder=stack
            )
            model = transformers.T5Gemma2ForConditionalGeneration(config)
            del model.model.encoder.vision_tower, model.model.encoder.multi_modal_projector
            for part in (model.model.encoder.text_model, model.model.decoder):
                del part.embed_tokens.eoi_embedding
            counts["t5gemma2"][size] = counted(model, 262144)
        base = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
        so400m = {
            "num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16,
            "intermediate_size": 4304, "image_size": 384, "patch_size": 14,
        }  # fmt: skip
        smolvlm = {
            "256m": (30, 576, 9, 3, 1536), "500m": (32, 960, 15, 5, 2560),
            "2.2b": (24, 2048, 32, 32, 8192),
        }  # fmt: skip
        for size, (layers, dim, heads, groups, inner) in smolvlm.items():
            large = size == "2.2b"
            text = {
                "model_type": "llama", "num_hidden_layers": layers, "hidden_size": dim,
                "num_attention_heads": heads, "num_key_value_heads": groups,
                "intermediate_size": inner, "vocab_size": 49280,
            }  # fmt: skip
            vision = so400m if large else {**base, "image_size": 512, "patch_size": 16}
            config = transformers.SmolVLMConfig(
                text_config=text, vision_config=vision, scale_factor=3 if large else 4
            )
            model = transformers.SmolVLMForConditionalGeneration(config)
            counts["smolvlm"][size] = counted(model, 49280)
        gemma3 = {
            "4b": (34, 2560, 8, 4, 256, 10240), "12b": (48, 3840, 16, 8, 256, 15360),
            "27b": (62, 5376, 32, 16, 128, 21504),
        }  # fmt: skip
        for size, (layers, dim, heads, groups, width, inner) in gemma3.items():
            text = {
                "num_hidden_layers": layers, "hidden_size": dim, "num_attention_heads": heads,
                "num_key_value_heads": groups, "head_dim": width, "intermediate_size": inner,
            }  # fmt: skip
            vision = {**so400m, "image_size": 896, "vision_use_head": False}
            config = transformers.Gemma3Config(text_config=text, vision_config=vision)
            model = transformers.Gemma3ForConditionalGeneration(config)
            counts["gemma3"][size] = counted(model, 262208)
        lfm2_vl = {"450m": (1024, 16, 6656)}
        for size, (dim, heads, inner) in lfm2_vl.items():
            text = {
                "hidden_size": dim, "num_hidden_layers": 16, "num_attention_heads": heads,
                "intermediate_size": inner, "vocab_size": 65536,
                "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            }  # fmt: skip
            vision = {**base, "vision_use_head": False}
            config = transformers.Lfm2VlConfig(text_config=text, vision_config=vision)
            model = transformers.Lfm2VlForConditionalGeneration(config)
            counts["lfm2_vl"][size] = counted(model, 65536)
        trocr = {
            "small": (
                {"model_type": "deit", **_vit(12, 384, 6)},
                {"d_model": 256, "decoder_layers": 6, "decoder_attention_heads": 8,
                 "decoder_ffn_dim": 1024, "tie_word_embeddings": False, "vocab_size": 64044},
            ),
            "base": ({"model_type": "vit", **_vit(12, 768, 12), "qkv_bias": False}, {}),
            "large": ({"model_type": "vit", **_vit(24, 1024, 16), "qkv_bias": False}, {}),
        }  # fmt: skip
        for size, (encoder, decoder) in trocr.items():
            width = {"cross_attention_hidden_size": encoder["hidden_size"]}
            config = transformers.VisionEncoderDecoderConfig(
                encoder={**encoder, "image_size": 384},
                decoder={"model_type": "trocr", **width, **decoder, "is_decoder": True},
            )
            model = transformers.VisionEncoderDecoderModel(config)
            model.encoder.pooler = None  # which nothing reads
            vocabulary_size = config.decoder.vocab_size
            counts["vision_encoder_decoder"][size] = counted(model, vocabulary_size)
        for size, (dim, heads, inner) in lfm2.items():
            config = transformers.Lfm2Config(
                hidden_size=dim, num_attention_heads=heads, intermediate_size=inner,
                num_hidden_layers=16, full_attn_idxs=[2, 5, 8, 10, 12, 14],
            )  # fmt: skip
            counts["lfm2"][size] = counted(transformers.Lfm2ForCausalLM(config), 65536)
        config = transformers.Lfm2MoeConfig(
            num_hidden_layers=24, num_attention_heads=32,
            layer_types=[
                "full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)
            ],
        )  # fmt: skip
        counts["lfm2"]["8b-a1b"] = counted(transformers.Lfm2MoeForCausalLM(config), 65536)
        lfm3 = transformers.Lfm3ForCausalLM(transformers.Lfm3Config())
        counts["lfm2"]["lfm3-1.7b"] = counted(lfm3, 128000)
        for size, (layers, dim, heads, groups, inner, values) in qwen3_5.items():
            config = transformers.Qwen3_5TextConfig(
                hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=groups, intermediate_size=inner,
                linear_num_value_heads=values, tie_word_embeddings=size != "9b",
            )  # fmt: skip
            counts["qwen3_5"][size] = counted(transformers.Qwen3_5ForCausalLM(config), 248320)
        for size, (layers, dim, heads, groups, inner, mamba_heads) in granite4.items():
            attends = (10, 13, 17, 27) if size == "h-350m" else (5, 15, 25, 35)
            experts = 64 if size == "h-tiny" else 0
            config = transformers.GraniteMoeHybridConfig(
                hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=groups, shared_intermediate_size=inner,
                num_local_experts=experts, intermediate_size=512,
                num_experts_per_tok=6 if experts else 0,
                mamba_n_heads=mamba_heads, mamba_d_state=128, vocab_size=100352,
                layer_types=["attention" if i in attends else "mamba" for i in range(layers)],
                tie_word_embeddings=True,
            )  # fmt: skip
            model = transformers.GraniteMoeHybridForCausalLM(config)
            counts["granite4"][size] = counted(model, 100352)
        config = transformers.FalconH1Config(
            hidden_size=1024, num_hidden_layers=36, num_attention_heads=8, num_key_value_heads=2,
            head_dim=64, intermediate_size=2048, mamba_d_ssm=1536, mamba_n_heads=24,
            mamba_d_state=128, vocab_size=32784,
        )  # fmt: skip
        counts["falcon_h1"]["0.5b"] = counted(transformers.FalconH1ForCausalLM(config), 32784)
        nomic = transformers.NomicBertModel(transformers.NomicBertConfig())
        counts["nomic_bert"]["base"] = counted(nomic, 30528)
        gte = transformers.GteModel(transformers.GteConfig())
        counts["nomic_bert"]["gte-multilingual-base"] = counted(gte, 250048)
    return counts


def counted(model: torch.nn.Module, vocabulary: int, own_output: bool = False) -> dict[str, int]:
    total = sum(x.numel() for x in model.parameters())  # a shared one once
    biases = (x for name, x in model.named_buffers() if name.endswith("expert_bias"))
    total += sum(x.numel() for x in biases)
    if own_output:
        total += model.lm_head.weight.numel()
    print(type(model).__name__, f"{total:,}")
    return {"vocabulary_size": vocabulary, "parameters": total}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
