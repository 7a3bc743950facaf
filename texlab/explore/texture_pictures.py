"""Two pictures drawn by formulas, so that nothing needs to be shipped: a landscape in colour and a face in black and white."""

from __future__ import annotations

import numpy as np


def landscape(height: int = 192, width: int = 256) -> np.ndarray:
    """A house by a lake under mountains: uint8 (height, width, 4), RGB and opaque.

    >>> landscape(48, 64).shape
    (48, 64, 4)
    """
    y, x = np.mgrid[0:height, 0:width].astype(float)
    u, v = x / width * 4 / 3, y / height  # v runs down from 0 to 1, u from 0 to 4/3
    image = np.empty((height, width, 3))

    def paint(where: np.ndarray, colour: tuple[int, int, int], shade: np.ndarray | float = 1.0) -> None:
        image[where] = (np.array(colour) * np.broadcast_to(shade, u.shape)[..., None])[where]

    def mountain(top_u: float, top_v: float, slope: float, colour: tuple[int, int, int]) -> None:
        ridge = top_v + slope * np.abs(u - top_u) + 0.012 * np.sin(61 * u) + 0.008 * np.sin(143 * u + 1)
        paint(v > ridge, colour, 1.1 - 0.5 * (u > top_u))
        paint((v > ridge) & (v < top_v + 0.1 + 0.02 * np.sin(90 * u)), (250, 252, 255), 1.0 - 0.12 * (u > top_u))

    paint(v <= 1, (120, 180, 240), 0.8 + 0.35 * v)
    paint((u - 1.08) ** 2 + (v - 0.17) ** 2 < 0.085**2, (255, 215, 60))
    for cu, cv, size in ((0.25, 0.16, 0.07), (0.33, 0.14, 0.09), (0.42, 0.17, 0.06)):
        paint((u - cu) ** 2 + 2.4 * (v - cv) ** 2 < size**2, (255, 255, 255))
    mountain(0.95, 0.28, 0.75, (104, 112, 132))
    mountain(0.45, 0.2, 0.8, (88, 96, 116))
    paint(v > 0.62 + 0.05 * np.sin(4 * u + 0.5), (86, 150, 70), 1.15 - 0.4 * (v - 0.6))
    lake = (u - 0.95) ** 2 + 9 * (v - 0.84) ** 2 < 0.32**2
    paint(lake, (70, 130, 200), 1.0 + 0.12 * np.sin(120 * v + 6 * np.sin(9 * u)))
    paint((np.abs(u - 0.36) < 0.13) & (v > 0.62) & (v < 0.82), (235, 220, 190))
    paint((v > 0.5) & (v < 0.62) & (np.abs(u - 0.36) < 0.16 * (v - 0.5) / 0.12), (190, 60, 50))
    paint((np.abs(u - 0.36) < 0.028) & (v > 0.71) & (v < 0.82), (110, 70, 45))
    for cu in (0.285, 0.435):
        paint((np.abs(u - cu) < 0.03) & (np.abs(v - 0.7) < 0.03), (255, 235, 120))
        paint(
            ((np.abs(u - cu) < 0.004) | (np.abs(v - 0.7) < 0.005)) & (np.abs(u - cu) < 0.03) & (np.abs(v - 0.7) < 0.03),
            (90, 60, 40),
        )
    for cu, base in ((0.08, 0.86), (0.62, 0.76), (1.27, 0.8)):
        paint((np.abs(u - cu) < 0.012) & (v > base - 0.06) & (v < base), (100, 70, 45))
        paint((v > base - 0.26) & (v < base - 0.05) & (np.abs(u - cu) < 0.075 * (v - base + 0.26) / 0.21), (36, 96, 58))
    out = np.full((height, width, 4), 255, np.uint8)
    out[..., :3] = np.clip(image, 0, 255)
    return out


def face(size: int = 32) -> np.ndarray:
    """A smiling face: float32 (size, size), 0 where it is dark and 1 where it is light."""
    y, x = (np.mgrid[0:size, 0:size] + 0.5) / size * 2 - 1
    r = np.hypot(x, y)
    dark = np.abs(r - 0.86) < 0.075
    for side in (-1, 1):
        dark |= np.hypot((x - side * 0.33) / 0.9, (y + 0.28) / 1.5) < 0.13
    smile = np.hypot(x, y - 0.02)
    dark |= (np.abs(smile - 0.5) < 0.075) & (y > 0.16)
    return np.where(dark, 0, 1).astype(np.float32)
