"""Triangle layers beside ESMFold's code in transformers: random weights, odd sizes, padding."""

from types import SimpleNamespace

import numpy as np
import openfold_weights
import pytest
from compare import assert_close, to_numpy

from keras_tfm.layers import PairEmbedding, TriangleAttention, TriangleMultiplication

torch = pytest.importorskip("torch")
esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold")

# The bound: float32 in both, sums of up to 13 terms.
CLOSE = 1e-5
N, E = 13, 14
RNG = np.random.default_rng(5)
Z = RNG.normal(size=(2, N, N, E)).astype("float32")
SEEN = np.arange(N) < np.array([[N], [8]])
MASK = SEEN[:, :, None] & SEEN[:, None, :]


def noisy(module, seed):
    """With noise on every parameter, of which many start as zeros and ones."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return module.eval()


def assert_same(layer, theirs, mapping):
    layer.build(Z.shape)
    state = {f"x.{name}": x.numpy() for name, x in theirs.state_dict().items()}
    mapping(layer, state, "x")
    with torch.no_grad():
        expected = theirs(torch.tensor(Z), mask=torch.tensor(MASK).float()).numpy()
        whole = theirs(torch.tensor(Z)).numpy()
    assert_close(to_numpy(layer(Z, mask=MASK))[MASK], expected[MASK], CLOSE)
    assert_close(layer(Z), whole, CLOSE)


@pytest.mark.parametrize("ending", [False, True])
def test_triangle_attention(ending):
    theirs = noisy(esmfold.EsmFoldTriangleAttention(E, 5, 3, starting=not ending), seed=1)
    assert_same(TriangleAttention(3, 5, ending), theirs, openfold_weights.triangle_attention)


@pytest.mark.parametrize("incoming", [False, True])
def test_triangle_multiplication(incoming):
    config = SimpleNamespace(pairwise_state_dim=E)
    theirs = esmfold.EsmFoldTriangleMultiplicativeUpdate(config, _outgoing=not incoming)
    layer = TriangleMultiplication(incoming=incoming)
    assert_same(layer, noisy(theirs, seed=2), openfold_weights.triangle_multiplication)


def test_relative_positions():
    """ESMFold's table has a row 0 for masked pairs before those of the distances, of j - i."""
    config = SimpleNamespace(position_bins=4, pairwise_state_dim=E)
    theirs = noisy(esmfold.EsmFoldRelativePosition(config), seed=3)
    layer = PairEmbedding(vocabulary_size=2, dim=E, max_distance=4)
    index = np.cumsum(RNG.integers(1, 3, size=(2, N)), axis=1).astype("int32")
    layer.build((2, N), (2, N))
    layer.left.embeddings.assign(np.zeros((2, E)))
    layer.right.embeddings.assign(np.zeros((2, E)))
    layer.positions.assign(theirs.embedding.weight.detach().numpy()[:0:-1])
    with torch.no_grad():
        expected = theirs(torch.tensor(index).long()).numpy()
    assert_close(layer(np.ones((2, N), "int32"), index), expected, CLOSE)
