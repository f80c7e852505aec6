"""python tests/parity/make_torch_fixture.py  (needs: pip install torch==2.13.0 numpy)

Writes torch_transformer.npz beside this file: what `torch.nn.Transformer` makes of random weights
and inputs, once with norm_first=False ("post") and once with norm_first=True ("pre"). Parameters
and inputs are random float32 numbers, so that they are exact in either precision; torch computes
with them in float64 and the expected values are stored as float64.

Keys of the file:
    source (B, S, D), target (B, T, D)  float inputs: no embedding, no positions
    source_mask (B, S)                  bool, True = attend (torch's masks are the inverse);
                                        for the encoder's keys and cross-attention's alike
    num_heads, epsilon                  scalars
    base_parameter_count                of torch.nn.Transformer(512, 8, 6, 6, 2048)
    torch_version
    {post,pre}/context (B, S, D)        the encoder's output; padded positions are undefined
    {post,pre}/output (B, T, D)         the decoder's output
    {post,pre}/<state_dict name>        torch's layout: a Linear's weight is (out, in), and
                                        in_proj_weight (3*D, D) stacks query, key and value
The decoder's self-attention is causal. torch puts a norm after both stacks in both cases.
"""

import warnings
from pathlib import Path

import numpy as np
import torch

DIM = 12
NUM_HEADS = 3
NUM_ENCODER_LAYERS = 2
NUM_DECODER_LAYERS = 3
INTERMEDIATE_DIM = 20
EPSILON = 1e-5
SOURCE_LENGTHS = (7, 4, 2)  # of S = 7 keys: no row is padded alike, none is padded throughout
SOURCE_LENGTH, TARGET_LENGTH = 7, 5
BASE_PARAMETER_COUNT = 44_140_544

FIXTURE = Path(__file__).with_name("torch_transformer.npz")


def random_parameter(rng, name, shape):
    """Nothing is left at 0 or 1, and scores are wide enough that attention is far from uniform."""
    if len(shape) == 2:
        values = rng.normal(scale=1.5 / np.sqrt(shape[1]), size=shape)
    elif "norm" in name and name.endswith("weight"):
        values = rng.normal(loc=1.0, scale=0.3, size=shape)
    else:
        values = rng.normal(scale=0.3, size=shape)
    return values.astype(np.float32)


def run_case(rng, source, target, source_mask, norm_first):
    """A model with random parameters, run once: its parameters, context and output by key."""
    model = torch.nn.Transformer(
        d_model=DIM,
        nhead=NUM_HEADS,
        num_encoder_layers=NUM_ENCODER_LAYERS,
        num_decoder_layers=NUM_DECODER_LAYERS,
        dim_feedforward=INTERMEDIATE_DIM,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=EPSILON,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    parameters = {
        name: random_parameter(rng, name, tuple(value.shape))
        for name, value in model.state_dict().items()
    }
    model.load_state_dict({name: torch.from_numpy(p) for name, p in parameters.items()})
    model.eval()

    source, target = (torch.from_numpy(x).to(torch.float64) for x in (source, target))
    padding = torch.from_numpy(~source_mask)
    future = torch.ones(TARGET_LENGTH, TARGET_LENGTH, dtype=torch.bool).triu(diagonal=1)
    with torch.no_grad():
        context = model.encoder(source, src_key_padding_mask=padding)
        output = model(
            source,
            target,
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
    return {**parameters, "context": context.numpy(), "output": output.numpy()}


def base_parameter_count():
    """Parameters of the paper's base model without its embeddings."""
    # The meta device has shapes and no memory: 44 million numbers need not be made to be counted.
    model = torch.nn.Transformer(512, 8, 6, 6, 2048, device="meta")
    return sum(parameter.numel() for parameter in model.parameters())


def main():
    # The fused inference kernels zero padded positions and are no more exact: take the plain path.
    torch.backends.mha.set_fastpath_enabled(False)
    warnings.filterwarnings("ignore", "enable_nested_tensor")
    rng = np.random.default_rng(2017)
    batch = len(SOURCE_LENGTHS)
    source = rng.normal(size=(batch, SOURCE_LENGTH, DIM)).astype(np.float32)
    target = rng.normal(size=(batch, TARGET_LENGTH, DIM)).astype(np.float32)
    source_mask = np.arange(SOURCE_LENGTH) < np.array(SOURCE_LENGTHS)[:, np.newaxis]

    count = base_parameter_count()
    print(f"torch.nn.Transformer(512, 8, 6, 6, 2048) has {count:,} parameters")
    if count != BASE_PARAMETER_COUNT:
        raise SystemExit(f"expected {BASE_PARAMETER_COUNT:,} parameters, torch has {count:,}")

    arrays = {
        "source": source,
        "target": target,
        "source_mask": source_mask,
        "num_heads": np.array(NUM_HEADS),
        "epsilon": np.array(EPSILON),
        "base_parameter_count": np.array(count),
        "torch_version": np.array(torch.__version__),
    }
    for case, norm_first in (("post", False), ("pre", True)):
        results = run_case(rng, source, target, source_mask, norm_first)
        arrays.update({f"{case}/{key}": value for key, value in results.items()})
    np.savez_compressed(FIXTURE, **arrays)
    print(f"{FIXTURE}: {len(arrays)} arrays, {FIXTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
