"""Folders with `pytorch_model.bin`: what `torch.save` writes, and what a pickle must not do."""

import io
import json
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from huggingface_cases import FOLDER
from small_checkpoints import copied, tensors_of

from keras_tfm.checkpoints import load_huggingface
from keras_tfm.checkpoints.tensors import Tensors

CLASSES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage"}


def text(x):
    return b"X" + struct.pack("<I", len(x)) + x.encode()


def numbers(values):
    return b"(" + b"".join(b"J" + struct.pack("<i", x) for x in values) + b"t"


def pickled(arrays, offset=0):
    """The pickle of a dictionary of tensors, opcode by opcode, as torch writes it."""
    content = b"\x80\x02}"
    for key, (name, array) in enumerate(arrays.items()):
        storage = b"(" + text("storage") + f"ctorch\n{CLASSES[array.dtype.name]}\n".encode()
        storage += text(str(key)) + text("cpu") + b"J" + struct.pack("<i", array.size) + b"tQ"
        steps = [x // array.itemsize for x in array.strides]
        content += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage
        content += b"J" + struct.pack("<i", offset) + numbers(array.shape) + numbers(steps)
        content += b"\x89ccollections\nOrderedDict\n)RtRs"
    return content + b"."


def torch_zip(path, arrays, content=None, compression=zipfile.ZIP_STORED, order=b"little"):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content or pickled(arrays))
        archive.writestr("archive/byteorder", order)
        for key, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{key}", array.tobytes("A"))


ARRAYS = {"a": np.arange(6, dtype="float32").reshape(2, 3)}


def test_a_folder_without_safetensors_gives_the_same_weights(tmp_path):
    folder = copied(tmp_path, "gpt2")
    arrays = {name: np.asarray(x, order="F") for name, x in tensors_of(folder).items()}
    (folder / "model.safetensors").unlink()
    torch_zip(folder / "pytorch_model.bin", arrays)
    (folder / "training_args.bin").write_bytes(b"not read")
    found, expected = load_huggingface(folder), load_huggingface(FOLDER / "gpt2")
    for x, y in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_several_files_with_an_index(tmp_path):
    folder = copied(tmp_path, "gpt2")
    arrays = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    places = {name: f"pytorch_model-0000{1 + i % 2}-of-2.bin" for i, name in enumerate(arrays)}
    for file in set(places.values()):
        torch_zip(folder / file, {name: arrays[name] for name in arrays if places[name] == file})
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    found = load_huggingface(folder)
    np.testing.assert_array_equal(
        found.get_weights()[0], load_huggingface(FOLDER / "gpt2").get_weights()[0]
    )
    (folder / places["lm_head.weight" if "lm_head.weight" in places else min(places)]).unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .* in pytorch_model\.bin\.index\.json"):
        load_huggingface(folder)


def test_safetensors_come_first(tmp_path):
    folder = copied(tmp_path, "gpt2")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert {x.file.name for x in Tensors(folder).values()} == {"model.safetensors"}


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model.safetensors, pytorch_model.bin or tf_"):
        Tensors(tmp_path)


# What a pickle could run; none of it is.
CALLS = {
    "a program": b"\x80\x02cos\nsystem\n(X\x05\x00\x00\x00touchtR.",
    "a built-in": b"\x80\x02c__builtin__\neval\n(X\x01\x00\x00\x001tR.",
    "a module": b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81.",
    "in place of a storage": pickled(ARRAYS).replace(b"ctorch\nFloat", b"cposix\nFloat"),
    "complex numbers": pickled(ARRAYS).replace(b"\nFloat", b"\nComplexFloat"),
}


@pytest.mark.parametrize("content", CALLS.values(), ids=CALLS)
def test_a_pickle_runs_nothing(content, tmp_path):
    for write in (lambda path: torch_zip(path, ARRAYS, content), lambda x: x.write_bytes(content)):
        write(tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"not a state_dict .* which is no tensor of numbers"):
            Tensors(tmp_path)


def changed(**options):
    file = io.BytesIO()
    torch_zip(file, ARRAYS, **options)
    return file.getvalue()


DAMAGED = {
    "empty": (b"", "no zip and no pickle"),
    "safetensors": (b"\x08\0\0\0\0\0\0\0{}      ", "no zip and no pickle"),
    "cut": (changed()[:-30], "BadZipFile"),
    "another zip": (b"PK\x05\x06" + b"\0" * 18, "no zip and no pickle"),
    "another pickle": (b"\x80\x02J\1\0\0\0.", "pickle of something else"),
    "cut pickle": (b"\x80\x02J\1", "truncated"),
    "compressed": (changed(compression=zipfile.ZIP_DEFLATED), "compressed"),
    "big-endian": (changed(order=b"big"), "big-endian"),
    "a list": (changed(content=b"\x80\x02]."), "object of type list"),
    "a number": (changed(content=b"\x80\x02}X\1\0\0\0aJ\1\0\0\0s."), "'a' in it is of type int"),
    "a number's name": (changed(content=b"\x80\x02}J\1\0\0\0J\1\0\0\0s."), "1 in it is of type"),
    "outside": (changed(content=pickled(ARRAYS, offset=1)), "a ends at byte 28 of a storage of 24"),
    "before": (changed(content=pickled(ARRAYS, offset=-1)), "shape"),
    "no storage": (changed(content=pickled({**ARRAYS, "b": ARRAYS["a"]})), "KeyError"),
}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tf_model.h5"])
def test_a_pointer_in_place_of_a_file(name, tmp_path):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 12\n")
    with pytest.raises(ValueError, match=rf"{name} is a pointer of Git LFS, .*`git lfs pull`"):
        Tensors(tmp_path)


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused(content, message, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=rf"pytorch_model.bin is not a state_dict .*{message}"):
        Tensors(tmp_path)


@pytest.mark.parametrize("is_zip", [True, False], ids=["now", "before 1.6"])
def test_files_of_torch(is_zip, tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    tensors = {
        "whole": x,
        "transposed": x.T,
        "part": x[1:3, 2:5],
        "permuted": torch.arange(12.0).reshape(4, 1, 3).permute(2, 1, 0),
        "expanded": torch.ones(1).expand(3, 4),
        "parameter": torch.nn.Parameter(x.double()),
        "half": x.half(),
        "bfloat16": x.bfloat16(),
        "number": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
        "ids": torch.arange(5),
        "levels": torch.arange(5, dtype=torch.int8),
    }
    file = tmp_path / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    found = Tensors(tmp_path)
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        expected = value.detach().float().numpy()
        array = found.integers(name) if name in ("ids", "levels") else found.array(name)
        assert array.shape == expected.shape
        np.testing.assert_array_equal(array.astype("float32"), expected, err_msg=name)
    if not is_zip:  # a storage without elements is the last thing in the file
        torch.save({"empty": tensors["empty"]}, file, _use_new_zipfile_serialization=False)
    content = file.read_bytes()
    for size in (1, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"pytorch_model.bin is not a state_dict of torch"):
            Tensors(tmp_path)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path):
    torch_zip(tmp_path / "pytorch_model.bin", ARRAYS)
    tensors = Tensors(tmp_path)
    torch_zip(tmp_path / "new", {"a": ARRAYS["a"] + 1})
    shutil.move(tmp_path / "new", Path(tmp_path, "pytorch_model.bin"))
    with pytest.raises(ValueError, match="was changed while it was read"):
        tensors.check_unchanged()
