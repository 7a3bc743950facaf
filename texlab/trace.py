"""What a simulated run touched: one row for each memory instruction that a warp executed, and tables made from rows.

The rules by which a GPU serves such a row are here, as plain functions over addresses: ``wavefronts`` (banks of shared
memory), ``sectors`` and ``lines`` (global memory). Totals and rows alike are counted by these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from texlab import cache
from texlab.views import unpack_texels

if TYPE_CHECKING:
    from pandas import DataFrame

SECTOR = 32  # bytes that global memory moves at least
LINE = 128  # bytes of a cache line; also of all 32 banks of shared memory side by side
#: What is counted for every instruction (Trace.totals).
TOTALS = ("requests", "lanes", "sectors", "lines", "wavefronts", "ideal_wavefronts", "distinct")
_LANES = np.arange(32, dtype=np.uint32)
_HASH = np.random.default_rng(2026).integers(1, 2**63, 33, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True)
class Instruction:
    """A memory instruction of a kernel. ``pc`` counts the kernel's PTX instructions; ``width`` is in bytes per lane."""

    entry: str
    pc: int
    file: str
    line: int
    source: str
    opcode: str
    space: str
    kind: str
    width: int


@dataclass(frozen=True)
class Placed:
    """Where a buffer lay: byte ``base`` address, and what it holds."""

    base: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


# the rules ------------------------------------------------------------------------------------------------------------
def wavefronts(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """Passes that shared memory needs for each row; conflicts are what exceeds ``ideal_wavefronts``.

    Shared memory has 32 banks of 4 bytes. Lanes are served in groups; a group costs as many passes as there are
    different words wanted from its busiest bank (lanes that want the same word share it):

    * up to 4 bytes a lane: all 32 lanes are one group;
    * 8 bytes: two groups of 16 lanes, but one of 32 if every lane's address equals that of lane ^ 1 (or, for all
      lanes, of lane ^ 2);
    * 16 bytes: four groups of 8 lanes, but two of 16 under the same condition.

    Groups without an active lane cost nothing, and inactive lanes do not stand in the way of the condition.

    Parameters: ``address`` (n, 32) bytes, ``mask`` (n,) active lanes, ``width`` bytes per lane. Returns int64 (n,).

    >>> lane = np.arange(32, dtype="u8")
    >>> wavefronts(np.stack([4 * lane, 128 * lane, 132 * lane]), np.full(3, 2**32 - 1, "u4"), 4)
    array([ 1, 32,  1])
    """
    return _by_pattern(address, mask, lambda a, m: _bank_passes(a, m, width)[0])


def wavefront_of(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """The pass, from 1, that serves each lane, 0 for idle lanes; int64 (n, 32). Its maximum in a row is ``wavefronts``.

    Groups are served one after another, and words of one bank in the order of the first lane that wants them. Only
    their number is known of the hardware, not the order.
    """
    on = active_lanes(np.asarray(mask, np.uint32))
    unit = max(width, 4)
    word = np.asarray(address).astype(np.int64) // unit
    groups = np.full(len(on), unit // 4)
    if unit > 4:
        groups[_partners_agree(np.asarray(address), on)] //= 2
    group = np.arange(32) // (32 // groups[:, None])
    lanes = np.arange(32)
    together = (group[:, :, None] == group[:, None, :]) & on[:, None, :]
    first = (together & (word[:, :, None] == word[:, None, :])).argmax(axis=2)
    leads = on & (first == lanes)
    slot = word % (LINE // unit)
    ahead = together & (slot[:, :, None] == slot[:, None, :]) & leads[:, None, :] & (lanes < first[:, :, None])
    rank = np.where(on, ahead.sum(axis=2), -1)
    out = np.zeros(on.shape, np.int64)
    before = np.zeros(len(on), np.int64)
    for g in range(int(groups.max(initial=1))):
        mine = (group == g) & on
        out[mine] = (rank + 1 + before[:, None])[mine]
        before += np.where(mine, rank + 1, 0).max(axis=1)
    return out


def ideal_wavefronts(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """Passes without any conflict: the number of groups that ``wavefronts`` speaks of. Returns int64 (n,)."""
    return _by_pattern(address, mask, lambda a, m: _bank_passes(a, m, width)[1])


def sectors(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """32-byte sectors of global memory that each row touches. Arguments as for ``wavefronts``; returns int64 (n,).

    >>> lane = np.arange(32, dtype="u8")
    >>> sectors(np.stack([4 * lane, 4 * lane + 4, 32 * lane]), np.full(3, 2**32 - 1, "u4"), 4)
    array([ 4,  5, 32])
    """
    return _by_pattern(address, mask, lambda a, m: _distinct(a, m, SECTOR))


def lines(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """128-byte lines that each row touches. Returns int64 (n,)."""
    return _by_pattern(address, mask, lambda a, m: _distinct(a, m, LINE))


def active_lanes(mask: np.ndarray) -> np.ndarray:
    """(n,) masks -> (n, 32) booleans."""
    return (mask[:, None] >> _LANES & 1).astype(bool)


def count(
    space: str, address: np.ndarray, mask: np.ndarray, width: int, known: dict[Any, np.ndarray] | None = None
) -> dict[str, int]:
    """Sums over rows of all that is counted for an instruction of ``space`` (``TOTALS``). ``known`` remembers, between
    calls, what each pattern of addresses costs."""
    out = dict.fromkeys(TOTALS, 0)
    out["requests"] = len(mask)
    if not len(mask):
        return out
    known = {} if known is None else known
    pattern, masks, back = _patterns(address, mask)
    times = np.array([len(mask)]) if len(masks) == 1 else np.bincount(back, minlength=len(masks))
    keys = [(space, width, m, row.tobytes()) for m, row in zip(masks.tolist(), pattern, strict=True)]
    new = [i for i, key in enumerate(keys) if key not in known]
    if new:
        a, m = pattern[new], masks[new]
        lanes = np.bitwise_count(m)
        if space == "shared":
            cost = np.stack([lanes, *_bank_passes(a, m, width)], axis=1)
        elif space == "texture":  # sectors depend on where a cache model puts the texels: Trace.texture()
            cost = np.stack([lanes, 0 * lanes, 0 * lanes, _distinct(a, m, 1)], axis=1)
        else:
            cost = np.stack([lanes, *(_distinct(a, m, unit) for unit in (SECTOR, LINE, width))], axis=1)
        for i, row in zip(new, cost.astype(np.int64), strict=True):
            known[keys[i]] = row
    names = (
        ("lanes", "wavefronts", "ideal_wavefronts") if space == "shared" else ("lanes", "sectors", "lines", "distinct")
    )
    out.update(zip(names, (times @ np.stack([known[key] for key in keys])).tolist(), strict=True))
    return out


def _patterns(address: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that differ by whole lines only cost the same, and most rows of a kernel do: (different rows, their masks,
    which of them each row is). Inactive lanes stand where the first active one does."""
    address = np.asarray(address, np.uint64)
    mask = np.asarray(mask, np.uint32)
    if (mask == 0xFFFFFFFF).all():
        first = address[:, :1]
    else:
        on = active_lanes(mask)
        first = np.take_along_axis(address, on.argmax(axis=1)[:, None], axis=1)
        address = np.where(on, address, first)
    pattern = address - (first & np.uint64(2**64 - LINE))
    if (pattern == pattern[0]).all() and (mask == mask[0]).all():
        return pattern[:1], mask[:1], np.zeros(len(mask), np.int64)
    key = pattern @ _HASH[:32] + mask * _HASH[32]
    _, index, back = np.unique(key, return_index=True, return_inverse=True)
    if (pattern[index][back] == pattern).all() and (mask[index][back] == mask).all():
        return pattern[index], mask[index], back
    return pattern, mask, np.arange(len(mask))  # two rows with one key: do without


def _by_pattern(address: np.ndarray, mask: np.ndarray, rule: Callable[..., np.ndarray]) -> np.ndarray:
    """``rule`` for every row, computed once for each pattern."""
    if not len(mask):
        return np.zeros(0, np.int64)
    pattern, masks, back = _patterns(address, mask)
    return rule(pattern, masks)[back]


def _bank_passes(address: np.ndarray, mask: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(passes, groups) of each row; inactive lanes hold the address of an active one."""
    unit = max(width, 4)
    groups = unit // 4
    on = active_lanes(mask)
    if groups == 1:
        return _group_passes(address, on, 1, unit)
    merged = _partners_agree(address, on)
    passes, used = _group_passes(address, on, groups, unit)
    if merged.any():
        passes[merged], used[merged] = _group_passes(address[merged], on[merged], groups // 2, unit)
    return passes, used


def _partners_agree(address: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Rows in which every active lane's address equals that of lane ^ 1, or every one's that of lane ^ 2."""
    agree = np.zeros(len(on), bool)
    for step in (1, 2):
        partner = np.arange(32) ^ step
        agree |= ((address == address[:, partner]) | ~on | ~on[:, partner]).all(axis=1)
    return agree


def _group_passes(address: np.ndarray, on: np.ndarray, groups: int, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Passes and non-empty groups with the lanes of a row split into ``groups`` neighbourhoods; ``unit`` bytes each."""
    slots = LINE // unit  # as many units lie side by side in the banks
    rows = len(on) * groups
    on = on.reshape(rows, 32 // groups)
    word = (address // np.uint64(unit)).reshape(rows, 32 // groups)
    some = on.any(axis=1)
    word = np.where(on, word, np.take_along_axis(word, on.argmax(axis=1)[:, None], axis=1))
    word = np.sort(word, axis=1)
    new = np.ones(word.shape, bool)
    new[:, 1:] = word[:, 1:] != word[:, :-1]
    bank = (word % np.uint64(slots)).astype(np.int64) + np.arange(rows)[:, None] * slots
    busiest = np.bincount(bank[new], minlength=rows * slots).reshape(rows, slots).max(axis=1)
    passes = np.where(some, busiest, 0).reshape(-1, groups).sum(axis=1)
    return passes, some.reshape(-1, groups).sum(axis=1)


def _distinct(address: np.ndarray, mask: np.ndarray, unit: int) -> np.ndarray:
    """How many different ``unit``-byte pieces the active lanes of each row touch (inactive ones repeat an active)."""
    piece = np.sort(address // np.uint64(unit), axis=1)
    return np.where(mask != 0, 1 + (piece[:, 1:] != piece[:, :-1]).sum(axis=1), 0)


# the trace ------------------------------------------------------------------------------------------------------------
@dataclass
class Trace:
    """Every access of a run (or of some blocks, see ``texlab.sim.run``), in the order in which each warp issued them.

    A row: ``launch`` and ``block`` (linear numbers), ``warp`` (in the block), ``step`` (grows within a block),
    ``instruction`` (index into ``instructions``), ``mask`` of active lanes, ``address`` (32,): bytes from the start of
    the block's shared memory, or byte addresses in global memory (``buffers`` tells whose). ``totals[name]`` has one
    number per instruction, over everything that ran, for each name of ``TOTALS``.
    """

    instructions: list[Instruction]
    totals: dict[str, np.ndarray]
    buffers: dict[str, Placed]
    launch: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    block: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    warp: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    step: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    instruction: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    address: np.ndarray = field(default_factory=lambda: np.zeros((0, 32), np.uint64))
    textures: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.mask)

    def bank_conflicts(self) -> DataFrame:
        """One row per instruction that accesses shared memory; ``conflicts`` are wavefronts above the ideal."""
        t = self._table("shared", ("requests", "wavefronts", "ideal_wavefronts"))
        t["conflicts"] = t.wavefronts - t.ideal_wavefronts
        t["wavefronts_per_request"] = t.wavefronts / t.requests
        return t

    def sectors(self) -> DataFrame:
        """One row per instruction that accesses global memory. ``bytes_used``: different bytes that the lanes of a
        request asked for; ``efficiency``: their share of the bytes moved (32 a sector)."""
        t = self._table("global", ("requests", "sectors", "lines", "lanes", "distinct"))
        t["sectors_per_request"] = t.sectors / t.requests
        t["active_lanes_per_request"] = t.lanes / t.requests
        t["bytes_used"] = t.distinct * t.width_bytes
        t["efficiency"] = t.bytes_used / (SECTOR * t.sectors)
        return t.drop(columns=["lanes", "distinct"])

    def texture(self, layout: str = "block-linear", levels: Any = cache.H200) -> DataFrame:
        """One row per instruction that reads through the L1 cache (texture fetches, surface reads, global loads), with what
        the model ``texlab.cache`` says: ``requests``, ``active_lanes_per_request``, ``sectors`` looked up (once for each
        group of lanes, ``cache.LANES``), ``sectors_per_request``, ``hits`` and ``hit_rate`` of these lookups in the L1,
        ``l2_bytes`` brought from the L2, ``bytes_used`` that lanes asked for.

        ``layout``: the address map of CUDA arrays; ``levels``: the L1 and L2 caches. Needs the rows (``trace=True``)."""
        import pandas as pd

        served = cache.run(self, levels=levels, layout=layout)
        which = self.instruction[served.row]
        out = []
        for n, ins in enumerate(self.instructions):
            mine, rows = which == n, self.instruction == n
            if not mine.any() or ins.space not in ("texture", "global"):
                continue
            requests, hits, total = int(rows.sum()), int(served.hit[mine].sum()), int(mine.sum())
            lanes = int(np.bitwise_count(self.mask[rows]).sum())
            names = {f: getattr(ins, f) for f in ("entry", "file", "line", "source", "opcode", "space")}
            out.append(
                {
                    **names,
                    "requests": requests,
                    "active_lanes_per_request": lanes / requests,
                    "sectors": total,
                    "sectors_per_request": total / requests,
                    "hits": hits,
                    "hit_rate": hits / total,
                    "l2_bytes": SECTOR * (total - hits),
                    "bytes_used": self._bytes_used(n, rows),
                }
            )
        return pd.DataFrame(out)

    def _bytes_used(self, n: int, rows: np.ndarray) -> int:
        """Bytes that the lanes of an instruction asked for, each lane's texel (or load) counted."""
        ins, lanes = self.instructions[n], int(np.bitwise_count(self.mask[rows]).sum())
        if ins.space != "texture":
            return lanes * ins.width
        first = self.address[rows][0, int(self.mask[rows][0] & -self.mask[rows][0]).bit_length() - 1]
        view = self.textures[int(unpack_texels(first)[0])]
        return lanes * view.texel_bytes(self.buffers[view.buffer].dtype)

    def by_line(self) -> DataFrame:
        """One row per source line, space and kind of access: requests, sectors, wavefronts, conflicts."""
        import pandas as pd

        names = ["requests", "sectors", "wavefronts", "conflicts"]
        index: dict[tuple[Any, ...], list[int]] = {}
        for i, ins in enumerate(self.instructions):
            key = (ins.entry, ins.file, ins.line, ins.source, ins.space, ins.kind)
            sums = index.setdefault(key, [0] * 4)
            conflicts = self.totals["wavefronts"][i] - self.totals["ideal_wavefronts"][i]
            for n, value in enumerate([*(self.totals[name][i] for name in names[:3]), conflicts]):
                sums[n] += int(value)
        entries = list(dict.fromkeys(ins.entry for ins in self.instructions))
        rows = sorted(((*k, *v) for k, v in index.items()), key=lambda r: (entries.index(r[0]), r[1], r[2]))
        return pd.DataFrame(rows, columns=["entry", "file", "line", "source", "space", "kind", *names])

    def _table(self, space: str, names: tuple[str, ...]) -> DataFrame:
        import pandas as pd

        keep = [i for i, ins in enumerate(self.instructions) if ins.space == space and self.totals["requests"][i]]
        picked = [self.instructions[i] for i in keep]
        columns: dict[str, Any] = {
            **{name: [getattr(ins, name) for ins in picked] for name in ("entry", "file", "line", "source", "opcode")},
            "kind": [ins.kind for ins in picked],
            "width_bytes": [ins.width for ins in picked],
            **{name: self.totals[name][keep] for name in names},
        }
        return pd.DataFrame(columns)

    def select(self, **equal: Any) -> np.ndarray:
        """Indices of the rows for which everything named is equal: ``launch``, ``block``, ``warp``, or an attribute of
        the instruction (``space="shared"``, ``kind="load"``, ``line=40``, ...), in issue order.

        >>> trace.select(block=0, warp=0, space="shared", kind="load")    # doctest: +SKIP
        """
        keep = np.ones(len(self), bool)
        for name, value in equal.items():
            if name in ("launch", "block", "warp"):
                keep &= getattr(self, name) == value
            elif name in Instruction.__dataclass_fields__:
                match = np.array([getattr(ins, name) == value for ins in self.instructions], bool)
                keep &= match[self.instruction] if len(match) else False
            else:
                raise ValueError(f"select: {name!r} is neither launch, block, warp nor one of an instruction's fields")
        return np.flatnonzero(keep)

    def rows(self, **equal: Any) -> DataFrame:
        """The selected rows (see ``select``) as a table, with the wavefronts or sectors of each."""
        import pandas as pd

        at = self.select(**equal)
        which = self.instruction[at]
        pick = lambda name: [getattr(self.instructions[i], name) for i in which]  # noqa: E731
        cost = {"wavefronts": np.zeros(len(at), np.int64), "sectors": np.zeros(len(at), np.int64)}
        for i in np.unique(which):
            ins, mine = self.instructions[i], which == i
            if ins.space == "texture":
                continue
            name, rule = ("wavefronts", wavefronts) if ins.space == "shared" else ("sectors", sectors)
            cost[name][mine] = rule(self.address[at][mine], self.mask[at][mine], ins.width)
        columns = {
            **{name: getattr(self, name)[at] for name in ("launch", "block", "warp", "step")},
            **{name: pick(name) for name in ("file", "line", "source", "opcode", "space", "kind")},
            "width_bytes": pick("width"),
            "active_lanes": np.bitwise_count(self.mask[at]),
            **cost,
        }
        return pd.DataFrame(columns, index=at)

    def elements(self, buffer: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, lane, flat element) of every access to a buffer; a vector access gives one triple per element.

        Raises KeyError for an unknown buffer."""
        if buffer not in self.buffers:
            raise KeyError(f"no buffer {buffer!r}; the trace knows {sorted(self.buffers)}")
        placed = self.buffers[buffer]
        size = np.dtype(placed.dtype).itemsize
        width = np.array([i.width if i.space == "global" else 0 for i in self.instructions], np.int64)
        out = []
        for w in np.unique(width[width > 0]):
            row = np.flatnonzero(width[self.instruction] == w)
            offset = self.address[row].astype(np.int64) - placed.base
            hit = active_lanes(self.mask[row]) & (offset >= 0) & (offset < placed.nbytes)
            r, lane = np.nonzero(hit)
            first = offset[r, lane] // size
            each = max(1, int(w) // size)
            out.append((np.repeat(row[r], each), np.repeat(lane, each), (first[:, None] + np.arange(each)).reshape(-1)))
        if not out:
            return (np.zeros(0, np.int64),) * 3
        rows, lanes, flat = (np.concatenate(part) for part in zip(*out, strict=True))
        order = np.lexsort((flat, lanes, rows))
        return rows[order], lanes[order], flat[order]
