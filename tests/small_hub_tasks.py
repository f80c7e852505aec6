"""Small tasks of KerasHub with vocabularies of real text: a classifier and three that write."""

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


def short_texts(task, count):
    """Real lines of a few tokens, with capital letters and accents."""
    found = (x for x in lines()[200:] if len(task.preprocessor.tokenizer(x)) < 20)
    return [x for x, _ in zip(found, range(count), strict=False)]
