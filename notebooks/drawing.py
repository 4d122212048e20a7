"""Drawings of the notebooks: a confusion matrix of a model, and its predictions for some pictures."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

RIGHT, WRONG = "#444444", "#c4400b"


def draw_confusion_matrix(labels: np.ndarray, predictions: np.ndarray, names: Sequence[object]) -> None:
    """Draw how often each class (row) was taken for each (column); darker where it is a larger part of the row.

    Args:
        labels, predictions: Indices into ``names``, of the same length.
        names: Names of the classes.
    """
    n = len(names)
    counts = np.zeros((n, n), int)
    np.add.at(counts, (labels, predictions), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    side = 1.6 + 0.38 * max(n, 4)
    _, axes = plt.subplots(figsize=(side, side), layout="constrained")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*counts.nonzero(), strict=True):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, counts[row, column], ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(n), names)
    axes.set_yticks(range(n), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(f"{np.mean(labels == predictions):.1%} of {len(labels):,} are right")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_predictions(
    images: np.ndarray, labels: np.ndarray, predictions: np.ndarray, names: Sequence[object], columns: int = 8
) -> None:
    """Draw pictures with the model's predictions, and with the true class where it is wrong.

    Args:
        images: Of shape (n, height, width, 1 or 3).
        labels, predictions: Indices into ``names``, one for each image.
        names: Names of the classes.
        columns: Number of pictures in a row.
    """
    rows = -(-len(images) // columns)
    _, grid = plt.subplots(rows, columns, figsize=(1.1 * columns, 1.35 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, label, prediction in zip(grid.flat, images, labels, predictions, strict=False):
        axes.imshow(image, cmap="gray_r")
        is_right = label == prediction
        caption = f"{names[prediction]}" if is_right else f"{names[prediction]}, is {names[label]}"
        axes.set_title(caption, fontsize=9, color=RIGHT if is_right else WRONG, weight="normal" if is_right else "bold")
