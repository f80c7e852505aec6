"""Ratios by processor: the file that `benchmarks/generation.py --record` appends to, as a table.

    python benchmarks/generation.py --record    # measures, and appends a line for this processor
    python benchmarks/processors.py             # the table for benchmarks/README.md

A ratio between two engines is a property of the processor, not of the engines alone. So each run is
kept, with the processor's name, caches and instruction sets, and the README quotes the range.
"""

import argparse
import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).parent / "processors.jsonl"
# The instruction sets that choose kernels in XNNPACK, oneDNN and MKL.
FLAGS = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "sve"),
)
PACKAGES = ("ai-edge-litert", "ctranslate2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=FILE)
    file = parser.parse_args().file
    if not file.exists():
        parser.error(f"no {file}: run benchmarks/generation.py --record first")
    print(table(read(file)))


def record(path: Path, rounds: int, ratios: dict[str, float]) -> None:
    """Appends a line: this processor, and how many times as fast as CTranslate2 each row is."""
    line = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "packages": {name: version(name) for name in PACKAGES},
        "rounds": rounds,
        "times CTranslate2": {name: round(ratio, 3) for name, ratio in ratios.items()},
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict]:
    """The lines of a file, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def processor(
    cpu_info: Path = Path("/proc/cpuinfo"),
    caches: Path = Path("/sys/devices/system/cpu/cpu0/cache"),
) -> dict:
    """The name, the family and model numbers, the caches and `FLAGS` of this machine's processor.

    A virtual machine often hides the name's number: family and model still tell a Zen 4 from a Zen
    5.
    """
    fields: dict[str, str] = {}
    for line in cpu_info.read_text().splitlines() if cpu_info.is_file() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    here = set(fields.get("flags", fields.get("Features", "")).split())
    sizes = {}
    for folder in sorted(caches.glob("index*")):
        level, kind = ((folder / x).read_text().strip() for x in ("level", "type"))
        if kind != "Instruction":
            sizes[f"L{level}"] = (folder / "size").read_text().strip()
    return {
        "name": fields.get("model name") or platform.processor() or platform.machine(),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "caches": sizes,
        "flags": [x for x in FLAGS if x in here],
    }


def table(lines: list[dict]) -> str:
    """Markdown: a row for each run, then the range over all of them."""
    names = list(dict.fromkeys(name for line in lines for name in line["times CTranslate2"]))
    header = ["processor", "caches", "instruction sets", "date", *names]
    rows = ["| " + " | ".join(header) + " |", "|---" * 4 + "|---:" * len(names) + "|"]
    for line in lines:
        x = line["processor"]
        numbers = f" (family {x['family']}, model {x['model']})" if x["family"] else ""
        cells = [
            x["name"] + numbers,
            ", ".join(f"{level} {size}" for level, size in x["caches"].items()),
            ", ".join(x["flags"]),
            line["date"],
        ]
        ratios = (line["times CTranslate2"].get(name) for name in names)
        cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rows.append("| " + " | ".join(cells) + " |")
    found = (
        [line["times CTranslate2"][name] for line in lines if name in line["times CTranslate2"]]
        for name in names
    )
    ranges = [f"{min(x):.2f} to {max(x):.2f}" for x in found]
    return "\n".join([*rows, "| range | | | | " + " | ".join(ranges) + " |"])


if __name__ == "__main__":
    main()
