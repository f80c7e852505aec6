"""Grids of parameters of which a part stands for all."""

import itertools
from collections.abc import Mapping

import pytest


def pairwise(*axes):
    """Every combination of the axes' values as parameters; the default tier gets each pair once.

    Nearly all faults need one value or two together (Kuhn, Wallace and Gallo, Software fault
    interactions, IEEE TSE 30(6), 2004): combinations that show no new pair are marked slow.

    Args:
        axes: values by id, or a list of values, which are their own ids.
    """
    axes = [list(x.items() if isinstance(x, Mapping) else zip(x, x, strict=True)) for x in axes]
    combinations = list(itertools.product(*axes))
    places = list(itertools.product(*(range(len(x)) for x in axes)))
    pairs = [set(itertools.combinations(enumerate(x), 2)) for x in places]
    missing, chosen = set().union(*pairs), set()
    while missing:
        best = max(range(len(pairs)), key=lambda i: (len(pairs[i] & missing), -i))
        chosen.add(best)
        missing -= pairs[best]
    return [
        pytest.param(
            *(value for _, value in combination),
            id="-".join(str(name) for name, _ in combination),
            marks=[pytest.mark.slow] * (i not in chosen),
        )
        for i, combination in enumerate(combinations)
    ]


def first_of(values, count=1):
    """Parameters: the first `count` run by default; the others, which look alike, are slow.

    Args:
        values: list of values, of tuples of several, or dict of values by id.
    """
    ids = list(values) if isinstance(values, Mapping) else None
    values = list(values.values() if isinstance(values, Mapping) else values)
    return [
        pytest.param(
            *(x if isinstance(x, tuple) else (x,)),
            id=ids and ids[i],
            marks=[pytest.mark.slow] * (i >= count),
        )
        for i, x in enumerate(values)
    ]


def one_of_each(cases, names):
    """Cases of (name, options) as parameters: all are slow but the first of each of `names`."""
    first = {name: i for i, (name, _) in reversed(list(enumerate(cases)))}
    return [
        pytest.param(
            name,
            options,
            id=f"{i}-{name}",
            marks=[pytest.mark.slow] * (name not in names or i != first[name]),
        )
        for i, (name, options) in enumerate(cases)
    ]
