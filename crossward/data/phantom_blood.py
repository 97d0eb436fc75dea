"""The blood-smear phantom: white cells, red cells and platelets drawn from seeded recipes, in each hospital's stain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
Within = Callable[[str], Doubles]
Range = tuple[float, float]
Stain = tuple[float, float, float]  # how much a material takes up of: azure (blue), eosin (pink), orange

CLASSES = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocyte",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
LOBES = 5  # most lobes of a nucleus
import os
CAST = float(os.environ.get('CAST','.02'))
PLATELET = 7
FAR = 9.0  # out of sight, in any unit
RED = 16  # most red cells in sight: a jittered 4 x 4 grid
TABLE = 64  # granules along one side of the repeating pattern they are taken from
GRAIN = 14  # points along one side of the chromatin noise
PIXELS = 50_000  # drawn at once: what stays in a processor's cache
# rows: what azure, eosin and orange absorb of red, green and blue light
ABSORBS = ((0.95, 1.10, 0.32), (0.14, 0.75, 0.42), (0.06, 0.62, 0.95))


@dataclass(frozen=True)
class Recipe:
    """What a class looks like. Lengths below `radius` are in cell radii; the image is 2 x 2."""

    radius: Range
    nucleus: Range  # radius of a disc with the area of the whole nucleus
    lobes: tuple[int, int]
    spread: Range  # distance of the lobes from the centre of the cell
    step: Range  # angle between neighbouring lobes
    notch: Range  # radius of the bite that makes a nucleus a kidney
    chromatin: Stain
    cytoplasm: Stain
    granules: Stain
    grain: Range  # distance between granules, in image units
    cover: Range  # share of places that hold a granule
    over: float  # how well granules show above the nucleus


RECIPES = (
    Recipe((0.48, 0.68), (0.56, 0.68), (2, 3), (0.30, 0.42), (1.6, 2.4), (0, 0), (0.55, 0.46, 0.02), (0.10, 0.30, 0.02),
           (1.70, 0.80, 0.02), (0.20, 0.26), (0.60, 0.85), 1.0),
    Recipe((0.48, 0.68), (0.52, 0.62), (2, 2), (0.42, 0.54), (1.8, 2.6), (0, 0), (0.95, 0.60, 0.05), (0.04, 0.34, 0.34),
           (0.02, 0.75, 0.95), (0.13, 0.17), (0.8, 1.0), 0.15),
    Recipe((0.40, 0.62), (0.42, 0.56), (1, 1), (0.0, 0.20), (0, 0), (0, 0), (1.70, 0.85, 0.10), (0.22, 0.34, 0.18),
           (0.26, 0.30, 0.12), (0.08, 0.10), (0.0, 0.05), 0.0),
    Recipe((0.54, 0.76), (0.58, 0.72), (1, 1), (0.14, 0.28), (0, 0), (0.0, 0.40), (0.72, 0.70, 0.02), (0.14, 0.34, 0.02),
           (0.70, 0.85, 0.02), (0.13, 0.17), (0.35, 0.7), 0.4),
    Recipe((0.42, 0.62), (0.72, 0.86), (1, 1), (0.0, 0.12), (0, 0), (0.0, 0.15), (1.15, 0.55, 0.02), (0.50, 0.04, 0.0),
           (0.60, 0.50, 0.0), (0.08, 0.10), (0.0, 0.05), 0.0),
    Recipe((0.54, 0.76), (0.58, 0.68), (1, 1), (0.10, 0.22), (0.6, 0.9), (0.42, 0.65), (0.66, 0.34, 0.0), (0.38, 0.08, 0.10),
           (0.14, 0.04, 0.04), (0.12, 0.16), (0.05, 0.3), 0.0),
    Recipe((0.48, 0.68), (0.48, 0.60), (3, 5), (0.42, 0.56), (1.0, 1.4), (0, 0), (1.05, 0.60, 0.02), (0.03, 0.20, 0.04),
           (0.12, 0.46, 0.04), (0.09, 0.12), (0.5, 0.9), 0.1),
    Recipe((0.14, 0.25), (0.45, 0.85), (1, 3), (1.6, 3.2), (1.0, 3.1), (0, 0), (0.50, 0.50, 0.0), (0.24, 0.30, 0.0),
           (0.90, 0.75, 0.0), (0.09, 0.12), (0.6, 0.95), 1.0),
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
    tint = np.exp(rng.normal(0, 0.10 * far, (3, 3))) * np.exp(rng.normal(0, 0.14 * far, (3, 1)))
    mixing = np.eye(3) + far * rng.uniform(0, 0.10, (3, 3))
    angle, slope = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.12) * far
    return Style(
        stain=(mixing @ (np.array(ABSORBS) * tint)).astype(np.float32),
        light=rng.uniform([0.86, 0.80, 0.78], [0.99, 0.95, 0.97]).astype(np.float32),
        tilt=(slope * np.array([np.cos(angle), np.sin(angle)])).astype(np.float32),
        blur=float(rng.uniform(0.004, 0.018) * far),
        noise=float(rng.uniform(0.008, 0.025) * difficulty),
        zoom=float(np.exp(rng.normal(0, 0.06 * far))),
    )


@dataclass(frozen=True)
class Scene:
    """What is in n images, before any pixel is drawn; every field has n rows."""

    centre: Array  # (n, 2)
    frame: Array  # (n, 2, 2): image to cell coordinates, where the cell is the unit disc
    waves: Array  # (n, 4, 3): amplitude, frequency and phase of the warp of that frame
    lobes: Array  # (n, LOBES, 3): x, y, radius in cell coordinates
    notch: Array  # (n, 3): the same
    scale: Array  # (n,): image units in a cell radius
    red: Array  # (n, RED, 4): x, y, radius, pallor
    stains: Array  # (n, 5, 3): glass, red cells, cytoplasm, nucleus, granules
    grains: Array  # (n, 2, 3): image to granule coordinates: cosine, sine (times frequency) and shift
    cover: Array  # (n, 3): share of places with a granule, visibility over the nucleus, contrast of the chromatin
    chromatin: Array  # (n, GRAIN, GRAIN)
    light: Array  # (n, 5): exposure of red, green and blue, and illumination gradient along x and y


def scene(labels: Ints, patients: Ints, zoom: float, rng: np.random.Generator, difficulty: float) -> Scene:
    """Draw what is in the images of these classes; images of a patient share their stain and red cells."""
    n, far = len(labels), min(difficulty, 2.0)

    def within(name: str) -> Doubles:
        low, high = np.array([getattr(r, name) for r in RECIPES], np.float64)[labels].T
        middle, half = (low + high) / 2, (high - low) / 2
        return np.clip(middle + half * far * rng.uniform(-1, 1, n), 0.0, None)

    radius = within("radius") * zoom
    centre = np.clip(rng.uniform(-0.45, 0.45, (n, 2)) * far, -0.6, 0.6)
    angle, stretch = rng.uniform(0, 2 * np.pi, n), np.exp(rng.normal(0, 0.09 * far, n))
    turn = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], 1).reshape(n, 2, 2)
    axes = np.stack([stretch, 1 / stretch], 1)[:, :, None] / radius[:, None, None]
    amplitude = rng.uniform(0.01, 0.05, (n, 4)) * far
    waves = np.stack([amplitude, rng.uniform(2.5, 6.0, (n, 4)) / radius[:, None] ** 0.5, rng.uniform(0, 7, (n, 4))], 2)
    lobes, notch = _nucleus(labels, within, rng)
    often, lean = 1 / within("grain"), rng.uniform(0, 2 * np.pi, n)
    grains = np.stack([often * np.cos(lean), often * np.sin(lean), rng.uniform(0, TABLE, n)], 1)
    cover = np.stack([within("cover"), np.array([r.over for r in RECIPES])[labels], rng.uniform(0.1, 0.35, n)], 1)
    light = np.concatenate([np.exp(rng.normal(0, 0.10 * far, (n, 1)) + rng.normal(0, CAST * far, (n, 3))), rng.normal(0, 0.08 * far, (n, 2))], 1)
    drawn = (centre, turn * axes, waves, lobes, notch, radius, _red(centre, radius, zoom, rng),
             _stains(labels, patients, rng, far), grains, cover, rng.normal(0, 1, (n, GRAIN, GRAIN)), light)  # fmt: skip
    return Scene(*(np.asarray(values, np.float32) for values in drawn))


def _nucleus(labels: Ints, within: Within, rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Lobes along an arc around the centre of the cell, (n, LOBES, 3), and the bite out of them, (n, 3)."""
    n = len(labels)
    low, high = np.array([r.lobes for r in RECIPES])[labels].T
    count = rng.integers(low, high + 1)[:, None]  # (n, 1)
    order = np.arange(LOBES)[None, :]
    angles = rng.uniform(0, 2 * np.pi, (n, 1)) + (order - (count - 1) / 2) * within("step")[:, None]
    away = within("spread")[:, None] * np.exp(rng.normal(0, 0.12, (n, LOBES)))
    away = np.where((labels[:, None] == PLATELET) & (order == 0), 0.0, away)
    size = within("nucleus")[:, None] / np.sqrt(count) * np.exp(rng.normal(0, 0.10, (n, LOBES)))
    away = np.where(order < count, away, FAR)
    lobes = np.stack([away * np.cos(angles), away * np.sin(angles), size], 2)
    bite, side = within("notch"), angles[:, 0] + np.pi + rng.normal(0, 0.3, n)
    reach = size[:, 0] * rng.uniform(0.95, 1.15, n) + 0.35 * bite
    notch = np.stack([lobes[:, 0, 0] + reach * np.cos(side), lobes[:, 0, 1] + reach * np.sin(side), bite], 1)
    return lobes, notch


def _red(centre: Doubles, radius: Doubles, zoom: float, rng: np.random.Generator) -> Doubles:
    """Red cells on a jittered, turned, hexagonal grid, pushed aside by the white cell: (n, RED, 4)."""
    n, side = len(centre), int(RED**0.5)
    row, column = np.divmod(np.arange(RED), side)
    grid = np.stack([column - (side - 1) / 2 + 0.5 * (row % 2) - 0.25, 0.87 * (row - (side - 1) / 2)], 1)
    angle = rng.uniform(0, 2 * np.pi, n)
    turn = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], 1).reshape(n, 2, 2)
    places = (0.74 * zoom * grid + rng.normal(0, 0.07, (n, RED, 2)) + rng.uniform(-0.35, 0.35, (n, 1, 2))) @ turn
    sizes = zoom * rng.uniform(0.29, 0.36, (n, 1)) * np.exp(rng.normal(0, 0.05, (n, RED)))
    apart = places - centre[:, None]
    length = np.linalg.norm(apart, axis=2) + 1e-6
    wanted = np.maximum(length, radius[:, None] + 0.85 * sizes)
    absent = rng.random((n, RED)) > rng.uniform(0.45, 1.0, (n, 1))
    places = centre[:, None] + apart / length[..., None] * np.where(absent, FAR, wanted)[..., None]
    return np.concatenate([places, sizes[..., None], rng.uniform(0.25, 0.75, (n, RED, 1))], 2)


def _stains(labels: Ints, patients: Ints, rng: np.random.Generator, far: float) -> Doubles:
    """What glass, red cells, cytoplasm, nucleus and granules take up: (n, 5, 3)."""
    n = len(labels)
    own = np.array([[r.cytoplasm, r.chromatin, r.granules] for r in RECIPES])[labels]
    fixed = np.broadcast_to(np.array([[0.02, 0.03, 0.01], [0.05, 0.34, 0.20]]), (n, 2, 3)) * np.ones((n, 1, 1))
    fixed[:, 1] *= np.exp(rng.normal(0, [0.3, 0.25, 0.6], (n, 3)))
    slides = np.exp(rng.normal(0, 0.09 * far, (int(patients.max(initial=0)) + 1, 1, 3)))
    jitter = np.exp(rng.normal(0, 0.07 * far, (n, 5, 3)) + rng.normal(0, 0.08 * far, (n, 5, 1)))
    return np.concatenate([fixed, own], 1) * slides[patients] * jitter


def draw(scene: Scene, style: Style, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(n, size, size, 3) images of a scene, seen by a hospital."""
    n = len(scene.scale)
    images = np.empty((n, size, size, 3), np.uint8)
    step = max(1, PIXELS // size**2)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        part = Scene(*(getattr(scene, f.name)[rows] for f in fields(scene)))
        images[rows] = _expose(_uptake(part, style, size), part.light, style, rng)
    return images


def _uptake(scene: Scene, style: Style, size: int) -> list[Array]:
    """What each pixel has taken up of azure, eosin and orange: three of (B, H, W)."""
    soft = float(np.hypot(style.blur, 0.3 * 2 / size))
    x = pixels(size)
    u, v = _cell_frame(scene, x)
    stains = scene.stains[..., None, None]  # (B, 5, 3, 1, 1)
    own = soft / scene.scale[:, None, None]  # softness in cell radii
    body = edge(np.sqrt(u * u + v * v) - 1, own)
    core = edge(_nucleus_distance(scene, u, v), own)
    texture = 1 + scene.cover[:, 2, None, None] * mottle(scene.chromatin, size)
    blood = _red_cells(scene, x, soft)
    grains = _granules(scene, x, soft)
    over = scene.cover[:, 1, None, None]
    grains *= np.maximum(body, core) * (1 - (1 - over) * core)
    taken = []
    for k in range(3):
        glass, red, cytoplasm, nucleus, granule = (stains[:, m, k] for m in range(5))
        c = blood * red
        c += glass
        c += body * (cytoplasm - c)
        c += core * (nucleus * texture - c)
        c += grains * (granule - c)
        taken.append(c)
    return taken


def _cell_frame(scene: Scene, x: Array) -> tuple[Array, Array]:
    """Warped coordinates in which the white cell is the unit disc: each is a sum of a row and a column."""
    dx, dy = x - scene.centre[:, :1], x - scene.centre[:, 1:]  # (B, size)
    amplitude, often, phase = scene.waves.transpose(2, 0, 1)[..., None]  # (B, 4, 1)
    axes = scene.frame[..., None]  # (B, 2, 2, 1)
    u = [axes[:, 0, k] * d + amplitude[:, k] * np.sin(often[:, k] * d + phase[:, k]) for k, d in enumerate((dx, dy))]
    v = [axes[:, 1, k] * d + amplitude[:, 2 + k] * np.sin(often[:, 2 + k] * d + phase[:, 2 + k]) for k, d in enumerate((dx, dy))]
    return u[0][:, None, :] + u[1][:, :, None], v[0][:, None, :] + v[1][:, :, None]


def _nucleus_distance(scene: Scene, u: Array, v: Array) -> Array:
    """Signed distance to lobes that melt into each other, less the bite, in cell radii."""
    lobes = scene.lobes[..., None, None]
    melt = np.float32(0.16)
    far: Array | None = None
    for k in range(LOBES):
        d = np.hypot(u - lobes[:, k, 0], v - lobes[:, k, 1]) - lobes[:, k, 2]
        if far is None:
            far = d
            continue
        h = np.maximum(melt - np.abs(far - d), 0)
        far = np.minimum(far, d) - h * h / (4 * melt)
    assert far is not None
    notch = scene.notch[..., None, None]
    bite = notch[:, 2] - np.hypot(u - notch[:, 0], v - notch[:, 1])
    h = np.maximum(melt - np.abs(far - bite), 0)
    return np.maximum(far, bite) + h * h / (4 * melt)


def _red_cells(scene: Scene, x: Array, soft: float) -> Array:
    """How thick the red cells are, (B, H, W): discs with a paler centre."""
    thick: Array = np.zeros((len(scene.red), len(x), len(x)), np.float32)
    for k in range(RED):
        cx, cy, r, pale = scene.red[:, k, :, None].transpose(1, 0, 2)
        q = (((x - cx) / r) ** 2)[:, None, :] + (((x - cy) / r) ** 2)[:, :, None]
        d = (np.sqrt(q) - 1) * (r / soft)[:, None]
        disc = edge(d, 1.0) * (1 - pale[:, None] * np.square(np.maximum(1 - 1.6 * q, 0)))
        np.maximum(thick, disc, out=thick)
    return thick


def _granules(scene: Scene, x: Array, soft: float) -> Array:
    """Round grains, (B, H, W): two turned grids with one grain somewhere in each of their squares."""
    pattern = np.random.default_rng(0).uniform([[0.3], [0.3], [0.2], [0.0]], [[0.7], [0.7], [0.32], [1.0]], (4, TABLE**2)).astype(np.float32)
    often = np.hypot(scene.grains[:, 0], scene.grains[:, 1])[:, None, None]
    near: Array | None = None
    for layer in range(2):
        c, s, shift = (scene.grains[:, k, None] for k in range(3))
        if layer:
            c, s, shift = 0.6 * c - 0.8 * s, 0.8 * c + 0.6 * s, shift + 17.5
        u = (c * x + shift)[:, None, :] + (s * x)[:, :, None]
        v = (-s * x)[:, None, :] + (c * x + shift)[:, :, None]
        iu, iv = np.floor(u), np.floor(v)
        u -= iu
        v -= iv
        at = (iu.astype(np.int32) & (TABLE - 1)) * TABLE + (iv.astype(np.int32) & (TABLE - 1))
        u -= pattern[0][at]
        v -= pattern[1][at]
        d = np.hypot(u, v) - pattern[2][at] + FAR * (pattern[3][at] > scene.cover[:, 0, None, None])
        near = d if near is None else np.minimum(near, d)
    assert near is not None
    return edge(near, soft * often)


def _expose(taken: list[Array], light: Array, style: Style, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light through the stained smear, onto a noisy camera: (B, H, W, 3)."""
    b, size, _ = taken[0].shape
    x = pixels(size)
    across, down = light[:, 3:, None].transpose(1, 0, 2) + style.tilt[:, None, None]  # (B, 1)
    bright = (1 + across * x)[:, None, :] + (down * x)[:, :, None]
    image = rng.standard_normal((b, size, size, 3), np.float32)
    image *= style.noise * 255
    for k in range(3):
        dense = taken[0] * -style.stain[0, k]
        dense -= taken[1] * style.stain[1, k]
        dense -= taken[2] * style.stain[2, k]
        np.exp(dense, out=dense)
        dense *= bright
        dense *= 255 * style.light[k] * light[:, k, None, None]
        image[..., k] += dense
    image += 0.5
    np.clip(image, 0, 255, out=image)
    return image.astype(np.uint8)


def pixels(size: int) -> Array:
    """Pixel centres along one side of an image that spans -1 to 1."""
    return ((np.arange(size) + 0.5) * (2 / size) - 1).astype(np.float32)


def edge(distance: Array, soft: Array | float) -> Array:
    """One inside (negative distance), zero outside, smooth over a few `soft`."""
    e = np.clip(distance / soft, -20, 20)
    np.exp(e, out=e)
    e += 1
    return np.reciprocal(e, out=e)


def mottle(lattice: Array, size: int) -> Array:
    """Smooth noise, (B, size, size), from (B, G, G) random values by cubic B-splines: the same at every size."""
    places = (pixels(size) + 1) / 2 * (lattice.shape[1] - 3)
    first = np.floor(places).astype(np.int64)
    t = places - first
    taps = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]).astype(np.float32) / 6
    rows: Array = sum(taps[k][:, None] * lattice[:, first + k] for k in range(4))
    return sum(taps[k] * rows[:, :, first + k] for k in range(4))
