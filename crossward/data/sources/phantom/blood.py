"""The blood-smear phantom: white cells and platelets among red cells, drawn from recipes in each hospital's stain.

Everything is a smooth function of the place in an image that spans -1 to 1, so one scene can be drawn at any size.
NumPy, not torch: its results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from crossward.data.sources.phantom.canvas import FAR, Array, Doubles, Ints, edge, mottle, pixels, turns

Range = tuple[float, float]
Stain = tuple[float, float, float]  # how much a material takes up of azure (blue), eosin (pink) and orange

CLASSES = ("basophil", "eosinophil", "erythroblast", "immature granulocyte",
           "lymphocyte", "monocyte", "neutrophil", "platelet")  # fmt: skip
ABSORBS = ((0.95, 1.10, 0.32), (0.14, 0.75, 0.42), (0.06, 0.62, 0.95))  # [stain][colour of light]
GLASS = (0.02, 0.03, 0.01)  # what empty glass takes up
BLOOD = (0.05, 0.34, 0.20)  # what red cells take up
LOBES = 5  # of a nucleus, at most
RED = 16  # red cells in sight, at most: a 4 x 4 grid
MELT = 0.16  # how far apart, in cell radii, lobes begin to melt into each other
GRAIN = 14  # points along one side of the chromatin noise
TABLE = 64  # granules along one side of the repeating pattern that all are taken from; a power of two
PIXELS = 50_000  # drawn at once: what stays in a processor's cache


@dataclass(frozen=True)
class Recipe:
    """What a class looks like. Lengths other than `radius` and `grain` are in cell radii."""

    radius: Range
    nucleus: Range  # radius of a disc with the area of the whole nucleus
    lobes: tuple[int, int]
    spread: Range  # distance of the lobes from the centre of the cell
    step: Range  # angle between neighbouring lobes
    notch: Range  # radius of the bite that makes a nucleus a kidney
    grain: Range  # distance between granules
    cover: Range  # share of places that hold a granule
    over: float  # how well granules show above the nucleus
    cytoplasm: Stain
    chromatin: Stain
    granules: Stain


RECIPES = (  # in the order of CLASSES
    Recipe((0.48, 0.68), (0.56, 0.68), (2, 3), (0.30, 0.42), (1.6, 2.4), (0, 0), (0.20, 0.26), (0.70, 0.90), 1.0,
           (0.10, 0.30, 0.02), (0.55, 0.46, 0.02), (1.70, 0.80, 0.02)),
    Recipe((0.48, 0.68), (0.52, 0.62), (2, 2), (0.42, 0.54), (1.8, 2.6), (0, 0), (0.13, 0.17), (0.80, 1.00), 0.15,
           (0.04, 0.34, 0.34), (0.95, 0.60, 0.05), (0.02, 0.75, 0.95)),
    Recipe((0.40, 0.62), (0.46, 0.60), (1, 1), (0.00, 0.20), (0, 0), (0, 0), (0.10, 0.10), (0.00, 0.05), 0.0,
           (0.30, 0.32, 0.08), (1.70, 0.85, 0.10), (0.30, 0.32, 0.08)),
    Recipe((0.54, 0.76), (0.58, 0.72), (1, 1), (0.14, 0.28), (0, 0), (0.0, 0.40), (0.10, 0.13), (0.45, 0.80), 0.3,
           (0.14, 0.36, 0.02), (0.72, 0.72, 0.02), (0.50, 0.85, 0.02)),
    Recipe((0.42, 0.62), (0.72, 0.86), (1, 1), (0.00, 0.12), (0, 0), (0.0, 0.15), (0.10, 0.10), (0.00, 0.05), 0.0,
           (0.50, 0.04, 0.00), (1.15, 0.55, 0.02), (0.60, 0.50, 0.00)),
    Recipe((0.54, 0.76), (0.58, 0.68), (1, 1), (0.10, 0.22), (0, 0), (0.45, 0.65), (0.12, 0.16), (0.05, 0.20), 0.0,
           (0.38, 0.08, 0.10), (0.66, 0.34, 0.00), (0.14, 0.04, 0.04)),  # its "granules" are pale vacuoles
    Recipe((0.48, 0.68), (0.52, 0.64), (3, 5), (0.42, 0.54), (0.9, 1.3), (0, 0), (0.09, 0.12), (0.50, 0.90), 0.1,
           (0.03, 0.20, 0.04), (1.05, 0.75, 0.02), (0.10, 0.46, 0.04)),
    Recipe((0.14, 0.25), (0.45, 0.85), (1, 3), (1.6, 3.2), (1.0, 3.1), (0, 0), (0.09, 0.12), (0.60, 0.95), 1.0,
           (0.24, 0.30, 0.00), (0.50, 0.50, 0.00), (0.90, 0.75, 0.00)),  # its further "lobes" are further platelets
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """A hospital: stain, optics and camera."""

    stain: Array  # (3, 3): what its azure, eosin and orange absorb of red, green and blue
    light: Array  # (3,): colour of empty glass
    tilt: Array  # (2,): illumination gradient along x and y
    blur: float  # in image units
    noise: float  # standard deviation of a pixel in [0, 1]
    zoom: float


def style(rng: np.random.Generator, difficulty: float) -> Style:
    """Draw a hospital."""
    far = min(difficulty, 2.0)
    tint = np.exp(rng.normal(0, 0.07 * far, (3, 3)) + rng.normal(0, 0.10 * far, (3, 1)))
    return Style(
        stain=((np.eye(3) + far * rng.uniform(0, 0.06, (3, 3))) @ (ABSORBS * tint)).astype(np.float32),
        light=rng.uniform([0.86, 0.80, 0.78], [0.99, 0.95, 0.97]).astype(np.float32),
        tilt=(rng.uniform(0, 0.12) * far * turns(1, rng)[0, 0]).astype(np.float32),
        blur=float(rng.uniform(0.003, 0.014) * far),
        noise=float(rng.uniform(0.006, 0.020) * difficulty),
        zoom=float(np.exp(rng.normal(0, 0.06 * far))),
    )


@dataclass(frozen=True)
class Scene:
    """What is in n images, before any pixel is drawn; every field has n rows."""

    centre: Array  # (n, 2) of the white cell
    radius: Array  # (n,)
    frame: Array  # (n, 2, 2): image to cell coordinates, where the cell is the unit disc
    waves: Array  # (n, 2, 2, 3): amplitude, frequency and phase of the warp of u and v along x and y
    lobes: Array  # (n, LOBES, 3): x, y, radius in cell coordinates
    notch: Array  # (n, 3): the same
    grains: Array  # (n, 3): cosine and sine of the granule grid, times its frequency, and its shift
    cover: Array  # (n, 3): share of places with a granule, visibility over the nucleus, contrast of the chromatin
    chromatin: Array  # (n, GRAIN, GRAIN)
    red: Array  # (n, RED, 4): x, y, half-axes
    pallor: Array  # (n,): how pale the centres of red cells are
    stains: Array  # (n, 5, 3): glass, red cells, cytoplasm, nucleus, granules
    light: Array  # (n, 5): exposure of red, green and blue, and illumination gradient along x and y


def scene(labels: Ints, patients: Ints, zoom: float, rng: np.random.Generator, difficulty: float) -> Scene:
    """Draw what is in the images of these classes; the images of a patient are of one slide."""
    n = len(labels)
    far = min(difficulty, 2.0)

    def within(name: str) -> Doubles:
        low, high = np.array([getattr(recipe, name) for recipe in RECIPES])[labels].T
        return np.asarray(np.maximum(0, (low + high) / 2 + (high - low) / 2 * far * rng.uniform(-1, 1, n)), np.float64)

    radius = within("radius") * zoom
    centre = np.clip(rng.uniform(-0.52, 0.52, (n, 2)) * far, -0.6, 0.6)
    stretch = np.exp(rng.normal(0, 0.06 * far, n))
    frame = turns(n, rng) * np.stack([stretch, 1 / stretch], 1)[:, :, None] / radius[:, None, None]
    often = rng.uniform(2.5, 6.0, (n, 2, 2)) / np.sqrt(radius)[:, None, None]
    waves = np.stack([rng.uniform(0.01, 0.05, (n, 2, 2)) * far, often, rng.uniform(0, 7, (n, 2, 2))], 3)
    lobes, notch = _nucleus(labels, within, rng)
    grains = np.concatenate([turns(n, rng)[:, 0] / within("grain")[:, None], rng.uniform(0, TABLE, (n, 1))], 1)
    cover = np.stack([within("cover"), np.array([r.over for r in RECIPES])[labels], rng.uniform(0.08, 0.25, n)], 1)
    chromatin = rng.normal(0, 1, (n, GRAIN, GRAIN))
    red = _red_cells(centre, radius, zoom, rng)
    exposure = np.exp(rng.normal(0, 0.06 * far, (n, 1)) + rng.normal(0, 0.02 * far, (n, 3)))
    light = np.concatenate([exposure, rng.normal(0, 0.07 * far, (n, 2))], 1)
    pallor = rng.uniform(0.3, 0.85, n)
    stains = _stains(labels, patients, rng, far)
    drawn = (centre, radius, frame, waves, lobes, notch, grains, cover, chromatin, red, pallor, stains, light)
    return Scene(*(np.asarray(values, np.float32) for values in drawn))


def _nucleus(labels: Ints, within: Callable[[str], Doubles], rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Lobes along an arc around the centre of the cell, (n, LOBES, 3), and the bite out of the first, (n, 3)."""
    n = len(labels)
    order = np.arange(LOBES)
    low, high = np.array([recipe.lobes for recipe in RECIPES])[labels].T
    count = rng.integers(low, high, endpoint=True)[:, None]
    angles = rng.uniform(0, 2 * np.pi, (n, 1)) + (order - (count - 1) / 2) * within("step")[:, None]
    away = within("spread")[:, None] * np.exp(rng.normal(0, 0.12, (n, LOBES)))
    away[labels == CLASSES.index("platelet"), 0] = 0.0
    away = np.where(order < count, away, FAR)
    size = within("nucleus")[:, None] / np.sqrt(count) * np.exp(rng.normal(0, 0.10, (n, LOBES)))
    lobes = np.stack([away * np.cos(angles), away * np.sin(angles), size], 2)
    bite = within("notch")
    side = angles[:, 0] + np.pi + rng.normal(0, 0.3, n)
    reach = size[:, 0] * rng.uniform(0.95, 1.15, n) + 0.35 * bite
    return lobes, np.stack([lobes[:, 0, 0] + reach * np.cos(side), lobes[:, 0, 1] + reach * np.sin(side), bite], 1)


def _red_cells(centre: Doubles, radius: Doubles, zoom: float, rng: np.random.Generator) -> Doubles:
    """Red cells on a jittered hexagonal grid, pushed aside by the white cell; some are missing: (n, RED, 4)."""
    n, (row, column) = len(centre), np.divmod(np.arange(RED), 4)
    grid = 0.74 * zoom * np.stack([column + 0.5 * (row % 2) - 1.75, 0.87 * (row - 1.5)], 1)
    places = (grid + rng.normal(0, 0.07, (n, RED, 2)) + rng.uniform(-0.35, 0.35, (n, 1, 2))) @ turns(n, rng)
    axes = zoom * rng.uniform(0.29, 0.36, (n, 1, 1)) * np.exp(rng.normal(0, 0.06, (n, RED, 2)))
    apart = places - centre[:, None]
    length = np.linalg.norm(apart, axis=2) + 1e-6
    wanted = np.maximum(length, radius[:, None] + 0.85 * axes.mean(2))
    wanted[rng.random((n, RED)) > rng.uniform(0.45, 1.0, (n, 1))] = FAR
    return np.concatenate([centre[:, None] + apart * (wanted / length)[..., None], axes], 2)


def _stains(labels: Ints, patients: Ints, rng: np.random.Generator, far: float) -> Doubles:
    """What glass, red cells, cytoplasm, nucleus and granules take up: (n, 5, 3)."""
    n = len(labels)
    slides = int(patients.max(initial=-1)) + 1
    usual = np.array([[GLASS, BLOOD, recipe.cytoplasm, recipe.chromatin, recipe.granules] for recipe in RECIPES])
    slide = rng.normal(0, 0.07 * far, (slides, 1, 3)) * np.ones((5, 1))
    slide[:, 1] += rng.normal(0, [0.15, 0.15, 0.35], (slides, 3))  # anaemia and ageing colour the red cells
    own = rng.normal(0, 0.05 * far, (n, 5, 3)) + rng.normal(0, 0.06 * far, (n, 5, 1))
    return usual[labels] * np.exp(slide[patients] + own)


def draw(scene: Scene, style: Style, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(n, size, size, 3) images of a scene as a hospital sees it."""
    images = np.empty((len(scene.radius), size, size, 3), np.uint8)
    pattern = np.random.default_rng(0).uniform(0, 1, (4, TABLE**2)).astype(np.float32)
    for start in range(0, len(images), step := max(1, PIXELS // size**2)):
        rows = slice(start, start + step)
        part = Scene(*(getattr(scene, field.name)[rows] for field in fields(scene)))
        images[rows] = _exposed(_uptake(part, pattern, style, size), part.light, style, rng)
    return images


def _uptake(scene: Scene, pattern: Array, style: Style, size: int) -> list[Array]:
    """What each pixel has taken up of azure, eosin and orange: three of (B, H, W)."""
    soft = float(np.hypot(style.blur, 0.6 / size))
    x = pixels(size)
    u, v = _cell_frame(scene, x)
    own = soft / scene.radius[:, None, None]  # softness in cell radii
    body = edge(np.sqrt(u * u + v * v) - 1, own)
    core = edge(_nucleus_distance(scene, u, v), own)
    blood = _blood(scene, x, soft)
    _, over, contrast = scene.cover.T[..., None, None]
    grains = edge(_granule_distance(scene, pattern, x), soft * np.hypot(*scene.grains.T[:2])[:, None, None])
    grains *= np.maximum(body, core) * (1 - (1 - over) * core)
    texture = 1 + contrast * mottle(scene.chromatin, size)
    taken = []
    for stain in range(3):
        glass, red, cytoplasm, nucleus, granule = scene.stains[:, :, stain].T[..., None, None]
        c = blood * red + glass
        c += body * (cytoplasm - c)
        c += core * (nucleus * texture - c)
        c += grains * (granule - c)
        taken.append(c)
    return taken


def _cell_frame(scene: Scene, x: Array) -> tuple[Array, Array]:
    """Warped coordinates in which the white cell is the unit disc; each is a function of x plus one of y."""
    d = x - scene.centre[:, None, :, None]  # (B, 1, 2, size)
    amplitude, often, phase = scene.waves.transpose(3, 0, 1, 2)[..., None]
    part = scene.frame[..., None] * d + amplitude * np.sin(often * d + phase)  # (B, 2, 2, size)
    return part[:, 0, 0, None, :] + part[:, 0, 1, :, None], part[:, 1, 0, None, :] + part[:, 1, 1, :, None]


def _nucleus_distance(scene: Scene, u: Array, v: Array) -> Array:
    """Signed distance, in cell radii, to lobes that melt into each other, less the bite."""
    away: Array = np.full_like(u, FAR)
    for x, y, r in scene.lobes.transpose(1, 2, 0)[..., None, None]:
        away = _melted(away, np.sqrt((u - x) ** 2 + (v - y) ** 2) - r)
    x, y, r = scene.notch.T[..., None, None]
    return -_melted(-away, np.sqrt((u - x) ** 2 + (v - y) ** 2) - r)


def _melted(a: Array, b: Array) -> Array:
    """The union of two shapes given by distances, with a smooth seam."""
    return np.asarray(np.minimum(a, b) - np.maximum(MELT - np.abs(a - b), 0) ** 2 * (0.25 / MELT), np.float32)


def _blood(scene: Scene, x: Array, soft: float) -> Array:
    """How thick red cells are, (B, H, W): discs with a paler centre."""
    nearest: Array = np.full((len(scene.red), len(x), len(x)), FAR, np.float32)
    for cx, cy, rx, ry in scene.red.transpose(1, 2, 0)[..., None]:
        across, down = ((x - cx) / rx) ** 2, ((x - cy) / ry) ** 2
        np.minimum(nearest, across[:, None, :] + down[:, :, None], out=nearest)
    pale: Array = scene.pallor[:, None, None] * np.square(np.maximum(1 - 1.4 * nearest, 0))
    usual = scene.red[:, :, 2:].mean((1, 2))[:, None, None]
    return edge(np.sqrt(nearest) - 1, soft / usual) * (1 - pale)


def _granule_distance(scene: Scene, pattern: Array, x: Array) -> Array:
    """Distance to the nearest granule, (B, H, W): two turned grids with at most one granule in each square."""
    nearest: Array = np.full((len(scene.grains), len(x), len(x)), FAR, np.float32)
    cosine, sine, shift = scene.grains.T[..., None]
    for c, s in ((cosine, sine), (0.6 * cosine - 0.8 * sine, 0.8 * cosine + 0.6 * sine)):
        u = (c * x + shift)[:, None, :] + (s * x)[:, :, None]
        v = (shift - s * x)[:, None, :] + (c * x)[:, :, None]
        column, row = np.floor(u), np.floor(v)
        at = (column.astype(np.int32) & (TABLE - 1)) * TABLE + (row.astype(np.int32) & (TABLE - 1))
        u -= column + (0.3 + 0.4 * pattern[0])[at]
        v -= row + (0.3 + 0.4 * pattern[1])[at]
        away = np.sqrt(u * u + v * v) - (0.2 + 0.12 * pattern[2])[at]
        away += FAR * (pattern[3][at] > scene.cover[:, 0, None, None])
        np.minimum(nearest, away, out=nearest)
    return nearest


def _exposed(taken: list[Array], light: Array, style: Style, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light through the stained smear onto a noisy camera: (B, H, W, 3)."""
    count, size, _ = taken[0].shape
    across, down = (light.T[3:, :, None] + style.tilt[:, None, None]) * pixels(size)
    bright = (1 + across)[:, None, :] + down[:, :, None]
    image = rng.standard_normal((count, size, size, 3), np.float32) * (255 * style.noise) + 0.5
    for colour in range(3):
        azure, eosin, orange = (-absorbs * c for absorbs, c in zip(style.stain[:, colour], taken, strict=True))
        lit = 255 * style.light[colour] * light[:, colour, None, None]
        image[..., colour] += np.exp(azure + eosin + orange) * bright * lit
    return np.clip(image, 0, 255, out=image).astype(np.uint8)
