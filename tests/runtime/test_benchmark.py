"""`benchmark`: no time is asserted, only that numbers are there, positive, and fit together."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from grids import first_of
from small_exports import BOTH, MAX_LENGTH, new_path, real_file, small_file, small_tokens
from small_models import decoder_only

from keras_tfm import runtime
from keras_tfm.export import benchmark, export_tflite
from keras_tfm.runtime.inspection.benchmark import LEAST_RUNS, Footprint, count_tokens
from keras_tfm.runtime.inspection.inspection import bytes_by_kind
from keras_tfm.runtime.inspection.random_inputs import random_inputs


@pytest.fixture(scope="module")
def report():
    return small_file(num_layers=2)


@pytest.fixture(scope="module")
def measured(report):
    return benchmark(report.path, seconds=0.01, weight_cache=True)


def test_each_signature_with_each_number_of_threads(measured):
    found = [(x.signature, x.threads) for x in measured.latencies]
    assert found == [(name, threads) for name in BOTH for threads in (1, 2)]


def test_calls_are_timed(measured):
    for x in measured.latencies:
        assert x.runs >= LEAST_RUNS
        assert 0 < x.median_ms <= x.p90_ms


def test_tokens_a_second_are_tokens_by_latency(measured):
    for x in measured.latencies:
        if x.signature == "predict":
            assert x.tokens is None
            assert x.tokens_per_second is None
        else:
            assert x.tokens == MAX_LENGTH - 1
            assert x.tokens_per_second == pytest.approx(x.tokens / (x.median_ms / 1e3))


def test_tokens_of_all_rows_up_to_their_ends():
    report = small_file(seed=6, end_id=7, signatures=("generate",), batch_size=2)
    model = runtime.load(report.path)

    def tokens(seed):
        inputs = random_inputs(model.file.signatures["generate"].inputs, seed)
        return count_tokens(model.run("generate", inputs)["tokens"], 7)

    seed = next(seed for seed in range(50) if tokens(seed) < 2 * (MAX_LENGTH - 1))
    (x,) = benchmark(report.path, [1], seconds=0.01, seed=seed).latencies
    assert x.tokens == tokens(seed)


@pytest.mark.parametrize(("end_id", "expected"), [(None, 6), (2, 5), (9, 6), ([2, 6], 3)])
def test_count_tokens(end_id, expected):
    assert count_tokens(np.array([[2, 5, 2, 0], [2, 6, 6, 2]]), end_id) == expected


@pytest.mark.parametrize(("end_id", "expected"), [(None, 4), (2, 3), (9, 4)])
def test_count_tokens_after_a_prompt(end_id, expected):
    assert count_tokens(np.array([[2, 5, 2, 0], [2, 6, 6, 2]]), end_id, 2) == expected


@pytest.mark.parametrize("end_id", first_of([7, None]))
def test_a_prompt_is_not_counted(end_id):
    """Its ids are any, the end's among them."""
    length, path = 4, new_path()
    options = {"prompt_length": length, "max_length": MAX_LENGTH, "end_id": end_id}
    export_tflite(decoder_only(num_layers=1), path, ["generate"], **options, verify=False)
    model = runtime.load(path)

    def inputs(seed):
        return random_inputs(model.file.signatures["generate"].inputs, seed)

    seed = next(i for i in range(99) if 7 in inputs(i)["tokens"] and inputs(i)["padding"].any())
    new = model.generate(inputs(seed)["tokens"]).tokens[0, length:].tolist()
    (x,) = benchmark(path, [1], seconds=0.01, seed=seed).latencies
    assert x.tokens == (new.index(7) + 1 if end_id in new else MAX_LENGTH - length)


def test_count_tokens_against_python():
    tokens = small_tokens(seed=6, end_id=7)
    rows = [row[1:].tolist() for row in tokens]
    expected = sum(row.index(7) + 1 if 7 in row else len(row) for row in rows)
    assert count_tokens(tokens, 7) == expected < tokens[:, 1:].size


def test_memory_of_a_process_that_loads(measured):
    assert [(x.weights, x.threads) for x in measured.footprints] == [
        ("packed", 1), ("packed", 2), ("cache", 1), ("cache", 2),
    ]  # fmt: skip
    for x in measured.footprints:
        assert x.load_ms > 0
        assert x.first_ms > 0
        assert x.peak_bytes > 0


def test_memory_holds_the_weights():
    """3.2 MB, of which each process reads all: the least that can be resident."""
    report = real_file("float32")
    measured = benchmark(report.path, [1], seconds=0.01, weight_cache=True)
    packed, cached = measured.footprints
    assert packed.peak_bytes > report.bytes
    # Packed weights of a cache belong to a file; half a megabyte is what allocators round to.
    assert cached.private_bytes < packed.private_bytes + 5e5


def test_bytes_add_up(measured, report):
    assert sum(measured.bytes_by_kind.values()) == measured.bytes == report.bytes
    assert all(size > 0 for size in measured.bytes_by_kind.values())


def test_bytes_of_the_weights():
    for quantization, kind in (("float32", "float32"), ("int8", "int8")):
        report = real_file(quantization)
        sizes = bytes_by_kind(Path(report.path).read_bytes())
        assert next(iter(sizes)) == kind  # the most
        assert sizes[kind] > 0.8 * report.bytes


def test_graphs_are_the_report_s(measured, report):
    assert measured.subgraphs == report.subgraphs
    assert measured.quantization == report.quantization


def test_json(measured, tmp_path):
    again = json.loads(json.dumps(measured.asdict()))
    assert again == measured.asdict()
    assert again["latencies"][0]["tokens_per_second"] == measured.latencies[0].tokens_per_second
    assert again["footprints"] == [asdict(x) for x in measured.footprints]
    measured.write_json(tmp_path / "numbers.json")
    assert json.loads((tmp_path / "numbers.json").read_text()) == again


def test_a_table_for_people(measured):
    rows = [line.split() for line in str(measured).splitlines()]
    for x in measured.latencies:
        (row,) = [row for row in rows if row[:2] == [x.signature, str(x.threads)]]
        assert row[2:5] == [str(x.runs), f"{x.median_ms:.3f}", f"{x.p90_ms:.3f}"]
        assert len(row) == (5 if x.tokens is None else 7)
    for y in measured.footprints:
        (row,) = [row for row in rows if row[:2] == [y.weights, str(y.threads)]]
        assert row[2] == f"{y.load_ms:.1f}"
    for graph in measured.subgraphs:
        numbers = [str(n) for n in (graph.nodes, graph.delegated, graph.partitions)]
        most, count = next(iter(graph.operators.items()))
        assert any(row[:5] == [graph.name, *numbers, most] for row in rows)
        assert count == max(graph.operators.values())


def test_memory_that_the_system_does_not_tell(measured):
    untold = Footprint("packed", 1, 1.0, 2.0, peak_bytes=None, private_bytes=None)
    lines = str(replace(measured, footprints=[untold])).splitlines()
    (line,) = [line for line in lines if line.split()[:2] == ["packed", "1"]]
    assert line.split()[-2:] == ["unknown", "unknown"]


# Failures


@pytest.mark.parametrize("threads", [[], [0], [1, -2], [True], [1.5]], ids=str)
def test_threads_out_of_range(report, threads):
    with pytest.raises(ValueError, match="threads must be integers of at least 1, got"):
        benchmark(report.path, threads)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_seconds_out_of_range(report, seconds):
    with pytest.raises(ValueError, match=r"seconds must be (positive|finite), got"):
        benchmark(report.path, seconds=seconds)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        benchmark(tmp_path / "missing.tflite")


def test_a_foreign_file(tmp_path):
    path = tmp_path / "foreign.tflite"
    path.write_bytes(b"no model at all")
    with pytest.raises(ValueError, match=r"is not a \.tflite file"):
        benchmark(path)


def test_a_damaged_file(report, tmp_path):
    content = bytearray(Path(report.path).read_bytes())
    content[len(content) // 2] ^= 1
    path = tmp_path / "damaged.tflite"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        benchmark(path)


def test_a_process_that_fails(report, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # the child's Python does not start
    with pytest.raises(RuntimeError, match="in a separate process failed with exit code"):
        benchmark(report.path, [1], seconds=0.01)
