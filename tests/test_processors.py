"""The table of processors: what is read from Linux, and what is made of the recorded lines."""

import json

import processors

CPU_INFO = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 fma avx512f avx512_vnni avx512_vbmi

processor\t: 1
model name\t: another one
"""


def fake_cache(folder, index, level, kind, size):
    here = folder / f"index{index}"
    here.mkdir(parents=True)
    for name, text in {"level": level, "type": kind, "size": size}.items():
        (here / name).write_text(f"{text}\n")


def test_the_processor_is_read_from_linux(tmp_path):
    cpu_info, caches = tmp_path / "cpuinfo", tmp_path / "cache"
    cpu_info.write_text(CPU_INFO)
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "32K"), (1, "Instruction", "48K"), (2, "Unified", "1024K")]
    ):
        fake_cache(caches, index, level, kind, size)
    assert processors.processor(cpu_info, caches) == {
        "name": "AMD EPYC",
        "family": "25",
        "model": "17",
        "caches": {"L1": "32K", "L2": "1024K"},
        "flags": ["avx2", "fma", "avx512f", "avx512_vnni"],
    }


def test_another_system_has_a_name(tmp_path):
    found = processors.processor(tmp_path / "none", tmp_path / "none")
    assert found["name"] and found["caches"] == {} and found["flags"] == []


def test_runs_are_appended_and_the_range_is_over_all(tmp_path, monkeypatch):
    monkeypatch.setattr(processors, "version", {"ai-edge-litert": "2.3", "ctranslate2": "4.8"}.get)
    path = tmp_path / "processors.jsonl"
    processors.record(path, 7, {"greedy, int8": 1.73956, "beam 4, int8": 1.2})
    processors.record(path, 5, {"greedy, int8": 1.23})
    first, second = processors.read(path)
    assert first["times CTranslate2"] == {"greedy, int8": 1.74, "beam 4, int8": 1.2}
    assert first["packages"] == {"ai-edge-litert": "2.3", "ctranslate2": "4.8"}
    assert second["rounds"] == 5
    lines = processors.table([first, second]).splitlines()
    assert lines[0].endswith("| date | greedy, int8 | beam 4, int8 |")
    assert lines[2].endswith("| 1.74 | 1.20 |") and lines[3].endswith("| 1.23 |  |")
    assert lines[-1] == "| range | | | | 1.23 to 1.74 | 1.20 to 1.20 |"
    assert all(json.loads(line) for line in path.read_text().splitlines())
