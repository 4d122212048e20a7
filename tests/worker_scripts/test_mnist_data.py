import gzip
import subprocess
import sys
from pathlib import Path

import mnist_data
import numpy as np
import pytest

from tests.training.processes import REPOSITORY, environment

Digits = tuple[mnist_data.Split, mnist_data.Split]


@pytest.fixture(autouse=True)
def nothing_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No MNIST anywhere, and an empty cache."""
    monkeypatch.delenv("MUSTER_MNIST", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small() -> Digits:
    """Four images to train on and two to test on, as MNIST's files hold them."""
    images = np.arange(6 * 28 * 28, dtype=np.uint8).reshape(6, 28, 28)
    labels = np.array([5, 0, 4, 1, 9, 2], np.uint8)
    return (images[:4], labels[:4]), (images[4:], labels[4:])


def write_folder(folder: Path, small: Digits) -> None:
    folder.mkdir()
    for name, (images, labels) in zip(("train", "t10k"), small, strict=True):
        mnist_data.write_idx(folder / f"{name}-images-idx3-ubyte", images)
        mnist_data.write_idx(folder / f"{name}-labels-idx1-ubyte", labels)


def assert_is(loaded: Digits, small: Digits) -> None:
    for (images, labels), (expected_images, expected_labels) in zip(loaded, small, strict=True):
        assert images.dtype == np.float32
        assert labels.dtype == np.int64
        np.testing.assert_allclose(images, expected_images[..., np.newaxis] / 255, rtol=1e-6)
        np.testing.assert_array_equal(labels, expected_labels)


def test_the_bytes_of_an_idx_file(tmp_path: Path) -> None:
    mnist_data.write_idx(tmp_path / "file", np.array([[7, 8, 9]], np.uint8))
    assert (tmp_path / "file").read_bytes() == bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])


def test_a_folder_of_idx_files(tmp_path: Path, small: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "mnist", small)
    assert_is(mnist_data.load(tmp_path / "mnist"), small)
    assert capsys.readouterr().out == f"digits of {tmp_path}/mnist: 4 to train, 2 to test\n"


def test_compressed_idx_files(tmp_path: Path, small: Digits) -> None:
    write_folder(tmp_path / "mnist", small)
    for path in list((tmp_path / "mnist").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert_is(mnist_data.load(str(tmp_path / "mnist")), small)


def test_the_cache_of_keras(tmp_path: Path, small: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keras" / "datasets").mkdir(parents=True)
    (x_train, y_train), (x_test, y_test) = small
    path = tmp_path / "keras" / "datasets" / "mnist.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    assert_is(mnist_data.load(), small)
    assert_is(mnist_data.load(path), small)
    assert capsys.readouterr().out.startswith("MNIST of ")


def test_a_part_of_the_training_data(tmp_path: Path, small: Digits) -> None:
    write_folder(tmp_path / "mnist", small)
    (images, labels), (test_images, _) = mnist_data.load(tmp_path / "mnist", limit_train=3)
    assert (len(images), len(labels), len(test_images)) == (3, 3, 2)


@pytest.mark.slow
def test_the_digits_of_scikit_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (x_train, y_train), (x_test, y_test) = first = mnist_data.load()
    assert "scikit-learn (1,797" in capsys.readouterr().out
    assert len(x_train) + len(x_test) == 1797
    assert x_train.shape[1:] == (28, 28, 1)
    assert (x_train.min(), x_train.max()) == (0, 1)
    assert not x_train[:, :4].any()
    assert not x_train[:, :, -4:].any()
    shares = np.bincount(y_test) / (np.bincount(y_train) + np.bincount(y_test))
    np.testing.assert_allclose(shares, 0.2, atol=0.005)
    assert len(set(y_train[:20])) > 5  # shuffled
    for again, before in zip(mnist_data.load(), first, strict=True):
        np.testing.assert_array_equal(again[0], before[0])


def test_train_and_test_share_no_example() -> None:
    train, test = mnist_data.split(np.repeat(np.arange(10), 50))
    assert sorted(np.concatenate([train, test])) == list(range(500))


def test_enlarging_keeps_what_is_even_and_centres_it() -> None:
    (image,) = mnist_data.enlarge(np.full((1, 8, 8), 16.0))
    expected = np.zeros((28, 28), np.uint8)
    expected[4:24, 4:24] = 255
    np.testing.assert_array_equal(image, expected)


def test_enlarging_interpolates() -> None:
    images = np.zeros((1, 8, 8))
    images[0, :, :4] = 16
    (image,) = mnist_data.enlarge(images)
    np.testing.assert_allclose(image[14, 4:24], [255] * 9 + [0.7 * 255, 0.3 * 255] + [0] * 9, atol=0.51)


@pytest.mark.slow
def test_several_workers_at_once_write_one_whole_cache(tmp_path: Path) -> None:
    program = "from worker_scripts import mnist_data; print(sum(len(labels) for _, labels in mnist_data.load()))"
    env = environment(PYTHONPATH=str(REPOSITORY))
    workers = [subprocess.Popen([sys.executable, "-c", program], env=env, text=True, stdout=-1) for _ in range(4)]
    assert [worker.communicate(timeout=60)[0].split()[-1] for worker in workers] == ["1797"] * 4
    assert [path.name for path in (tmp_path / "cache" / "muster").iterdir()] == ["digits"]
    assert len(list((tmp_path / "cache" / "muster" / "digits").iterdir())) == 4


def test_the_cache_needs_no_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_data.load()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    mnist_data.load()


def test_no_digits_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FileNotFoundError, match="--data or MUSTER_MNIST, or install scikit-learn"):
        mnist_data.load()
    assert not (tmp_path / "cache").exists()


def test_no_digits_where_they_were_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte is not there, and neither is .*gz"):
        mnist_data.load(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path, small: Digits) -> None:
    write_folder(tmp_path / "mnist", small)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte is not an IDX file"):
        mnist_data.load(tmp_path / "mnist")
