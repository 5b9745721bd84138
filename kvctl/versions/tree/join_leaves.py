"""Join leaves that several workers cut concurrently, each from a part of the entries, as if one had cut all. [pure]

A leaf's end depends on the keys since the last end, so a part's first leaves may differ from those of one pass over
everything. They are cut again until both ends meet; from there on the part's leaves are correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvctl.versions.tree.chunks import Chunk, Chunker, Pair
from kvctl.versions.tree.tree import Made, Reading, Tree


def joined(parts: Iterable[Sequence[Pair]]) -> Reading[Tree]:
    """Return the tree over the leaves of consecutive parts: for each leaf its last key and its id.

    Reads the leaves where parts meet; its objects are those that no part has created.
    """
    made, cut, row = Made(), Chunker(0), list[Pair]()
    for part in parts:
        for at, (last, identity) in enumerate(part):
            # The last leaf of a part may have ended only because the part did.
            if not cut.open and at + 1 < len(part):
                row.append((last, identity))
                continue
            data = yield {identity}
            chunk = Chunk.decode(data[identity])
            row += map(made.add, cut.add(chunk.keys, chunk.values))
    if (ended := cut.end()) is not None:
        row.append(made.add(ended))
    return made.tree(row)
