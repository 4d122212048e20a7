"""Handwritten digits for the MNIST scripts, from what is on the machine: nothing is ever downloaded.

The first of these that is there:

1. `--data PATH` (or the variable MUSTER_MNIST): a folder with MNIST's four IDX files, plain or .gz, or an `mnist.npz`
   as Keras saves it;
2. the cache of Keras, `~/.keras/datasets/mnist.npz` (the folder `.keras` is KERAS_HOME where that is set);
3. the 1,797 real digits that come with scikit-learn, brought to MNIST's form and kept as IDX files in
   `~/.cache/muster/digits` (`~/.cache` is XDG_CACHE_HOME where that is set), so that it is needed once only.

MNIST: LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/ (with the IDX format). The digits: Alpaydin, Kaynak,
"Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Optional, Tuple, Union

import numpy as np

Split = Tuple[np.ndarray, np.ndarray]  # images, labels

IMAGES, LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
TRAIN, TEST = "train", "t10k"
TEST_SHARE = 0.2  # of scikit-learn's digits
SIDE, BOX = 28, 20  # pixels: MNIST's images, and the box in the middle that its digits fill


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options that say which digits to train on, for `load`."""
    parser.add_argument(
        "--data",
        metavar="PATH",
        default=os.environ.get("MUSTER_MNIST"),
        help="folder with MNIST's IDX files (plain or .gz), or Keras's mnist.npz; default: $MUSTER_MNIST, else the "
        "cache of Keras, else the 1,797 digits of scikit-learn; nothing is downloaded",
    )
    parser.add_argument("--limit-train", metavar="N", type=int, help="train on the first N examples only")


def load(data: Union[str, Path, None] = None, limit_train: Optional[int] = None) -> Tuple[Split, Split]:
    """Load the digits and print which they are.

    Returns:
        (x_train, y_train), (x_test, y_test): images float32 of shape (n, 28, 28, 1) between 0 and 1, labels int64 of
        shape (n,). In the same order in every process.

    Raises:
        FileNotFoundError: There are no digits on this machine, or none at `data`.
        ValueError: A file is not what its name says.
    """
    name, (train, test) = _read(data)
    train = train[0][:limit_train], train[1][:limit_train]
    print("{}: {:,} to train, {:,} to test".format(name, len(train[1]), len(test[1])), flush=True)
    return _scaled(train), _scaled(test)


def _read(data: Union[str, Path, None]) -> Tuple[str, Tuple[Split, Split]]:
    if data:
        path = Path(data).expanduser()
        return "digits of {}".format(path), _read_npz(path) if path.suffix == ".npz" else _read_folder(path)
    keras_cache = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / "mnist.npz"
    if keras_cache.exists():
        return "MNIST of {}".format(keras_cache), _read_npz(keras_cache)
    return "digits of scikit-learn (1,797, enlarged from 8x8)", _read_folder(_scikit_learn_digits())


def _scaled(split: Split) -> Split:
    images, labels = split
    return images[..., np.newaxis].astype(np.float32) / 255, labels.astype(np.int64)


def _read_npz(path: Path) -> Tuple[Split, Split]:
    with np.load(str(path)) as arrays:
        return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])


def _read_folder(folder: Path) -> Tuple[Split, Split]:
    train, test = ((read_idx(folder / IMAGES.format(s)), read_idx(folder / LABELS.format(s))) for s in (TRAIN, TEST))
    return train, test


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of bytes, or the `.gz` of that name: uint8, of the shape that the file says."""
    compressed = path.with_name(path.name + ".gz")
    if path.exists():
        content = path.read_bytes()
    elif compressed.exists():
        content = gzip.decompress(compressed.read_bytes())
    else:
        raise FileNotFoundError("{} is not there, and neither is {}".format(path, compressed.name))
    # Two zero bytes, 8 for "unsigned byte", the number of dimensions; then each dimension, big-endian.
    if content[:3] != b"\0\0\x08":
        raise ValueError("{} is not an IDX file of bytes".format(path))
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array of bytes as an IDX file."""
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _scikit_learn_digits() -> Path:
    """Return the folder with scikit-learn's digits; make it if it is not there yet."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "muster" / "digits"
    if folder.exists():
        return folder
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise FileNotFoundError(
            "There are no digits to train on: give a folder with MNIST's four IDX files by --data or MUSTER_MNIST, or "
            "install scikit-learn, which brings 1,797 of them: pip install scikit-learn ({}).".format(error)
        ) from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="digits.", dir=str(folder.parent)))
    try:
        digits = load_digits()
        images = enlarge(digits.images)
        for name, indices in zip((TRAIN, TEST), split(digits.target)):
            write_idx(beside / IMAGES.format(name), images[indices])
            write_idx(beside / LABELS.format(name), digits.target[indices])
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another worker was faster, and its folder holds the same
            raise
    finally:
        shutil.rmtree(str(beside), ignore_errors=True)
    return folder


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bring 8x8 images with values of 0 to 16 to MNIST's form: 28x28 of 0 to 255, the digit in the 20x20 in the middle.

    Bilinear: written as a matrix that interpolates one side, applied to rows and columns.
    """
    source = images.shape[-1]
    places = np.clip((np.arange(BOX) + 0.5) * source / BOX - 0.5, 0, source - 1)
    weights = np.maximum(0, 1 - np.abs(places[:, np.newaxis] - np.arange(source)))  # (20, 8), each row sums to 1
    boxes = weights @ images @ weights.T
    margin = (SIDE - BOX) // 2
    padded = np.pad(boxes, ((0, 0), (margin, margin), (margin, margin)), mode="constant")
    return np.rint(padded * 255 / 16).astype(np.uint8)


def split(labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return indices to train and to test on: shuffled, with equal shares of every class, the same on every machine."""
    random = np.random.RandomState(0)
    train, test = [], []
    for label in np.unique(labels):
        indices = random.permutation(np.flatnonzero(labels == label))
        n_test = int(round(TEST_SHARE * len(indices)))
        test.append(indices[:n_test])
        train.append(indices[n_test:])
    return random.permutation(np.concatenate(train)), random.permutation(np.concatenate(test))
