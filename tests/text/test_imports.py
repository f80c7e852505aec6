"""The package needs NumPy alone: checked in a process of its own."""

import json
import subprocess
import sys
import textwrap

import pytest

from keras_tfm import text

HEAVY = {"keras", "tensorflow", "jax", "torch"}
# What each public name does without a tf.data.Dataset.
USES = {
    "Batches": "class One(text.Batches):\n"
    "    steps = 1\n"
    "    def batch(self, step):\n"
    "        return {'ids': step}\n"
    "One().map(lambda batch, step: batch).batch(3)",
    "BucketedBatches": "x = text.BucketedBatches({'ids': [[3, 4]]}, [[5]], [2], batch_size=1)\n"
    "x.batch(0), x.padding()",
    "CaptionedImages": "text.CaptionedImages(3, 10, 7)([[5, 2]], np.array([[0, 6]]), 0)",
    "MaskAlignments": "text.MaskAlignments()(np.ones((1, 2, 3), int), 0)",
    "MaskRegions": "x = np.ones((1, 4, 2))\n"
    "text.MaskRegions()({'region_features': x, 'region_classes': x}, 0)",
    "MaskTokens": "text.MaskTokens(50, mask_id=4)(np.array([[20, 21, 0]]), 0)",
    "PackedBatches": "x = text.PackedBatches({'ids': [[3, 4]]}, length=5)\nx.batch(0), x.padding()",
    "Padding": "str(text.Padding(1, 2, 3))",
    "Rows": "text.Rows.of_padded(np.array([[3, 0]])).to_padded([0], 4)",
    "alignment_profile": "text.alignment_profile(np.ones((2, 3), int))",
    "crop_alignment": "text.crop_alignment(np.ones((2, 3), int), 2, 2, np.random.default_rng(0))",
    "encode_alignment": "text.encode_alignment(['AC'])",
    "segment_mask": "text.segment_mask(np.array([[1, 1, 0]]))",
    "teacher_forcing": "text.teacher_forcing([[7, 8]], [[1, 5, 2]])",
    "train_sentence_piece": "text.train_sentence_piece(['low lower', 'new newer'], 24)",
    "train_word_piece": "text.train_word_piece(['low lower', 'new newer'], 40).encode('new')",
}
NEEDED = {"train_sentence_piece": "sentencepiece", "train_word_piece": "tokenizers"}


def test_every_public_name_is_used():
    assert set(USES) == set(text.__all__)


@pytest.mark.parametrize("names", [[x for x in USES if x not in NEEDED], *([x] for x in NEEDED)])
def test_no_keras_and_no_tensorflow(names):
    for name in names:
        if name in NEEDED:
            pytest.importorskip(NEEDED[name])
    script = textwrap.dedent("""
        import json, sys
        import numpy as np
        import keras_tfm.text as text
        {uses}
        print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
    """).format(uses="\n".join(USES[name] for name in names))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages = set(json.loads(done.stdout))
    assert "numpy" in packages
    assert not packages & HEAVY
