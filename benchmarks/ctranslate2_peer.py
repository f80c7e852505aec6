"""CTranslate2 as a peer: the same weights, decoded by another engine.

A contestant of benchmarks/generation.py, and of benchmarks/prefill.py with decoder-only models.

The model is the Transformer of Vaswani et al. 2017 (arXiv:1706.03762): embeddings times sqrt(D),
plus PE(p,2i) = sin(p / 10000^(2i/D)), PE(p,2i+1) = cos of the same angle, p from 0; relu; layer
norm epsilon 1e-5; head h owns the columns h*D/H ... (h+1)*D/H - 1 of query, key and value.
Weights are a nested dict of float32 arrays; kernels are (inputs, outputs), as in Keras `Dense`:

    source_embedding (V_source,D), target_embedding (V,D), output (D,V)
    encoder, decoder    lists of layers, each with
        self_attention, in the decoder cross_attention: query, ..., output (D,D); query_bias, ...
        feed_forward: inner (D,F), inner_bias (F,), outer (F,D), outer_bias (D,)
        self_attention_norm, cross_attention_norm, feed_forward_norm: gamma, beta (D,)
    encoder_norm, decoder_norm    gamma, beta (D,), or None

Tokens are the decimal strings of their ids.  Nothing is added to the source and nothing in it is
masked (CTranslate2 masks by length): a padding id counts as an ordinary token.
"""

import json
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec

from keras_tfm.layers.positions.sinusoids import angular_frequencies, exact_sinusoids

MAX_POSITIONS = 2048
LAYER_NORM_EPSILON = 1e-5


def _copy(array):
    # C order, and never the caller's array: int8 quantization scales the spec's arrays in place.
    return np.array(array, "float32", order="C")


def _set_linear(spec, weights, name):
    spec.weight = _copy(weights[name].T)
    if f"{name}_bias" in weights:
        spec.bias = _copy(weights[f"{name}_bias"])


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _copy(norm["gamma"]), _copy(norm["beta"])


def _set_attention(spec, layer, name):
    """Fills `spec.linear`: [query+key+value, output], or [query, key+value, output] for cross."""
    projections = [common_spec.LinearSpec() for _ in range(3)]
    for projection, part in zip(projections, ("query", "key", "value"), strict=True):
        _set_linear(projection, layer[name], part)
    if len(spec.linear) == 3:
        spec.linear[0] = projections.pop(0)
    utils.fuse_linear(spec.linear[-2], projections)
    _set_linear(spec.linear[-1], layer[name], "output")
    _set_norm(spec.layer_norm, layer[f"{name}_norm"])


def _set_stack(spec, embeddings, table, layers, final_norm, rotary=False):
    embeddings.weight = _copy(table)
    if not rotary:
        spec.position_encodings.encodings = _copy(
            exact_sinusoids(
                np.arange(MAX_POSITIONS), angular_frequencies(table.shape[1], 10000.0)
            ).reshape(MAX_POSITIONS, -1)
        )
    elif hasattr(spec, "position_encodings"):  # An encoder adds some to rotary ones, too.
        spec.position_encodings.encodings = _copy(np.zeros((MAX_POSITIONS, table.shape[1])))
    for layer_spec, layer in zip(spec.layer, layers, strict=True):
        _set_attention(layer_spec.self_attention, layer, "self_attention")
        if "cross_attention" in layer:
            _set_attention(layer_spec.attention, layer, "cross_attention")
        _set_linear(layer_spec.ffn.linear_0, layer["feed_forward"], "inner")
        _set_linear(layer_spec.ffn.linear_1, layer["feed_forward"], "outer")
        _set_norm(layer_spec.ffn.layer_norm, layer["feed_forward_norm"])
    if final_norm is not None:
        _set_norm(spec.layer_norm, final_norm)


def weights_of(model):
    """The weights of a `keras_tfm.models.transformer`, as `write_model` takes them."""

    def dense(layer, name):
        return {name: np.array(layer.kernel), f"{name}_bias": np.array(layer.bias)}

    def norm(residual):
        layer = residual.input_norm or residual.sum_norm
        return {"gamma": np.array(layer.gamma), "beta": np.array(layer.beta)}

    def block(layer):
        attention = layer.self_attention
        kernels = np.split(np.array(attention.query_key_value.kernel), 3, axis=1)
        biases = np.split(np.array(attention.query_key_value.bias), 3)
        parts = {"self_attention": dense(attention.output_projection, "output")}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            parts["self_attention"] |= {name: kernel, f"{name}_bias": bias}
        parts["self_attention_norm"] = norm(layer.self_attention_residual)
        cross = getattr(layer, "cross_attention", None)
        if cross is not None:
            parts["cross_attention"] = dense(cross.output_projection, "output")
            for name in ("query", "key", "value"):
                parts["cross_attention"] |= dense(getattr(cross, name), name)
            parts["cross_attention_norm"] = norm(layer.cross_attention_residual)
        feed_forward = layer.feed_forward
        parts["feed_forward"] = dense(feed_forward.inner, "inner")
        parts["feed_forward"] |= dense(feed_forward.outer, "outer")
        parts["feed_forward_norm"] = norm(layer.feed_forward_residual)
        return parts

    names = [layer.name for layer in model.layers]
    source, target = (
        np.array(model.get_layer(name if name in names else "embedding").embeddings)
        for name in ("source_embedding", "target_embedding")
    )
    return {
        "source_embedding": source,
        "target_embedding": target,
        "output": target.T,
        **{
            stack: [
                block(layer)
                for layer in model.layers
                if layer.name.startswith(f"{stack}_") and not layer.name.endswith("norm")
            ]
            for stack in ("encoder", "decoder")
        },
        **{
            name: norm(model.get_layer(name)) if name in names else None
            for name in ("encoder_norm", "decoder_norm")
        },
    }


def write_model(
    weights, path, *, num_heads, normalize_first, quantization=None, start_id=1, rotary=False
):
    """Writes `weights` (see the module) as a CTranslate2 model to the new or empty folder `path`.

    quantization None stores float32; "int8" stores int8.  Either can be loaded under any compute
    type: CTranslate2 converts on load.  `start_id` is the first decoder input.  rotary: whether
    positions are rotary, as `RotaryEmbedding()`, instead of sinusoids.
    """
    encoder_norm, decoder_norm = weights["encoder_norm"], weights["decoder_norm"]
    if not normalize_first and (encoder_norm or decoder_norm):  # The specs have no place for them.
        raise ValueError("normalize_first=False expects encoder_norm and decoder_norm to be None")
    source, target = weights["source_embedding"], weights["target_embedding"]
    if not 0 <= start_id < len(target):  # CTranslate2 would take an unknown token for id 0.
        raise ValueError(f"expected start_id in [0, {len(target)}), received {start_id}")
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):  # A left-over vocabulary file would take part in the new model.
        raise FileExistsError(f"expected a new or an empty folder, received {path}")

    positions = {}
    if rotary:
        positions = {"rotary_dim": target.shape[1] // num_heads, "rotary_interleave": False}
    # Not TransformerSpec.from_config: it has one no_final_norm for both stacks.
    encoder = transformer_spec.TransformerEncoderSpec(
        len(weights["encoder"]),
        num_heads,
        normalize_first,
        no_final_norm=encoder_norm is None,
        **positions,
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        len(weights["decoder"]),
        num_heads,
        normalize_first,
        no_final_norm=decoder_norm is None,
        **positions,
    )
    _set_stack(encoder, encoder.embeddings[0], source, weights["encoder"], encoder_norm, rotary)
    _set_stack(decoder, decoder.embeddings, target, weights["decoder"], decoder_norm, rotary)
    _set_linear(decoder.projection, weights, "output")

    spec = transformer_spec.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary([str(i) for i in range(len(source))])
    spec.register_target_vocabulary([str(i) for i in range(len(target))])
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.config.decoder_start_token = str(start_id)
    # bos_token and eos_token stay "<s>" and "</s>", which are in no vocabulary: no id is special,
    # and neither is added to the source.  An absent unk_token would be appended to the vocabulary.
    spec.config.unk_token = "0"
    spec.config.add_attribute("source_vocabulary_size", len(source))  # For CTranslate2Decoder.
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(path))


def write_decoder(weights, path, *, num_heads):
    """Writes a decoder-only model, post-norm, to the new folder `path`."""
    decoder = transformer_spec.TransformerDecoderSpec(
        len(weights["decoder"]),
        num_heads,
        pre_norm=False,
        no_final_norm=True,
        with_encoder_attention=False,
    )
    table = weights["target_embedding"]
    _set_stack(decoder, decoder.embeddings, table, weights["decoder"], None)
    _set_linear(decoder.projection, weights, "output")
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    spec.register_vocabulary([str(i) for i in range(len(table))])
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.config.unk_token = "0"
    spec.validate()
    spec.optimize()
    Path(path).mkdir(parents=True)
    spec.save(str(path))


class CTranslate2Generator:
    """Reads a prompt with a model of `write_decoder`, and chooses the first token greedily."""

    def __init__(self, path, compute_type: str, threads: int = 1):
        self.generator = ctranslate2.Generator(
            str(path), compute_type=compute_type, inter_threads=1, intra_threads=threads
        )

    def __call__(self, prompt: list[int]) -> int:
        (result,) = self.generator.generate_batch(
            [[str(i) for i in prompt]],
            max_length=1,
            sampling_topk=1,
            end_token=[],
            include_prompt_in_result=False,
        )
        return int(result.sequences[0][0])


class CTranslate2Decoder:
    """Decodes one sequence at a time, with a beam of 1 greedily; "float32" or "int8"."""

    def __init__(self, path, compute_type: str, threads: int = 1, beam: int = 1):
        config = json.loads(Path(path, "config.json").read_text())
        self.vocabulary_size, self.beam = config["source_vocabulary_size"], beam
        self.translator = ctranslate2.Translator(
            str(path), compute_type=compute_type, inter_threads=1, intra_threads=threads
        )

    def __call__(self, source_ids: list[int], num_tokens: int, end_id: int | None = None):
        """source_ids (S,) -> the ids after the start token, num_tokens of them.

        With `end_id` it stops there, and the list ends before it: num_tokens is the most.
        """
        # CTranslate2 would read an unknown token as id 0, and skip an empty source.
        if not (source_ids and 0 <= min(source_ids) <= max(source_ids) < self.vocabulary_size):
            raise ValueError(f"expected ids in [0, {self.vocabulary_size}), received {source_ids}")
        (result,) = self.translator.translate_batch(
            [[str(i) for i in source_ids]],
            beam_size=self.beam,
            length_penalty=0.0,  # Hypotheses are equally long.
            # []: nothing stops the search, no logit is masked.
            end_token=[] if end_id is None else str(end_id),
            max_decoding_length=num_tokens,
            max_input_length=0,  # Never truncate.
        )
        return [int(token) for token in result.hypotheses[0]]
