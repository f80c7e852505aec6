"""Models of transformers with random weights, loaded here and saved back."""

import re

from keras_tfm import checkpoints

# Tables of token embeddings and biases of logits; not `embed_scale`, a constant of T5Gemma 2.
TABLES = r"shared\.|(embed_tokens|wte|word_embeddings)\.weight|final_logits_bias"


def made(name, options, folder, seed=0, shrunk=1.0):
    """A model of transformers with noise on every parameter, and ours, loaded from its folder.

    `shrunk`: the factor of token embeddings and the bias of logits. With small ones, a decoder
    repeats its last token less often.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    cls = getattr(transformers, name)
    theirs = with_noise(cls(cls.config_class(**options)).eval(), shrunk)
    theirs.save_pretrained(folder)
    return theirs, checkpoints.load_huggingface(folder)


def with_noise(theirs, shrunk=1.0):
    """The model, with noise on every parameter.

    Initial weights have biases of 0 and norms of 1, and are so small that attention hardly depends
    on positions.
    """
    import torch

    with torch.no_grad():
        biases = [x for name, x in theirs.named_buffers() if name == "final_logits_bias"]
        for parameter in (*theirs.parameters(), *biases):
            if parameter.requires_grad or not isinstance(parameter, torch.nn.Parameter):
                parameter.add_(0.3 * torch.randn(parameter.shape))
        for name, parameter in (*theirs.named_parameters(), *theirs.named_buffers()):
            if re.search(TABLES, name):
                parameter.mul_(shrunk)
    return theirs


def saved(model, cls, folder):
    """Our model, saved and loaded by transformers, which must know every tensor."""
    checkpoints.save_huggingface(model, folder)
    again, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return again.eval()
