"""The data and the model of examples/electricity.py."""

import importlib.machinery

import electricity
import numpy as np
import pytest
from electricity import DAY, WEEK
from execution import tensorflow_only

pytestmark = tensorflow_only


def readings(count):
    """Half-hours of weeks that differ a little."""
    time = np.arange(count)
    noise = np.random.default_rng(0).normal(size=count)
    weeks = np.sin(2 * np.pi * time / DAY) + np.cos(2 * np.pi * time / WEEK)
    return (30000 + 4000 * weeks + 500 * noise).astype("float32")


def test_an_untrained_model_forecasts_the_demand_of_a_week_before():
    series = readings(WEEK + 100)
    model = electricity.forecaster(series.mean(), series.std())
    found = np.asarray(model(series[np.newaxis, :, np.newaxis]))[0]
    for t in (WEEK, WEEK + 51, WEEK + 99):
        np.testing.assert_allclose(found[t], series[t + 1 - WEEK :][:DAY], rtol=1e-6)


def test_crops_have_the_next_day_of_each_reading():
    series = readings(2 * WEEK)
    source, wanted, weights = electricity.crops(series, 3, np.random.default_rng(0))
    assert source.shape == (3, electricity.CROP, 1) and wanted.shape[1:] == (electricity.CROP, DAY)
    for row, days in zip(source[..., 0], wanted, strict=True):
        start = int(np.flatnonzero(series == row[0])[0])
        np.testing.assert_array_equal(row, series[start : start + electricity.CROP])
        np.testing.assert_array_equal(days[-1], series[start + electricity.CROP :][:DAY])
    assert not weights[:, :WEEK].any() and weights.mean() == pytest.approx(1)


def test_the_tested_readings_have_a_day_behind_them():
    tested = electricity.tested(np.zeros(12 * WEEK))
    assert [tested[0], tested[-1]] == [9 * WEEK, 12 * WEEK - DAY - 1]


def test_the_readings_are_the_longest_list_of_the_package(monkeypatch, tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/taylor.py").write_text("x = [1]\n\ndef load():\n    return [7, 8.5, 9]\n")
    spec = importlib.machinery.ModuleSpec("pmdarima", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert electricity.demand().tolist() == [7, 8.5, 9]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r'in a package: pip install --no-deps "pmdarima>=2\.1"'):
        electricity.demand()


@pytest.mark.slow
def test_a_short_run_trains_and_compares_both_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(electricity, "demand", lambda: readings(12 * WEEK))
    electricity.train(tmp_path / "electricity.tflite", smoke=True)
    assert {x.name for x in tmp_path.iterdir()} == {
        "electricity_float32.tflite", "electricity_int8.tflite"
    }  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    (row,) = [x.split() for x in lines if x.startswith("a day")]
    keras, float32 = (float(x.rstrip("%")) for x in row[-3:-1])
    assert float32 == pytest.approx(keras, abs=0.02)
