"""Which ids are padding: by id, at the ends of a row, by a mask, by -1, and in a file."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import randomize

import keras_tfm
from keras_tfm.layers import DecodingScope, SequencePooling, TokenEmbedding
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN, PADDINGS, TokenMask
from keras_tfm.layers.target import export_target
from keras_tfm.runtime.decoding.special_ids import REAL_PAD

PAD = 4
IDS = np.array([[4, 4, 3, 4, 1, 4, 4], [4, 4, 4, 4, 4, 4, 4], [4, 1, 2, 3, 1, 2, 4]])
# By hand: the tokens of each row.
TOKENS = {
    "anywhere": ["0010100", "0000000", "0111110"],
    "ends": ["0011100", "0000000", "0111110"],
    "after_end": ["0011110", "1000000", "0111111"],
}


def rows(x):
    return ["".join(map(str, row)) for row in to_numpy(x).astype(int)]


def pooled(**options):
    """Means of embedded tokens, of which only the mask knows how many count."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = TokenEmbedding(7, 3, name="embedding", **options)(ids)
    return randomize(keras_tfm.Model(ids, SequencePooling()(x)), 1)


def means(model, listed):
    table = to_numpy(model.get_layer("embedding").embeddings)
    return np.stack([table[row].mean(0) for row in listed])


@pytest.mark.parametrize("padding", PADDINGS)
def test_where_a_padding_id_is_padding(padding):
    layer = TokenMask(PAD, padding)
    assert rows(layer(IDS)) == TOKENS[padding]
    model = pooled(mask_id=PAD, padding=padding)
    real = [ids[[x == "1" for x in row]] for ids, row in zip(IDS, TOKENS[padding], strict=True)]
    expected = [means(model, [row])[0] if len(row) else np.zeros(3) for row in real]
    for loaded in (model, keras.models.clone_model(model)):
        loaded.set_weights(model.get_weights())
        assert_close(loaded.predict(IDS, verbose=0), np.stack(expected), 1e-6)  # float32


def test_a_padding_id_that_is_passed_as_a_token():
    model = pooled(mask_id=PAD, padding="ends")
    ids = np.array([[REAL_PAD, 3, 4], [3, REAL_PAD, 4]])
    assert_close(model(ids), means(model, [[4, 3], [3, 4]]), 1e-6)
    model = pooled(mask_id=PAD, padding="after_end")
    assert_close(model(ids[1:]), means(model, [[3, 4]]), 1e-6)


def test_padding_that_is_no_token():
    model = pooled(mask_id=NO_TOKEN)
    assert_close(model(np.array([[4, 0, -1], [0, -1, -1]])), means(model, [[4, 0], [0]]), 1e-6)
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.6, got -2\.\.3"):
        model(np.array([[3, -2]]))


@pytest.mark.parametrize("padding", ["anywhere", "after_end"])
def test_a_mask_that_the_ids_carry_takes_the_place_of_the_padding_id(padding):
    model = pooled(mask_id=PAD, padding=padding)
    ids, mask = np.array([[3, 4, 1, 2]]), np.array([[True, True, True, False]])
    assert_close(model(ids, mask=mask), means(model, [[3, 4, 1]]), 1e-6)


def test_a_step_has_no_ends_and_a_file_takes_all_for_padding():
    layer = TokenMask(PAD, "ends")
    with DecodingScope(length=7):
        assert rows(layer(IDS)) == ["1111111"] * 3
    with export_target():
        assert rows(layer(IDS)) == TOKENS["anywhere"]


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_saved_and_loaded(tmp_path, ending):
    model = pooled(mask_id=PAD, padding="after_end")
    model.save(tmp_path / f"model{ending}")
    again = keras.models.load_model(tmp_path / f"model{ending}")
    np.testing.assert_array_equal(again(IDS), model(IDS))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"padding must be one of \['anywhere', .* got 'left'"):
        TokenEmbedding(7, 3, mask_id=1, padding="left")
    with pytest.raises(ValueError, match="mask_id"):
        TokenEmbedding(7, 3, mask_id=-2)
