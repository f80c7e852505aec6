"""Models of transformers with random weights, loaded here and saved back."""

from keras_tfm import checkpoints


def made(name, options, folder, seed=0):
    """A model of transformers with noise on every parameter, and ours, loaded from its folder."""
    import torch
    import transformers

    torch.manual_seed(seed)
    cls = getattr(transformers, name)
    theirs = cls(cls.config_class(**options)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    theirs.save_pretrained(folder)
    return theirs, checkpoints.load_huggingface(folder)


def saved(model, cls, folder):
    """Our model, saved and loaded by transformers, which must know every tensor."""
    checkpoints.save_huggingface(model, folder)
    again, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return again.eval()
