from typing import Any

import cats_vs_dogs_drawn as drawn
import numpy as np
import numpy.typing as npt
import pytest

Pictures = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    """Images and labels."""
    return drawn.draw_set(60)


def test_cats_and_dogs_in_no_order(pictures: Pictures) -> None:
    images, labels = pictures
    assert images.shape == (60, 64, 64, 3)
    assert images.dtype == np.uint8
    assert set(labels[::2]) == set(labels[1::2]) == {drawn.CAT, drawn.DOG}
    assert 20 <= labels.sum() <= 40


def test_a_picture_is_the_same_whoever_draws_it(pictures: Pictures) -> None:
    images, labels = pictures
    again, labels_again = drawn.draw_set(2, first=37)
    np.testing.assert_array_equal(again, images[37:39])
    np.testing.assert_array_equal(labels_again, labels[37:39])


@pytest.mark.slow
def test_no_two_are_alike(pictures: Pictures) -> None:
    images, _ = pictures
    others, _ = drawn.draw_set(60, seed=1)
    assert len({image.tobytes() for image in (*images, *others)}) == 120


def test_they_are_neither_black_nor_white(pictures: Pictures) -> None:
    images, _ = pictures
    assert (images.std(axis=(1, 2, 3)) > 10).all()
    assert ((images > 5) & (images < 250)).mean() > 0.9


@pytest.mark.slow
def test_colour_alone_tells_nothing(pictures: Pictures) -> None:
    """The mean colours of cats and of dogs overlap: they differ by less than half of how much they scatter."""
    images, labels = pictures
    means = images.mean(axis=(1, 2))
    difference = abs(means[labels == drawn.CAT].mean(axis=0) - means[labels == drawn.DOG].mean(axis=0))
    assert (difference < 0.5 * means.std(axis=0)).all()
