"""Small tasks of KerasHub with vocabularies of real text: a classifier and some that write."""

import numpy as np
import pytest
from real_lines import byte_pairs, lines, sentence_pieces, word_pieces

hub = pytest.importorskip("keras_hub").models  # a test module that imports this is skipped

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
LENGTH = 48


def add_noise(model, seed=0):
    """Weights with which the logits differ, and biases that are not 0."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def classifier(**options):
    words = word_pieces()
    bert = hub.BertBackbone(vocabulary_size=len(words), max_sequence_length=64, **SIZES)
    tokenizer = hub.BertTokenizer(words, lowercase=True)
    preprocessor = hub.BertTextClassifierPreprocessor(tokenizer, sequence_length=LENGTH)
    return add_noise(hub.BertTextClassifier(bert, 3, preprocessor=preprocessor, **options))


def gpt2():
    vocabulary, merges = byte_pairs("<pad>", "<|endoftext|>")  # KerasHub pads with 0
    tokenizer = hub.GPT2Tokenizer(vocabulary, merges)
    backbone = hub.GPT2Backbone(len(vocabulary), max_sequence_length=LENGTH, **SIZES)
    preprocessor = hub.GPT2CausalLMPreprocessor(tokenizer)  # of 1024 tokens
    return add_noise(hub.GPT2CausalLM(backbone, preprocessor))


def t5():
    tokenizer = hub.T5Tokenizer(sentence_pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    backbone = hub.T5Backbone(tokenizer.vocabulary_size(), tie_embedding_weights=True, **SIZES)
    lengths = {"encoder_sequence_length": LENGTH, "decoder_sequence_length": 12}
    return add_noise(hub.T5Seq2SeqLM(backbone, hub.T5Seq2SeqLMPreprocessor(tokenizer, **lengths)))


def bart():
    vocabulary, merges = byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    backbone = hub.BartBackbone(len(vocabulary), max_sequence_length=LENGTH, **SIZES)
    lengths = {"encoder_sequence_length": LENGTH, "decoder_sequence_length": 12}
    tokenizer = hub.BartTokenizer(vocabulary, merges)
    preprocessor = hub.BartSeq2SeqLMPreprocessor(tokenizer, **lengths)
    return add_noise(hub.BartSeq2SeqLM(backbone, preprocessor))


def gemma_pieces(*symbols):
    """A SentencePiece model of BPE, with the special tokens of Gemma's."""
    return sentence_pieces(
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", bos_piece="<bos>",
        eos_piece="<eos>", model_type="bpe", byte_fallback=True, add_dummy_prefix=False,
        user_defined_symbols=list(symbols), normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip


# The widths of the decoders with grouped heads.
GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 24}


def gemma4():
    tokenizer = hub.Gemma4Tokenizer(
        gemma_pieces("<|turn>", "<turn|>"), has_vision_tokens=False, has_video_tokens=False
    )
    backbone = hub.Gemma4Backbone(
        tokenizer.vocabulary_size(), 16, num_layers=3, head_dim=8, global_head_dim=16,
        sliding_window_size=5, sliding_window_pattern=2, num_kv_shared_layers=1,
        hidden_size_per_layer_input=32, global_rope_partial_rotary_factor=0.25, **GROUPED,
    )  # fmt: skip
    preprocessor = hub.Gemma4CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    return add_noise(hub.Gemma4CausalLM(preprocessor, backbone))


def qwen3_5():
    vocabulary, merges = byte_pairs("<|endoftext|>", "<|im_end|>", "<|im_start|>")
    tokenizer = hub.Qwen3_5Tokenizer(vocabulary, merges, has_vision_tokens=False)
    backbone = hub.Qwen3_5Backbone(
        len(vocabulary), num_layers=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"], **GROUPED,
    )  # fmt: skip
    preprocessor = hub.Qwen3_5CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    return add_noise(hub.Qwen3_5CausalLM(backbone, preprocessor), seed=1)


def t5gemma_backbone(name, size, **more):
    """A `T5GemmaBackbone` or `T5Gemma2Backbone`."""
    sizes = {
        "hidden_dim": 32, "intermediate_dim": 24, "num_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    stacks = {f"{x}_{key}": value for x in ("encoder", "decoder") for key, value in sizes.items()}
    arguments = {**stacks, "sliding_window": 5, "query_pre_attn_scalar": 8.0, **more}
    return getattr(hub, f"{name}Backbone")(size, **arguments)


def t5gemma(name="T5Gemma", seed=0):
    tokenizer = getattr(hub, f"{name}Tokenizer")(gemma_pieces())
    lengths = {"encoder_sequence_length": LENGTH, "decoder_sequence_length": 12}
    preprocessor = getattr(hub, f"{name}Seq2SeqLMPreprocessor")(tokenizer, **lengths)
    backbone = t5gemma_backbone(name, tokenizer.vocabulary_size())
    return add_noise(getattr(hub, f"{name}Seq2SeqLM")(backbone, preprocessor), seed)


def t5gemma2():
    """Its two tables are one in the original, and here."""
    task = t5gemma("T5Gemma2", seed=4)  # it writes several tokens
    tables = task.backbone.token_embedding, task.backbone.decoder_token_embedding
    tables[0].embeddings.assign(tables[1].embeddings)
    return task


def short_texts(task, count):
    """Real lines of a few tokens, with capital letters and accents."""
    found = (x for x in lines()[200:] if len(task.preprocessor.tokenizer(x)) < 20)
    return [x for x, _ in zip(found, range(count), strict=False)]
