"""Writes openfold.npz: what blocks of openfold compute from random weights, masks and inputs.

python tests/parity/make_openfold_fixture.py FOLDER    # a checkout of openfold (Apache-2.0)

Run outside of the tests, once, with openfold of commit ce0029e (September 2025) and PyTorch 2.13 on
a CPU. openfold imports extensions for GPUs, which the functions run here do not call; empty modules
take their place. Weights and inputs are random, no trained ones: float32 values, with which
openfold computes in float64. The file holds, for an Evoformer block and a block of the extra stack,
every weight under openfold's name, the inputs, and the results.
"""

import sys
import types
from pathlib import Path

import numpy as np
import torch

# Odd sizes, a different one for each axis: sequences, residues, widths, heads.
ROWS, LENGTH = 5, 7
SIZES = {
    "c_m": 10, "c_z": 6, "c_hidden_msa_att": 3, "c_hidden_opm": 4, "c_hidden_mul": 8,
    "c_hidden_pair_att": 5, "no_heads_msa": 2, "no_heads_pair": 3, "transition_n": 2,
    "msa_dropout": 0.15, "pair_dropout": 0.25, "opm_first": False,
    "fuse_projection_weights": False, "inf": 1e9, "eps": 1e-10,
}  # fmt: skip


class Empty(types.ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def blocks(folder):
    """The block of the trunk and that of the extra stack."""
    sys.path.insert(0, folder)
    for name in ("attn_core_inplace_cuda", "dllogger", "ml_collections"):
        sys.modules.setdefault(name, Empty(name))
    from openfold.model.evoformer import EvoformerBlock, ExtraMSABlock

    torch.manual_seed(3)
    return {
        "block": EvoformerBlock(**SIZES, no_column_attention=False),
        "extra": ExtraMSABlock(**SIZES, ckpt=False),
    }


def main():
    arrays, rng = {}, np.random.default_rng(5)
    m = rng.normal(size=(2, ROWS, LENGTH, SIZES["c_m"])).astype("float32")
    z = rng.normal(size=(2, LENGTH, LENGTH, SIZES["c_z"])).astype("float32")
    mask = np.ones((2, ROWS, LENGTH), bool)
    mask[0, 3, 4:] = False  # a short sequence
    mask[1, :, 5:], mask[1, 4:] = False, False  # padded residues, a padded row
    arrays |= {"m": m, "z": z, "mask": mask}
    pair_mask = mask[:, 0, :, None] & mask[:, 0, None, :]
    for kind, block in blocks(sys.argv[1]).items():
        block = block.eval()
        with torch.no_grad():
            for parameter in block.parameters():  # zeros and ones, too
                parameter.copy_((parameter + 0.3 * torch.randn(parameter.shape)).float())
            arrays |= {f"{kind}/{name}": x.numpy() for name, x in block.state_dict().items()}
            tensors = [torch.tensor(x).double() for x in (m, z, mask, pair_mask)]
            # The extra block's default attention is a kernel for GPUs in float32.
            plain = {"use_lma": True} if kind == "extra" else {}
            of_m, of_z = block.double()(*tensors, _mask_trans=False, **plain)
        arrays |= {f"{kind}_m": of_m.numpy(), f"{kind}_z": of_z.numpy()}
    np.savez_compressed(Path(__file__).parent / "openfold.npz", **arrays)
    print({name: x.shape for name, x in arrays.items() if "/" not in name})


if __name__ == "__main__":
    main()
