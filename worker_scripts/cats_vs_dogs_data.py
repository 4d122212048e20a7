"""Pictures of cats and dogs, 64x64, from what is on the machine. As a command it says which, or downloads photographs:

    python cats_vs_dogs_data.py [--images FOLDER | --drawn]
    python cats_vs_dogs_data.py --download

The first of these that is there:

1. `--images FOLDER`: JPEG or PNG files in two subfolders, `cats` and `dogs`. One in five is kept for testing;
2. `cats_vs_dogs` of TensorFlow Datasets in `~/tensorflow_datasets` (or TFDS_DATA_DIR): 23,262 photographs, of which
   the first fifth is kept for testing. Reading them takes the package tensorflow-datasets. Nothing is ever downloaded
   but by `--download`, which fetches 800 MB;
3. drawn cats and dogs, synthetic and not photographs (see `cats_vs_dogs_drawn`). `--drawn` asks for them.

The photographs: Elson, Douceur, Howell, Saul, "Asirra: A CAPTCHA that Exploits Interest-Aligned Manual Image
Categorization", CCS 2007.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Tuple, Union

import cats_vs_dogs_drawn
import numpy as np
import tensorflow as tf

SIDE, NAMES = cats_vs_dogs_drawn.SIDE, cats_vs_dogs_drawn.NAMES  # a picture's label is the index of its name
DRAWN_TRAIN, DRAWN_TEST = 3200, 400
TFDS = "cats_vs_dogs"
TEST_SHARE = 5  # one in so many
ENDINGS = {".jpg", ".jpeg", ".png"}


class Pictures(NamedTuple):
    """Pictures to train on and to test on: a key for each, and a function `read` from keys to labelled pictures."""

    name: str
    train_keys: tf.data.Dataset
    test_keys: tf.data.Dataset
    read: Callable[[tf.data.Dataset], tf.data.Dataset]

    def train(self, rank: int = 0, size: int = 1) -> tf.data.Dataset:
        """Return one rank's training pictures: (image uint8 (64, 64, 3), label int64), read when first used."""
        return self._share(self.train_keys, rank, size)

    def test(self, rank: int = 0, size: int = 1) -> tf.data.Dataset:
        """Return one rank's test pictures, in the same form."""
        return self._share(self.test_keys, rank, size)

    def _share(self, keys: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
        if len(keys) < size:
            raise ValueError("{} pictures are too few for {} ranks: each needs one.".format(len(keys), size))
        return self.read(keys.shard(size, rank)).cache().with_options(_untuned())


def _untuned() -> tf.data.Options:
    """Return options without TensorFlow's tuner, which has nothing to tune here, and delays the end of `fit`."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which pictures to use, for `find`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder with the subfolders cats and dogs, of JPEG or PNG files; default: cats_vs_dogs of TensorFlow "
        "Datasets where that is on disk, else drawn pictures; nothing is downloaded",
    )
    which.add_argument("--drawn", action="store_true", help="drawn pictures: synthetic, the same in every run")


def find(images: Union[str, Path, None] = None, drawn: bool = False) -> Pictures:
    """Find the pictures, in the same order in every process, and print which they are.

    Raises:
        FileNotFoundError: There are no pictures at `images`.
        ImportError: Photographs are on disk, but not the package that reads them.
    """
    if images:
        pictures = from_folder(Path(images).expanduser())
    elif not drawn and (tfds_folder() / TFDS).is_dir():
        pictures = from_tensorflow_datasets()
    else:
        pictures = from_pencil()
    n_train, n_test = len(pictures.train_keys), len(pictures.test_keys)
    print("{}: {:,} to train, {:,} to test".format(pictures.name, n_train, n_test), flush=True)
    return pictures


# -- drawn -------------------------------------------------------------------------------------------------------------


def from_pencil(n_train: int = DRAWN_TRAIN, n_test: int = DRAWN_TEST) -> Pictures:
    """Return drawn cats and dogs: a key is the seed and the index of a picture."""

    def keys(seed: int, n: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(n).map(lambda index: (tf.constant(seed, tf.int64), index))

    def read(seeds_and_indices: tf.data.Dataset) -> tf.data.Dataset:
        return seeds_and_indices.map(_draw)

    return Pictures("drawn cats and dogs (synthetic, not photographs)", keys(0, n_train), keys(1, n_test), read)


def _draw(seed: tf.Tensor, index: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    def draw(seed: np.int64, index: np.int64) -> Tuple[np.ndarray, np.int64]:
        image, label = cats_vs_dogs_drawn.draw(int(index), int(seed))
        return image, np.int64(label)

    image, label = tf.numpy_function(draw, (seed, index), (tf.uint8, tf.int64), stateful=False)
    return tf.ensure_shape(image, (SIDE, SIDE, 3)), tf.ensure_shape(label, ())


# -- a folder ----------------------------------------------------------------------------------------------------------


def from_folder(folder: Path) -> Pictures:
    """Return the files in `cats` and `dogs`: a key is path and label. Unreadable files are left out, with a warning.

    Raises:
        FileNotFoundError: One of the two is missing, or holds no JPEG or PNG file.
    """
    examples: List[Tuple[str, int]] = []
    for label, name in enumerate(NAMES):
        subfolder = folder / (name + "s")
        files = sorted(str(path) for path in subfolder.glob("*") if path.suffix.lower() in ENDINGS)
        if not files:
            raise FileNotFoundError("There are no JPEG or PNG files in {}.".format(subfolder))
        examples += [(file, label) for file in files]
    order = np.random.RandomState(0).permutation(len(examples))
    n_test = max(1, len(examples) // TEST_SHARE)

    def keys(indices: np.ndarray) -> tf.data.Dataset:
        chosen = [examples[index] for index in indices]
        labels = np.array([label for _, label in chosen], np.int64)
        return tf.data.Dataset.from_tensor_slices(([path for path, _ in chosen], labels))

    def read(paths_and_labels: tf.data.Dataset) -> tf.data.Dataset:
        pictures = paths_and_labels.map(lambda path, label: (_decode(tf.io.read_file(path)), label), tf.data.AUTOTUNE)
        return pictures.ignore_errors(log_warning=True)

    return Pictures("pictures of {}".format(folder), keys(order[n_test:]), keys(order[:n_test]), read)


def _decode(content: tf.Tensor) -> tf.Tensor:
    """Return the pixels of an encoded picture, the whole of it squeezed into 64x64."""
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    image = tf.image.resize(image, (SIDE, SIDE), method="area")
    return tf.cast(tf.round(tf.ensure_shape(image, (SIDE, SIDE, 3))), tf.uint8)


# -- TensorFlow Datasets -----------------------------------------------------------------------------------------------


def tfds_folder() -> Path:
    """Return the folder where TensorFlow Datasets keeps its downloads."""
    return Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


def from_tensorflow_datasets() -> Pictures:
    """Return the photographs of TensorFlow Datasets: a key is an encoded picture and its label.

    Raises:
        ImportError: The package tensorflow-datasets is missing.
    """
    tfds = _import_tfds()
    percent = 100 // TEST_SHARE
    train, test = tfds.load(
        TFDS,
        split=["train[{}%:]".format(percent), "train[:{}%]".format(percent)],
        data_dir=str(tfds_folder()),
        download=False,
        as_supervised=True,
        decoders={"image": tfds.decode.SkipDecoding()},
    )

    def read(contents_and_labels: tf.data.Dataset) -> tf.data.Dataset:
        return contents_and_labels.map(lambda content, label: (_decode(content), label), tf.data.AUTOTUNE)

    return Pictures("cats_vs_dogs of TensorFlow Datasets", train, test, read)


def download() -> None:
    """Download and prepare the photographs of TensorFlow Datasets, unless they are there.

    Raises:
        ImportError: The package tensorflow-datasets is missing.
    """
    _import_tfds().builder(TFDS, data_dir=str(tfds_folder())).download_and_prepare()


def _import_tfds() -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "The photographs of TensorFlow Datasets need its package, which Muster does not bring: pip install "
            "tensorflow-datasets. Without it, take pictures of your own by --images FOLDER, or drawn ones by --drawn."
        ) from error
    return tensorflow_datasets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--download", action="store_true", help="first download the photographs, 800 MB")
    arguments = parser.parse_args()
    try:
        if arguments.download:
            download()
        find(arguments.images, arguments.drawn)
    except (ImportError, FileNotFoundError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
