"""Numbers grouped by a number, in two arrays: what keeps a graph of a hundred thousand nodes small."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate


class Grouped:
    """For each of `size` keys the values that came with it, in their order."""

    __slots__ = ("_starts", "_values")

    def __init__(self, size: int, keys: Sequence[int], values: Sequence[int]) -> None:
        counts = [0] * (size + 1)
        for key in keys:
            counts[key + 1] += 1
        self._starts = array("i", accumulate(counts))
        self._values = array("i", bytes(4 * len(values)))
        places = self._starts[:]
        for key, value in zip(keys, values, strict=True):
            self._values[places[key]] = value
            places[key] += 1

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, key: int) -> array[int]:
        return self._values[self._starts[key] : self._starts[key + 1]]

    def __iter__(self) -> Iterator[array[int]]:
        return (self[key] for key in range(len(self)))

    def count(self, key: int) -> int:
        """How many values a key has."""
        return self._starts[key + 1] - self._starts[key]
