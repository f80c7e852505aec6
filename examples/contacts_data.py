"""Alignments and structures of proteins from Debian's packages, without root and without a hub.

`apt-get download` fetches t-coffee-examples, hmmer-examples, python-biopython-doc, freecontact and
theseus-examples, 74 MB; Biopython reads the files. Seven families have structures: contacts are
learned and tested on those. The other alignments, of families without a structure here, are for
pretraining.
"""

import gzip
import io
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_tfm.text import encode_alignment

PACKAGES = (
    "t-coffee-examples", "hmmer-examples", "python-biopython-doc", "freecontact",
    "theseus-examples",
)  # fmt: skip
TCOFFEE, HMMER = "t-coffee/examples", "hmmer/examples"
BIOPYTHON, THESEUS = "python-biopython-doc/Tests", "theseus/examples"
# A family: its alignment, the format, and the structures of some of its sequences.
FAMILIES = {
    "serine proteases": (f"{THESEUS}/trypsins/tryps.a2m", "fasta", f"{THESEUS}/trypsins/*.pdb*"),
    "lactate and malate dehydrogenases": (
        f"{THESEUS}/ldh/ldh.a2m", "fasta", f"{THESEUS}/ldh/*.pdb*"
    ),
    "cytochromes c": (f"{THESEUS}/cytochromes/cytc.aln", "clustal", f"{THESEUS}/cytochromes/d*"),
    "TNF receptors": (f"{TCOFFEE}/sample_3Dseq1.aln", "clustal", f"{TCOFFEE}/[123]*[1234].pdb*"),
    "aspartic proteases": (f"{TCOFFEE}/struc1.aln", "clustal", f"{TCOFFEE}/struc?.pdb*"),
    "Gal80": (f"{TCOFFEE}/3V2UA.aln", "clustal", f"{TCOFFEE}/3V2U.pdb*"),
    "galactokinases": (f"{TCOFFEE}/3V2UC.aln", "clustal", f"{TCOFFEE}/3V2U.pdb*"),
}  # fmt: skip
PRETRAINING = (
    (f"{HMMER}/testsuite/RRM_1.sto", "stockholm"),
    (f"{HMMER}/testsuite/SMC_N.sto", "stockholm"),
    (f"{HMMER}/testsuite/LuxC.sto", "stockholm"),
    (f"{HMMER}/testsuite/Caudal_act.sto", "stockholm"),
    (f"{HMMER}/testsuite/Patched.sto", "stockholm"),
    (f"{HMMER}/tutorial/fn3.sto", "stockholm"),
    (f"{HMMER}/tutorial/Pkinase.sto", "stockholm"),
    (f"{HMMER}/easel/demotic/examples/example.sto", "stockholm"),
    (f"{HMMER}/easel/demotic/examples/example-single.sto", "stockholm"),
    (f"{BIOPYTHON}/Stockholm/globins45.ali", "stockholm"),
    *((f"{BIOPYTHON}/Stockholm/pfam{i}.seed.txt", "stockholm") for i in (3, 4, 5, 6, 8)),
    (f"{BIOPYTHON}/Clustalw/protein.aln", "clustal"),
    (f"{BIOPYTHON}/Clustalw/msaprobs.aln", "clustal"),
    (f"{BIOPYTHON}/Clustalw/probcons.aln", "clustal"),
    ("freecontact/examples/PF00071_v25_999.fa", "fasta"),
    ("freecontact/examples/demo_1000.aln", "lines"),
)
# A contact: C-beta atoms (C-alpha of glycine) less than 8 Å apart, six residues or more apart.
DISTANCE, SEPARATION = 8.0, 6
# Sequences with fewer residues in the structure teach little.
SHORTEST = 30


@dataclass(frozen=True)
class Known:
    """An alignment whose target has a structure.

    Attributes:
        family: str, the family's name.
        name: str, the structure's.
        ids: (S, N) int32, the alignment, the target first.
        contacts: (N, N) bool.
        measured: (N, N) bool, both residues are in the structure and `SEPARATION` apart.
    """

    family: str
    name: str
    ids: np.ndarray
    contacts: np.ndarray
    measured: np.ndarray


def download(folder: Path) -> Path:
    """Downloads and unpacks the packages once; returns the folder of their documentation."""
    docs = folder / "usr/share/doc"
    if not all((docs / part).exists() for part in (TCOFFEE, HMMER, BIOPYTHON, THESEUS)):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            command = ["apt-get", "-q", "download", *PACKAGES]
            subprocess.run(command, cwd=temporary, check=True, capture_output=True)
            for archive in Path(temporary).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    return docs


def pretraining_alignments(docs: Path) -> dict[str, np.ndarray]:
    """Alignments of families without a structure, by file name: (S, N) ids of two rows or more."""
    found = {}
    for name, kind in PRETRAINING:
        ids = _without_empty_rows(encode_alignment([row for _, row in read(docs / name, kind)]))
        found[Path(name).name] = ids
    return found


def known_alignments(docs: Path, per_family: int) -> list[Known]:
    """Up to `per_family` targets of each family, spread over its structures."""
    result = []
    for family, (alignment, kind, structures) in FAMILIES.items():
        rows = read(docs / alignment, kind)
        files = sorted(docs.glob(structures))
        used, taken = set(), 0
        for file in files[:: max(1, len(files) // (3 * per_family))]:
            for sequence, atoms in chains(file):
                i, places = _target(rows, sequence)
                if taken == per_family or i is None or i in used:
                    continue
                used.add(i)
                taken += 1
                result.append(_known(family, file.name.split(".")[0], rows, i, places, atoms))
    return result


def read(path: Path, kind: str) -> list[tuple[str, str]]:
    """Names and rows of an alignment, compressed or not, as letters and "-"."""
    text = _text(path)
    if kind == "lines":
        return [(str(i), row) for i, row in enumerate(text.split())]
    from Bio import AlignIO

    if kind == "clustal":  # t-coffee's own first line
        text = "CLUSTAL W\n" + text.split("\n", 1)[1]
    if kind == "fasta":  # insertions in lower case make rows unequal
        from Bio import SeqIO

        pairs = [(x.id, str(x.seq)) for x in SeqIO.parse(io.StringIO(text), "fasta")]
        if len({len(row) for _, row in pairs}) > 1:
            pairs = [(x, "".join(a for a in row if not a.islower())) for x, row in pairs]
        return [(x, row.upper()) for x, row in pairs]
    alignment = next(iter(AlignIO.parse(io.StringIO(text), kind)))
    return [(x.id, str(x.seq).upper().replace(".", "-")) for x in alignment]


def chains(path: Path) -> list[tuple[str, np.ndarray]]:
    """The chains of a structure's first model: letters, and C-beta atoms (N, 3)."""
    from Bio.PDB import PDBParser
    from Bio.SeqUtils import seq1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Biopython's, about the files
        structure = PDBParser(QUIET=True).get_structure("x", io.StringIO(_text(path)))
        found = []
        for chain in next(iter(structure)):
            residues = [x for x in chain if x.id[0] == " " and "CA" in x]
            if len(residues) >= SHORTEST:
                atoms = [(x["CB"] if "CB" in x else x["CA"]).coord for x in residues]
                letters = "".join(seq1(x.get_resname()) for x in residues)
                found.append((letters, np.array(atoms)))
    return found


def _text(path: Path) -> str:
    """A file that Debian may have compressed."""
    packed = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode("utf-8", "replace")
    return path.read_text("utf-8", "replace")


def _target(rows: Sequence[tuple[str, str]], sequence: str) -> tuple[int | None, np.ndarray]:
    """The row of a structure's sequence, and the index in it of each residue, or -1."""
    best, where = 0.0, (None, np.zeros(0, int))
    aligner = _aligner()
    words = {sequence[i : i + 4] for i in range(len(sequence) - 3)}
    shared = []
    for i, (_, row) in enumerate(rows):  # rows with many words in common first
        plain = row.replace("-", "")
        mine = {plain[k : k + 4] for k in range(len(plain) - 3)}
        shared.append((len(words & mine) / max(1, len(words)), i, plain))
    for share, i, plain in sorted(shared, reverse=True)[:2]:
        if share < 0.5:
            continue
        alignment = aligner.align(plain, sequence)[0]
        places = np.full(len(sequence), -1)
        for (a, b), (c, d) in zip(*alignment.aligned, strict=True):
            places[c:d] = np.arange(a, b)
        same = np.mean([k >= 0 and plain[k] == x for k, x in zip(places, sequence, strict=True)])
        if same > max(best, 0.8):
            best, where = same, (i, places)
    return where


def _aligner():
    from Bio.Align import PairwiseAligner

    aligner = PairwiseAligner(mode="global", match_score=2, mismatch_score=-1)
    aligner.open_internal_gap_score, aligner.extend_internal_gap_score = -4, -0.2
    return aligner


def _known(
    family: str,
    name: str,
    rows: Sequence[tuple[str, str]],
    i: int,
    places: np.ndarray,
    atoms: np.ndarray,
) -> Known:
    order = [i, *(k for k in range(len(rows)) if k != i)]
    ids = _without_empty_rows(encode_alignment([rows[k][1] for k in order]))
    length = ids.shape[1]
    coordinates = np.full((length, 3), np.nan)
    coordinates[places[places >= 0]] = atoms[places >= 0]
    apart = np.linalg.norm(coordinates[:, None] - coordinates[None], axis=-1)
    index = np.arange(length)
    far = np.abs(index[:, None] - index[None]) >= SEPARATION
    measured = np.isfinite(apart) & far
    return Known(family, name, ids, (np.nan_to_num(apart, nan=99.0) < DISTANCE) & far, measured)


def _without_empty_rows(ids: np.ndarray) -> np.ndarray:
    """Without rows that are gaps alone, and without repeated rows."""
    ids = ids[(ids != 22).any(axis=1)]
    _, first = np.unique(ids, axis=0, return_index=True)
    return ids[np.sort(first)]


def made_up(count: int = 3, rows: int = 9, length: int = 30) -> list[Known]:
    """Small random families for a test run: columns in contact hold the same letter."""
    rng, result = np.random.default_rng(0), []
    for i in range(count):
        ids = rng.integers(1, 21, (rows, length)).astype("int32")
        contacts = np.zeros((length, length), bool)
        for a, b in rng.permutation(length)[: length // 2 * 2].reshape(-1, 2):
            if abs(a - b) >= SEPARATION:
                ids[:, b] = ids[:, a]
                contacts[a, b] = contacts[b, a] = True
        index = np.arange(length)
        measured = np.abs(index[:, None] - index[None]) >= SEPARATION
        result.append(Known(f"family {i}", f"made up {i}", ids, contacts, measured))
    return result
