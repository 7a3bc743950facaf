"""What a recording of textures asks of the hardware: fetches in every mode, and pairs of texels that may share a sector."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab import texture_probes
from texlab.textures import Texture

REACH = (16, 32)  # rows and columns around an anchor that are tried
ANCHORS = ((0, 0), (5, 6))  # y, x
_REGION = 64


def fetch_cases() -> dict[str, tuple[Texture, np.ndarray]]:
    """Name -> a texture and coordinates (dimensions, n): every mode, at edges, centres, corners and far outside."""
    rng = np.random.default_rng(4)
    out = {}
    for dtype in ("float32", "float16", "uint8"):
        for channels in (1, 4):
            for size in ((7,), (5, 6), (3, 4, 5)):
                shape = (*size, 4) if channels == 4 else size
                values = rng.integers(0, 256, shape) if dtype == "uint8" else rng.standard_normal(shape) * 8
                texels = values.astype(dtype)
                for filter in ("point", "linear"):
                    for normalized in (False, True):
                        for address in ("clamp", "border", "wrap", "mirror") if normalized else ("clamp", "border"):
                            for read in (
                                ("normalized",)
                                if dtype == "uint8" and filter == "linear"
                                else (("element", "normalized") if dtype == "uint8" else ("element",))
                            ):
                                how = dict(filter=filter, address=address, normalized=normalized, read=read)
                                name = f"{dtype} x{channels} {len(size)}d {filter} {address} {read}"
                                texture = Texture(texels, channels=channels, **how)
                                out[name + (" normalized coordinates" if normalized else "")] = (
                                    texture,
                                    coordinates(size, normalized),
                                )
    for dtype in ("float32", "uint8"):
        texels = (rng.standard_normal((5, 6)) * 8 if dtype == "float32" else rng.integers(0, 256, (5, 6))).astype(dtype)
        out[f"{dtype} linear memory, padded rows"] = (
            Texture(texels, memory="linear", address="border"),
            coordinates((5, 6), False),
        )
    texels = (rng.standard_normal(9) * 8).astype("float32")
    out["float32 linear memory"] = Texture(texels, memory="linear"), np.arange(-2, 11, dtype="f4")[None]
    return out


def coordinates(size: tuple[int, ...], normalized: bool) -> np.ndarray:
    """(dimensions, n) float32 in the order x, y, layer."""
    rng = np.random.default_rng(len(size) + 10 * normalized)
    width = size[-1]
    x = np.array(
        [
            -width - 0.3,
            -1.5,
            -1,
            -0.75,
            -0.5,
            -0.25,
            0,
            0.25,
            0.5,
            0.998,
            1,
            1.3,
            2.001953125,
            width - 0.5,
            width,
            width + 0.5,
            width + 1.7,
            2.6 * width,
        ]
    )
    x = np.concatenate([x, rng.uniform(-1.5, width + 1.5, 14)])
    out = [x]
    if len(size) > 1:
        out.append(
            rng.permutation(np.concatenate([np.linspace(-1.25, size[-2] + 1.25, 18), rng.uniform(0, size[-2], 14)]))
        )
    if len(size) > 2:
        out.append(rng.integers(0, size[0], len(x)).astype(float))
    if normalized:
        for k, extent in zip(range(2), size[::-1], strict=False):
            out[k] = out[k] / extent
    return np.stack(out).astype(np.float32)


def neighbour_pairs(side: int = 2048) -> dict[tuple[int, int], np.ndarray]:
    """Anchor -> pairs (rows*columns, 4) x, y, x, y: the anchor's texel and each in reach, every pair in a corner of the
    image of its own, so that nothing else has brought it into a cache."""
    out = {}
    dy, dx = (i.reshape(-1) for i in np.indices(REACH))
    regions = side // _REGION
    at = np.arange(len(dy))
    for anchor in ANCHORS:
        y0, x0 = at // regions * _REGION, at % regions * _REGION
        out[anchor] = np.stack([x0 + anchor[1], y0 + anchor[0], x0 + dx, y0 + dy], axis=1).astype(np.int32)
    return out


def neighbour_program(memory: str, pairs: np.ndarray, side: int = 2048) -> Any:
    """A block of one thread for each pair; output ``cycles``."""
    from texlab.catalog import source_of
    from texlab.program import Buffer, Launch, Program
    from texlab.views import TextureView

    return Program(
        name="texture_probe",
        source=source_of((texture_probes.FILE,)),
        buffers=(
            Buffer("image", (side, side)),
            Buffer("pairs", pairs.shape, "int32"),
            Buffer("cycles", (len(pairs),), "int32", role="output"),
        ),
        launches=(Launch("probe_latency", (len(pairs), 1, 1), (1, 1, 1), ("view", "pairs", "cycles")),),
        filename=texture_probes.FILE,
        textures=(TextureView("view", "image", (side, side), memory=memory),),
    )
