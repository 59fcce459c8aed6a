"""Compressed sparse rows: integers grouped by an integer key in two arrays, for graphs of a hundred thousand nodes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate


class CompressedRows:
    """For each of `size` keys, its values in the order in which they were given."""

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
        """Return the number of values of a key."""
        return self._starts[key + 1] - self._starts[key]

    def tally(self, keys: Iterable[int]) -> dict[int, int]:
        """Count how often each value occurs under the given keys, in the order of first occurrence."""
        starts, values = self._starts, self._values
        found: dict[int, int] = {}
        for key in keys:
            for position in range(starts[key], starts[key + 1]):
                value = values[position]
                found[value] = found.get(value, 0) + 1
        return found
