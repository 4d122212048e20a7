"""Drawn cats and dogs: a labelled, synthetic set of pictures for when there are no photographs.

Each picture is a head in a random pose, of a random coat, before a random background, under a random light and with
noise. Cats have pointed ears, a short snout, upright pupils and whiskers; dogs have a longer face, a snout with a big
nose, and ears that hang. But one cat in six folds its ears and one dog in six pricks them, coats are shared, and a part
of the head may be hidden: no single feature tells them apart. Picture `index` of a seed is the same whoever draws it,
and in whatever order. NumPy only.

Shapes are signed distances (negative inside), which give smooth edges for nothing: how much of a pixel a shape covers
is its distance from the edge, cut off at half a pixel to either side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Tuple, Union

import numpy as np

SIDE = 64  # pixels
CAT, DOG = 0, 1
NAMES = ("cat", "dog")

Point = Tuple[float, float]
Colour = Union[np.ndarray, Tuple[int, int, int]]

COATS = np.array(
    [(236, 226, 210), (222, 178, 120), (196, 120, 60), (150, 100, 64), (96, 66, 48), (58, 54, 56), (150, 150, 154)]
)
EYES = np.array([(92, 128, 58), (150, 110, 40), (84, 56, 32), (70, 120, 150)])
PINK, NOSE_BLACK, BLACK, WHITE = (214, 138, 138), (38, 32, 34), (16, 14, 16), (246, 244, 240)


def draw(index: int, seed: int = 0) -> Tuple[np.ndarray, int]:
    """Draw picture `index` of the set with this seed.

    Returns:
        The picture, uint8 of shape (64, 64, 3), and what it shows: CAT (0) or DOG (1), by the toss of a coin.
    """
    random = np.random.default_rng((seed, index))
    label = int(random.integers(2))
    canvas = Canvas(random)
    canvas.draw_background()
    (Cat if label == CAT else Dog)(canvas).draw()
    if random.random() < 0.3:
        canvas.draw_obstacle()
    return canvas.developed(), label


def draw_set(n: int, seed: int = 0, first: int = 0) -> Tuple[np.ndarray, np.ndarray]:
    """Return `n` pictures of a seed, from number `first` on: images uint8 (n, 64, 64, 3), labels int64 (n,)."""
    pictures = [draw(index, seed) for index in range(first, first + n)]
    return np.stack([image for image, _ in pictures]), np.array([label for _, label in pictures], np.int64)


def length(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the length of vectors; `np.hypot` takes several times as long, to avoid overflows that never occur."""
    return np.sqrt(x * x + y * y)


class Canvas:
    """An image in the making, and the pose of the head in it.

    Shapes are given in the head's own coordinates: x to its left ear as we see it, y down, the skull of radius 1.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.image = np.zeros((SIDE, SIDE, 3))
        self.y, self.x = np.mgrid[:SIDE, :SIDE] / (SIDE / 2) - 1 + 1 / SIDE  # -1 to 1 over the picture
        self.scale = random.uniform(0.36, 0.56)
        angle = random.normal(0, 0.25)
        x, y = self.x - random.uniform(-0.25, 0.25), self.y - random.uniform(-0.2, 0.25)
        x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
        self.u, self.v = x / self.scale / random.uniform(0.88, 1.06), y / self.scale
        self.pixel = 2 / SIDE / self.scale  # in the head's coordinates

    # -- shapes ------------------------------------------------------------------------------------------------------

    def ellipse(self, centre: Point, radii: Point, angle: float = 0) -> np.ndarray:
        """Return the signed distance from an ellipse: exact on its edge, and a good approximation beside it."""
        u, v = self.u - centre[0], self.v - centre[1]
        u, v = np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u
        distance = length(u / radii[0], v / radii[1])
        slope = length(u / radii[0] ** 2, v / radii[1] ** 2)
        return distance * (distance - 1) / np.maximum(slope, 1e-6)

    def triangle(self, a: Point, b: Point, c: Point, roundness: float = 0.08) -> np.ndarray:
        """Return the signed distance from a triangle with rounded corners: the farthest of its three sides counts."""
        corners = np.array([a, b, c])
        centre = corners.mean(axis=0)
        distance = np.full_like(self.u, -np.inf)
        for start, end in zip(corners, np.roll(corners, -1, axis=0)):
            normal = np.array([end[1] - start[1], start[0] - end[0]]) / np.hypot(*(end - start))
            normal *= np.sign(normal @ (start - centre))
            distance = np.maximum(distance, (self.u - start[0]) * normal[0] + (self.v - start[1]) * normal[1])
        return distance - roundness

    def line(self, start: Point, end: Point, width: float) -> np.ndarray:
        """Return the signed distance from a line with round ends."""
        direction = np.subtract(end, start)
        along = ((self.u - start[0]) * direction[0] + (self.v - start[1]) * direction[1]) / (direction @ direction)
        along = np.clip(along, 0, 1)
        return length(self.u - start[0] - along * direction[0], self.v - start[1] - along * direction[1]) - width / 2

    # -- painting ----------------------------------------------------------------------------------------------------

    def fill(self, distance: np.ndarray, colour: Colour, alpha: float = 1, within: np.ndarray | None = None) -> None:
        """Paint a shape, or only the part of it that lies within another one."""
        if within is not None:
            distance = np.maximum(distance, within)
        cover = alpha * np.clip(0.5 - distance / self.pixel, 0, 1)
        touched = cover > 0
        pixels = self.image[touched]
        self.image[touched] = pixels + cover[touched, np.newaxis] * (np.asarray(colour) - pixels)

    def draw_background(self) -> None:
        """Draw a gradient between two colours, with blurred blobs, like grass, cushions or people in the background."""
        random = self.random
        angle = random.uniform(0, 2 * np.pi)
        ramp = ((np.cos(angle) * self.x + np.sin(angle) * self.y) / 2.8 + 0.5)[..., np.newaxis]
        near, far = random.uniform(20, 235, (2, 3))
        self.image[:] = near + ramp * (far - near)
        for _ in range(random.integers(0, 6)):
            distance = length(self.x - random.uniform(-1, 1), self.y - random.uniform(-1, 1))
            cover = 0.8 / (1 + np.exp((distance - random.uniform(0.1, 0.5)) / random.uniform(0.02, 0.2)))
            self.image += cover[..., np.newaxis] * (random.uniform(10, 245, 3) - self.image)

    def draw_obstacle(self) -> None:
        """Draw something in front of the head: a bar across the picture, or a corner cut off."""
        angle, random = self.random.uniform(0, 2 * np.pi), self.random
        distance = np.abs(np.cos(angle) * self.u + np.sin(angle) * self.v - random.uniform(0.5, 1)) - 0.12
        self.fill(distance, random.uniform(10, 245, 3))

    def developed(self) -> np.ndarray:
        """Return the picture as a camera takes it: under some light, with some contrast, and with noise."""
        random = self.random
        light = 1 + random.uniform(-0.35, 0.35) * self.x + random.uniform(-0.35, 0.35) * self.y
        exposed = (self.image - 128) * random.uniform(0.6, 1.1) + 128 + random.uniform(-25, 25)
        exposed = exposed * light[..., np.newaxis] * random.uniform(0.9, 1.1, 3)
        return np.clip(np.rint(exposed + random.normal(0, random.uniform(3, 16), exposed.shape)), 0, 255).astype(
            np.uint8
        )


class Animal(ABC):
    """Features that cats and dogs share: a coat of up to two colours, shoulders, eyes that look the same way."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas, self.random = canvas, canvas.random
        first, second = self.random.choice(len(COATS), 2, replace=False)
        self.coat, self.patch = (COATS[i] + self.random.normal(0, 10, 3) for i in (first, second))
        self.turn = self.random.normal(0, 0.12)  # how far the face looks to the side

    def draw(self) -> None:
        self.draw_shoulders()
        self.draw_ears()
        self.draw_head()
        self.draw_eyes()
        self.draw_snout()

    def draw_shoulders(self) -> None:
        self.canvas.fill(self.canvas.ellipse((-self.turn, 1.9), (self.random.uniform(0.8, 1.1), 1.3)), 0.85 * self.coat)

    @abstractmethod
    def draw_ears(self) -> None: ...

    @abstractmethod
    def draw_head(self) -> None: ...

    @abstractmethod
    def draw_eyes(self) -> None: ...

    @abstractmethod
    def draw_snout(self) -> None: ...

    def happens(self, probability: float) -> bool:
        return bool(self.random.random() < probability)


class Cat(Animal):
    """A cat: round head, pointed ears, slit pupils, a small pink nose and whiskers."""

    def draw_ears(self) -> None:
        canvas, height, folded = self.canvas, self.random.uniform(1.25, 1.6), self.happens(1 / 6)
        for side in (-1, 1):
            if folded:
                canvas.fill(canvas.ellipse((side * 0.75, -0.62), (0.36, 0.24), side * 0.7), 0.8 * self.coat)
                continue
            ear = np.array(
                [(side * 0.12, -0.75), (side * 0.95, -0.25), (side * self.random.uniform(0.72, 0.95), -height)]
            )
            canvas.fill(canvas.triangle(*ear), self.coat)
            inside = 0.6 * ear + 0.4 * ear.mean(axis=0)
            canvas.fill(canvas.triangle(inside[0], inside[1], inside[2], roundness=0.02), PINK, alpha=0.7)

    def draw_head(self) -> None:
        canvas = self.canvas
        head = canvas.ellipse((0, 0), (1.05, self.random.uniform(0.85, 0.95)))
        canvas.fill(head, self.coat)
        if self.happens(0.5):  # tabby
            for x in (-0.3, 0, 0.3):
                canvas.fill(canvas.line((x, -0.9), (0.7 * x + self.turn, -0.45), 0.13), self.patch, 0.8, within=head)
            for side in (-1, 1):
                canvas.fill(canvas.line((side * 1.1, 0.05), (side * 0.7, 0.12), 0.12), self.patch, 0.8, within=head)

    def draw_eyes(self) -> None:
        canvas, iris = self.canvas, EYES[self.random.choice(len(EYES), p=(0.5, 0.25, 0.05, 0.2))]
        pupil = self.random.uniform(0.04, 0.1)
        for side in (-1, 1):
            x = side * 0.42 + self.turn
            canvas.fill(canvas.ellipse((x, -0.12), (0.22, 0.17), side * -0.3), iris)
            canvas.fill(canvas.ellipse((x, -0.12), (pupil, 0.16)), BLACK)

    def draw_snout(self) -> None:
        canvas, x = self.canvas, 1.3 * self.turn
        if self.happens(0.5):
            canvas.fill(canvas.ellipse((x, 0.45), (0.42, 0.3)), WHITE, 0.85)
        nose = PINK if self.happens(0.7) else NOSE_BLACK
        canvas.fill(canvas.triangle((x - 0.1, 0.24), (x + 0.1, 0.24), (x, 0.36), 0.03), nose)
        for side in (-1, 1):
            canvas.fill(canvas.line((x, 0.4), (x + side * 0.18, 0.54), 0.06), BLACK, 0.7)
            for slope in (-0.14, 0.02, 0.18):
                start, end = (
                    (x + side * 0.3, 0.42 + slope / 3),
                    (x + side * self.random.uniform(1.0, 1.45), 0.38 + slope),
                )
                canvas.fill(canvas.line(start, end, 0.04), WHITE if self.coat.mean() < 200 else BLACK, 0.7)


class Dog(Animal):
    """A dog: long face, hanging ears, round eyes, a snout with a big dark nose, and often a tongue."""

    def __init__(self, canvas: Canvas) -> None:
        super().__init__(canvas)
        self.ear = self.patch if self.happens(0.5) else 0.75 * self.coat
        self.pricked = self.happens(1 / 6)

    def draw_ears(self) -> None:
        canvas = self.canvas
        if self.pricked:
            for side in (-1, 1):
                tip = (side * self.random.uniform(0.6, 0.9), self.random.uniform(-1.6, -1.35))
                canvas.fill(canvas.triangle((side * 0.2, -0.7), (side * 0.85, -0.3), tip), self.ear)

    def draw_head(self) -> None:
        canvas = self.canvas
        head = canvas.ellipse((0, -0.05), (self.random.uniform(0.8, 0.95), self.random.uniform(0.9, 1.0)))
        canvas.fill(head, self.coat)
        canvas.fill(canvas.ellipse((self.turn, 0.55), (0.6, 0.55)), self.coat)  # the jaw
        if self.happens(0.4):  # a patch over one eye
            side = self.random.choice((-1, 1))
            canvas.fill(canvas.ellipse((side * 0.4, -0.25), (0.42, 0.5)), self.patch, 0.9, within=head)
        if not self.pricked:
            length, out = self.random.uniform(0.45, 0.7), self.random.uniform(0.85, 1.05)
            for side in (-1, 1):
                canvas.fill(canvas.ellipse((side * out, length - 0.6), (0.28, length), side * -0.22), self.ear)

    def draw_eyes(self) -> None:
        canvas, iris = self.canvas, EYES[self.random.choice(len(EYES), p=(0.05, 0.25, 0.55, 0.15))]
        for side in (-1, 1):
            x = side * 0.36 + self.turn
            canvas.fill(canvas.ellipse((x, -0.2), (0.16, 0.15)), iris)
            canvas.fill(canvas.ellipse((x, -0.2), (0.1, 0.1)), BLACK)

    def draw_snout(self) -> None:
        canvas, x = self.canvas, 2 * self.turn
        snout = WHITE if self.happens(0.3) else np.minimum(1.15 * self.coat + 12, 250)
        if self.happens(0.4):
            canvas.fill(canvas.ellipse((x, 0.98), (0.17, 0.3)), (208, 96, 108))  # the tongue
        canvas.fill(canvas.ellipse((x, 0.5), (0.42, self.random.uniform(0.4, 0.5))), snout)
        canvas.fill(canvas.ellipse((x, 0.28), (0.2, 0.15)), NOSE_BLACK)
        canvas.fill(canvas.line((x, 0.4), (x, 0.65), 0.06), BLACK, 0.7)
        for side in (-1, 1):
            canvas.fill(canvas.line((x, 0.65), (x + side * 0.27, 0.73), 0.06), BLACK, 0.7)
