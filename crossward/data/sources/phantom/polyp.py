"""The polyp phantom: frames of a colonoscopy with folds, vessels, bubbles and highlights, polyps, and their masks.

A frame is a relief (folds, bumps, polyps) lit from beside the camera, so a polyp shows by its shape, by the vessels it
hides and by a tint that is no stronger than that of the tissue around; one scene can be drawn at any size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from crossward.data.sources.phantom.canvas import FAR, Array, Doubles, Ints, edge, mottle, pixels, turns

Bytes = NDArray[np.uint8]

CLASSES = ("background", "polyp")
MUCOSA = (0.80, 0.42, 0.34)  # what tissue reflects of red, green and blue light
# half-width and squareness of a field of view, and how far out its corners are cut
FIELDS = ((1.0, 12.0, 1.5), (0.97, 2.0, 3.0), (0.99, 4.0, 3.0), (1.0, 20.0, 1.75))
POLYPS = 2  # in a frame at most
BUBBLES = 5
# points along one side of the three noises
COARSE = 6
MIDDLE = 15
FINE = 40
TWO = 0.04  # share of frames with two polyps
PIXELS = 32_768  # drawn at once: what stays in a processor's cache


@dataclass(frozen=True)
class Style:
    """A hospital's endoscope, and the sizes of polyps it meets."""

    colour: Array  # (3, 3): camera colour from tissue colour
    gamma: float
    blur: float  # in image units
    sharpen: float  # how much the processor exaggerates edges
    noise: float  # standard deviation of a pixel in [0, 1]
    field: tuple[float, float, float]  # one of FIELDS
    large: float  # usual radius of a polyp


def style(site: int, rng: np.random.Generator, difficulty: float) -> Style:
    """Draw a hospital; neighbours differ in their field of view."""
    far = min(difficulty, 2.0)
    gain = np.exp(rng.normal(0, 0.05 * far, (3, 1)) + rng.normal(0, [[0.02], [0.06], [0.08]]) * far)
    return Style(
        colour=(gain * (np.eye(3) + rng.uniform(0, 0.08, (3, 3)) * far)).astype(np.float32),
        gamma=float(np.exp(rng.normal(0, 0.12 * far))),
        blur=float(rng.uniform(0.006, 0.022) * far),
        sharpen=float(rng.uniform(0.0, 0.8)),
        noise=float(rng.uniform(0.008, 0.025) * difficulty),
        field=FIELDS[site % len(FIELDS)],
        large=float(rng.uniform(0.22, 0.42)),
    )


@dataclass(frozen=True)
class Scene:
    """What is in n frames, before any pixel is drawn; every field has n rows."""

    tissue: Array  # (n, 3): colour of the mucosa
    lumen: Array  # (n, 3): x, y and size of the dark way ahead
    folds: Array  # (n, 4): how many, phase, height and sharpness
    light: Array  # (n, 4): x, y and distance of the lamp, and its strength
    polyps: Array  # (n, POLYPS, 5): x, y, height, flatness and how three-lobed
    frames: Array  # (n, POLYPS, 2, 2): image to polyp coordinates, where the polyp is the unit disc
    tint: Array  # (n, 4): colour of polyps relative to the mucosa, and strength of their pattern
    bubbles: Array  # (n, BUBBLES, 3): x, y, radius
    stool: Array  # (n, 3): x, y, radius of a yellow patch
    wet: Array  # (n,): strength of highlights
    coarse: Array  # (n, 2, COARSE, COARSE): where folds wander, and where tissue is redder
    middle: Array  # (n, 2, MIDDLE, MIDDLE): bumps, and vessels along its zeros
    fine: Array  # (n, FINE, FINE): what breaks highlights up


def scene(patients: Ints, style: Style, rng: np.random.Generator, difficulty: float) -> Scene:
    """Draw what is in the frames; the frames of a patient share the colour of the tissue."""
    n = len(patients)
    far = min(difficulty, 2.0)
    people = int(patients.max(initial=-1)) + 1
    tissue = np.array(MUCOSA) * np.exp(rng.normal(0, [0.04, 0.09, 0.10], (people, 3)) * far)[patients]
    lumen = np.concatenate([_around(rng.uniform(0.2, 1.5, n), rng), rng.uniform(0.12, 0.40, (n, 1))], 1)
    folds = rng.uniform([4, 0, 0.01, 1], [11, 7, 0.09, 5], (n, 4))
    strength = np.exp(rng.normal(0, 0.12 * far, (n, 1)))
    light = np.concatenate([_around(rng.uniform(0, 0.5, n), rng), rng.uniform(0.9, 1.6, (n, 1)), strength], 1)
    polyps, frames = _polyps(n, style.large, rng, far)
    tint = np.exp(rng.normal(0, 0.05, (n, 3)) + rng.normal(0, [0.02, 0.07, 0.08], (n, 3)))
    seen = np.where(rng.random((n, BUBBLES)) < 0.25 * far, 0.0, FAR)[..., None]
    bubbles = rng.uniform([-0.9, -0.9, 0.04], [0.9, 0.9, 0.11], (n, BUBBLES, 3)) + seen * [1, 1, 0]
    dirty = np.where(rng.random(n) < 0.25 * far, 0.0, FAR)[:, None]
    stool = rng.uniform([-0.9, -0.9, 0.08], [0.9, 0.9, 0.30], (n, 3)) + dirty * [1, 1, 0]
    drawn = (tissue, lumen, folds, light, polyps, frames, np.concatenate([tint, rng.uniform(0.02, 0.10, (n, 1))], 1),
             bubbles, stool, rng.uniform(0.2, 1.0, n), rng.normal(0, 1, (n, 2, COARSE, COARSE)),
             rng.normal(0, 1, (n, 2, MIDDLE, MIDDLE)), rng.normal(0, 1, (n, FINE, FINE)))  # fmt: skip
    return Scene(*(np.asarray(values, np.float32) for values in drawn))


def _around(radius: Doubles, rng: np.random.Generator) -> Doubles:
    """(n, 2) places at these distances from the middle."""
    return turns(len(radius), rng)[:, 0] * radius[:, None]


def _polyps(n: int, large: float, rng: np.random.Generator, far: float) -> tuple[Doubles, Doubles]:
    """Places and build, (n, POLYPS, 5), and frames, (n, POLYPS, 2, 2), of polyps; most frames have only one."""
    size = np.clip(large * np.exp(rng.normal(0, 0.35 * far, (n, POLYPS))), 0.13, 0.62)
    aspect = np.exp(rng.uniform(-0.2, 0.2, (n, POLYPS)))
    places = _around(0.8 * np.sqrt(rng.random(n * POLYPS)), rng).reshape(n, POLYPS, 2)
    places[:, 1][rng.random(n) >= TWO] = FAR
    build = rng.uniform([0.2, 0.1, 0.0], [0.75, 0.5, 0.22], (n, POLYPS, 3))
    build[..., 0] *= size
    axes = np.stack([1 / (size * aspect), aspect / size], 2)[..., None]
    return np.concatenate([places, build], 2), turns(n * POLYPS, rng).reshape(n, POLYPS, 2, 2) * axes


def draw(scene: Scene, style: Style, size: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """(n, size, size, 3) frames of a scene as a hospital sees it, and their (n, size, size) masks."""
    n = len(scene.wet)
    images = np.empty((n, size, size, 3), np.uint8)
    masks = np.empty((n, size, size), np.uint8)
    step = max(1, PIXELS // size**2)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        part = Scene(*(getattr(scene, field.name)[rows] for field in fields(scene)))
        colour, distance = _tissue(part, size)
        seen = _field(style, size)
        images[rows] = _exposed(colour, seen, style, rng)
        masks[rows] = (distance < 0) & (seen > 0.5)
    return images, masks


def _tissue(scene: Scene, size: int) -> tuple[list[Array], Array]:
    """Red, green and blue light from the tissue, three of (B, H, W), and the signed distance to the nearest polyp."""
    x = pixels(size)
    soft = 0.8 / size
    wander, ruddy = (mottle(scene.coarse[:, k], size) for k in range(2))
    bumps, vessels = (mottle(scene.middle[:, k], size) for k in range(2))
    fine = mottle(scene.fine, size)
    ahead, ridges = _folds(scene, x, wander)
    distance, dome = _domes(scene, x, wander, bumps)
    inside = edge(distance, soft + 0.02)
    pattern = scene.tint[:, 3, None, None]
    relief = ridges * (1 - 0.8 * inside) + 0.012 * bumps * (1 + inside) + dome
    shade, shine = _lit(scene, relief, fine, x)
    veins = np.exp(-((vessels / 0.10) ** 2)) * (1 - inside) * np.maximum(0, 0.6 + ruddy)
    crease = np.exp(-((distance / 0.08) ** 2)) * (distance > 0)
    near = np.maximum(ahead, 0.75 * inside)
    shade = shade * near * (1 - 0.18 * crease)
    stool = _patch(scene, x, bumps, soft)
    ring, spark = _bubbles(scene, x, soft)
    shine = shine * scene.wet[:, None, None] * near + spark
    colours = []
    for k, (red, vein, dirt) in enumerate(((0.03, 0.10, 0.72), (-0.10, 0.30, 0.58), (-0.10, 0.26, 0.22))):
        c = scene.tissue[:, k, None, None] * (1 + red * ruddy - vein * veins + pattern * fine * inside)
        c *= 1 + inside * (scene.tint[:, k, None, None] - 1)
        c += stool * (dirt - c)
        c = c * shade * (1 + 0.25 * ring) + 0.9 * shine
        colours.append(c)
    return colours, distance


def _folds(scene: Scene, x: Array, wander: Array) -> tuple[Array, Array]:
    """How much light comes back from down the bowel, and the relief of the folds around it: (B, H, W) each."""
    cx, cy, dark = scene.lumen.T[..., None, None]
    square = (x[None, None, :] - cx) ** 2 + (x[None, :, None] - cy) ** 2
    ahead = (square + 0.02) / (square + 0.02 + dark**2 * (1 + 0.3 * wander))
    count, phase, height, sharp = scene.folds.T[..., None, None]
    wave = np.cos(0.5 * count * np.log(square + 0.03) + phase + 1.1 * wander)
    return ahead, height * np.exp(sharp * (wave - 1)) * np.clip(0.7 + 0.6 * wander, 0, 1.3) * (0.4 + square)


def _domes(scene: Scene, x: Array, wander: Array, bumps: Array) -> tuple[Array, Array]:
    """Signed distance to the nearest polyp, in image units, and the relief of polyps: (B, H, W) each."""
    distance: Array = np.full_like(wander, FAR)
    relief: Array = np.zeros_like(wander)
    for k in range(POLYPS):
        cx, cy, height, flat, lobed = scene.polyps[:, k].T[..., None, None]
        (a, b), (c, d) = scene.frames[:, k].transpose(1, 2, 0)[..., None, None]
        dx, dy = x[None, None, :] - cx, x[None, :, None] - cy
        u, v = a * dx + b * dy, c * dx + d * dy
        q = u**2 + v**2
        three = u * (u * u - 3 * v * v) / (q * np.sqrt(q) + 0.1)  # cosine of three times the angle
        q *= 1 + lobed * three + 0.16 * wander + 0.09 * bumps  # an irregular outline
        np.minimum(distance, (np.sqrt(np.maximum(q, 0)) - 1) / np.sqrt(a * d - b * c), out=distance)
        relief += height * (np.sqrt(np.maximum(1.1 - q, 0) + flat) - np.sqrt(flat))
    return distance, relief


def _lit(scene: Scene, relief: Array, fine: Array, x: Array) -> tuple[Array, Array]:
    """Diffuse light from a relief, and highlights where it mirrors the lamp: (B, H, W) each."""
    down, across = np.gradient(relief, float(x[1] - x[0]), axis=(1, 2))
    lx, ly, lz, strength = scene.light.T[..., None, None]
    to_x, to_y = lx - x[None, None, :], ly - x[None, :, None]
    far = np.sqrt(to_x**2 + to_y**2 + lz**2)
    slope = np.sqrt(1 + across**2 + down**2)
    shade = np.maximum((lz - across * to_x - down * to_y) / (far * slope), 0) * strength * (lz / far)
    half = np.sqrt(to_x**2 + to_y**2 + (lz + far) ** 2)  # the mirror direction is half-way between lamp and camera
    mirror = (lz + far - across * to_x - down * to_y) / (half * slope) + 0.006 * fine
    return 1.15 * shade + 0.02, np.exp(np.minimum(300 * (mirror - 1.0), 0.0))


def _patch(scene: Scene, x: Array, bumps: Array, soft: float) -> Array:
    """A patch of stool or mucus, (B, H, W)."""
    cx, cy, r = scene.stool.T[..., None, None]
    away = np.sqrt((x[None, None, :] - cx) ** 2 + (x[None, :, None] - cy) ** 2)
    return 0.8 * edge(away - r * (1 + 0.5 * bumps), soft + 0.02)


def _bubbles(scene: Scene, x: Array, soft: float) -> tuple[Array, Array]:
    """Rims of bubbles and the sparks on them: (B, H, W) each."""
    ring: Array = np.zeros((len(scene.wet), len(x), len(x)), np.float32)
    spark: Array = np.zeros_like(ring)
    for cx, cy, r in scene.bubbles.transpose(1, 2, 0)[..., None, None]:
        dx, dy = x[None, None, :] - cx, x[None, :, None] - cy
        away = np.sqrt(dx**2 + dy**2)
        ring += np.exp(-(((away - r) / (soft + 0.012)) ** 2)) - 0.5 * edge(away - r, soft)
        spark += edge(np.sqrt((dx + 0.4 * r) ** 2 + (dy + 0.4 * r) ** 2) - 0.25 * r, soft)
    return ring, spark


def _field(style: Style, size: int) -> Array:
    """The field of view, (H, W): one where the endoscope sees."""
    half, square, cut = style.field
    across, down = np.abs(pixels(size))[None, :], np.abs(pixels(size))[:, None]
    away = (across**square + down**square) ** (1 / square) - half
    return edge(np.maximum(away, (across + down - cut) / 2**0.5), 0.6 / size)


def _exposed(colours: list[Array], seen: Array, style: Style, rng: np.random.Generator) -> Bytes:
    """What the camera and its processor make of the light: (B, H, W, 3)."""
    count, size, _ = colours[0].shape
    noise = rng.standard_normal((count, size, size, 3), np.float32) * style.noise
    image = np.empty_like(noise)
    for k in range(3):
        red, green, blue = (share * light for share, light in zip(style.colour[k], colours, strict=True))
        blurred = _blurred(red + green + blue, style.blur * size / 2)
        c = blurred + style.sharpen * (blurred - _blurred(blurred, 0.03 * size / 2))
        image[..., k] = np.clip(c, 0, 1) ** style.gamma
    image = (image + noise) * seen[:, :, None] + 0.02
    return np.asarray(np.clip(image, 0, 1) * 255 + 0.5, np.uint8)


def _blurred(image: Array, sigma: float) -> Array:
    """Gaussian blur of (B, H, W) by `sigma` pixels, edges repeated."""
    reach = max(1, int(np.ceil(3 * sigma)))
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(sigma, 1e-3)) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for _ in range(2):  # along x, then, transposed, along y
        padded = np.pad(image, ((0, 0), (0, 0), (reach, reach)), mode="edge")
        image = np.zeros_like(image)
        for k, tap in enumerate(taps):
            image += tap * padded[:, :, k : k + image.shape[2]]
        image = image.swapaxes(1, 2)
    return image
