"""Folders of the TensorFlow classes of transformers 4 give the same outputs.

`tests/parity/make_transformers_tf.py` writes them: `tf_model.h5`, one or several, and safetensors
under the names of TensorFlow.
"""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_tfm.checkpoints import load_huggingface
from keras_tfm.checkpoints.tensors import Tensors

FOLDERS = Path(__file__).parents[2] / "tests/parity/transformers_tf"
IDS = np.array([[3, 4, 5, 6]])
OF_CLIP = np.array([[3, 4, 5, 19]])
# As the preprocessors of transformers make them; a model here takes values from 0 to 255.
PICTURES = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("float32")
SOUND = np.random.default_rng(0).normal(size=(1, 200)).astype("float32")


def pixels(model):
    mean, deviation = (np.array(model.arguments[f"image_{x}"]) for x in ("mean", "std"))
    return 255 * (PICTURES.transpose(0, 2, 3, 1) * deviation + mean)


def similarities(outputs):
    """CLIP's logits of pictures for each text."""
    return outputs["text_embedding"] @ np.transpose(outputs["image_embedding"]) * outputs["scale"]


CASES = {
    "bert": lambda model: model({"tokens": IDS, "segments": np.zeros_like(IDS)}),
    "gpt2": lambda model: model(IDS),
    "t5": lambda model: model({"source": IDS, "target": IDS}),
    "albert": lambda model: model({"tokens": IDS, "segments": np.zeros_like(IDS)}),
    "distilbert": lambda model: model({"tokens": IDS}),
    "marian": lambda model: model({"source": IDS, "target": IDS}),
    "resnet": lambda model: model(pixels(model)),
    "wav2vec2": lambda model: model({"audio": SOUND}),
    "clip": lambda model: similarities(model({"tokens": OF_CLIP, "pixels": pixels(model)})),
}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_gives_the_outputs_of_the_tensorflow_class(name):
    options = {"image_size": 32} if name == "resnet" else {}
    found = np.asarray(CASES[name](load_huggingface(FOLDERS / name, **options)))
    expected = np.load(FOLDERS / name / "logits.npy")
    # float32, with sums in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * abs(expected).max())


def copied(tmp_path, name):
    return Path(shutil.copytree(FOLDERS / name, tmp_path / name))


def test_the_name_of_the_tensorflow_class(tmp_path):
    folder = copied(tmp_path, "bert")
    fields = json.loads((folder / "config.json").read_text())
    fields["architectures"] = ["TFBertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(fields))
    assert load_huggingface(folder).head.kind == "sequence_classifier"


def test_safetensors_with_an_index(tmp_path):
    """The index has TensorFlow's names, as the file does."""
    folder = copied(tmp_path, "marian")
    file = folder / "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(file)
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    del header["__metadata__"]
    index = json.dumps({"weight_map": dict.fromkeys(header, file.name)})
    (folder / "model.safetensors.index.json").write_text(index)
    assert Tensors(folder).keys() == Tensors(FOLDERS / "marian").keys()


def test_a_file_of_several_is_missing(tmp_path):
    folder = copied(tmp_path, "distilbert")
    (folder / "tf_model-00002-of-00002.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .*00002-of.* in tf_model\.h5\.index\.json"):
        Tensors(folder)


def with_weights(path, **options):
    """A file of one variable."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [b"bert"]
        group = file.create_group("bert")
        group.attrs["weight_names"] = [b"model/bert/kernel:0"]
        group.create_dataset("model/bert/kernel:0", (2, 3), **{"dtype": "float32", **options})
        group["model/bert/kernel:0"][:] = 1


DAMAGED = {
    "no HDF5": (lambda path: path.write_bytes(b"\x80\x02J\1"), ""),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:3000]), "truncated"),
    "no weights": (lambda path: h5py.File(path, "w").close(), "no attribute 'layer_names'"),
    "compressed": (lambda path: with_weights(path, compression="gzip"), "chunks or compressed"),
    "complex": (lambda path: with_weights(path, dtype="complex64"), "dtype complex64"),
    "big-endian": (lambda path: with_weights(path, dtype=">f4"), "dtype >f4"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused(change, message, tmp_path):
    folder = copied(tmp_path, "bert")
    change(folder / "tf_model.h5")
    expected = rf"tf_model\.h5 is not weights of a TensorFlow class of transformers: .*{message}"
    with pytest.raises(ValueError, match=expected):
        Tensors(folder)


def test_other_formats_come_first(tmp_path):
    folder = copied(tmp_path, "bert")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is not a state_dict"):
        Tensors(folder)
