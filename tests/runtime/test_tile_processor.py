"""Pictures as tiles and as text, beside the processors of transformers; bad input."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from keras_tfm.runtime import TileProcessor
from keras_tfm.runtime.manifest.manifest import Manifest
from keras_tfm.runtime.media.tile_processor import IMAGE


def picture(height, width, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (height // 3 + 1, width // 3 + 1, 3))
    return small.astype("uint8").repeat(3, 0).repeat(3, 1)[:height, :width]


# Wide, high, square, smaller and larger than the longest edge, of odd lengths.
SIZES = [(37, 61), (61, 37), (50, 50), (9, 100), (100, 9), (201, 133), (13, 11), (64, 65)]


def theirs(processor):
    transformers = pytest.importorskip("transformers")
    return transformers.models.idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil(
        size={"longest_edge": processor.longest_edge},
        max_image_size={"longest_edge": processor.size[0]},
        do_image_splitting=processor.num_images is not None,
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("num_images", [17, None])
def test_pixels_and_grid_are_those_of_transformers(size, num_images):
    processor = TileProcessor((16, 16), longest_edge=61, num_images=num_images)
    image = picture(*size)
    found = theirs(processor)(image, return_row_col_info=True, return_tensors="np")
    wanted = np.moveaxis(np.asarray(found["pixel_values"])[0], 1, -1) * 127.5 + 127.5
    grid = (found["rows"][0][0], found["cols"][0][0])
    assert processor.grid(image) == grid
    pixels = processor(image)[0]
    used = pixels[None] if num_images is None else pixels[: grid[0] * grid[1] + 1]
    np.testing.assert_allclose(used, wanted, rtol=0, atol=1e-3)  # whole numbers, normalised
    assert num_images is None or not pixels[len(used) :].any()


def test_text_and_tokens_are_those_of_transformers():
    """Of several pictures in a text, by the processor whose prompts are strings."""
    transformers = pytest.importorskip("transformers")
    from small_tokenizers import byte_pairs

    tokenizer = byte_pairs()
    processor = TileProcessor((16, 16), longest_edge=48, num_images=25)
    added = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    )
    added.add_special_tokens({"additional_special_tokens": ["<global-img>"]})
    live = transformers.Idefics3Processor(theirs(processor), added, image_seq_len=3)
    images = [picture(37, 61), picture(5, 5, 1), picture(61, 20, 2)]
    text = "one <image> and<image>?\n<image>"
    wanted = live(images=images, text=text)["input_ids"][0]
    (prompt,) = processor.expand(text, [images], 3)
    assert added(prompt)["input_ids"] == wanted
    assert prompt.count(IMAGE) == 3 * len([x for x in processor([images])[0] if x.any()])


def test_several_rows_of_several_pictures():
    processor = TileProcessor((4, 4), longest_edge=4, num_images=2)
    a, b = picture(9, 9), picture(7, 12, 1)
    pixels = processor([a, [b, a]])
    assert pixels.shape == (2, 2, 4, 4, 3)
    np.testing.assert_array_equal(pixels[1, 1], pixels[0, 0])
    assert not pixels[0, 1].any()
    assert (
        processor.expand("x<image>", [a, b], 2)
        == ["x<fake_token_around_image><global-img><image><image><fake_token_around_image>"] * 2
    )
    content = io.BytesIO()
    Image.fromarray(a).save(content, "PNG")
    np.testing.assert_array_equal(processor(content.getvalue()), processor(a))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (4, 5)}, "tiles are square"),
        ({"resize": 9}, "resized by longest_edge"),
        ({"longest_edge": 0}, "longest_edge must be from 1 to 4096, got 0"),
        ({"longest_edge": 4097}, "longest_edge must be from 1 to 4096, got 4097"),
        ({"num_images": 0}, "num_images must be from 1 to 4096, got 0"),
        ({"resample": "cubic"}, "resample must be one of"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TileProcessor(**{"size": (4, 4), **options})


def test_bad_pictures_and_prompts():
    processor = TileProcessor((4, 4), longest_edge=8, num_images=3)
    with pytest.raises(ValueError, match="at most 3 images of a row, got 5: a smaller longest"):
        processor(picture(9, 9))
    with pytest.raises(ValueError, match="<image> once for each of 1 pictures, got 2"):
        processor.expand("<image> <image>", picture(9, 9), 1)
    with pytest.raises(ValueError, match="picture 1 of 2"):
        processor([b"no picture", picture(9, 9)])
    with pytest.raises(TypeError, match="longest_edge must be an integer"):
        TileProcessor((4, 4), longest_edge=8.0)


def test_the_manifest_keeps_it():
    processor = TileProcessor((4, 4), longest_edge=8, num_images=3)
    fields = {
        "keras_tfm": "0", "format": 2, "quantization": "float32", "layers": {}, "model": None,
        "signatures": {"predict": {
            "role": "predict", "outputs": {"y": {"shape": [1], "dtype": "float32"}},
            "inputs": {"x": {
                "shape": [1, 3, 4, 4, 3], "dtype": "uint8", "kind": "input", "padded": False,
            }},
        }},
        "images": {"x": {
            "size": [4, 4], "resize": None, "resample": "lanczos", "channels": 3,
            "background": 255, "longest_edge": 8, "num_images": 3,
        }},
    }  # fmt: skip
    manifest = Manifest.from_json(fields)
    assert manifest.images == {"x": processor}
    assert json.loads(json.dumps(manifest.to_json()))["images"] == fields["images"]
    del fields["images"]["x"]["num_images"]
    with pytest.raises(ValueError, match="images must be an object of image processors"):
        Manifest.from_json(fields)
