"""The source of the pictures, and their distribution among ranks."""

import builtins
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support import IMPORT_PATH
from tests.training.processes import REPOSITORY, alone, environment, start

pytestmark = pytest.mark.slow

SCRIPT = REPOSITORY / "worker_scripts" / "cats_vs_dogs_data.py"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, on a machine without photographs."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tensorflow_datasets"))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("cats_vs_dogs_data")


def encoded(shade: int, format: str) -> bytes:
    """A small picture, wider than high, all of one grey."""
    import tensorflow as tf

    pixels = np.full((20, 30, 3), shade, np.uint8)
    picture = (tf.io.encode_png if format == "png" else tf.io.encode_jpeg)(pixels)
    return bytes(picture.numpy())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 cats, dark, and 10 dogs, bright."""
    for name, n, shade in ("cats", 20, 50), ("dogs", 10, 200):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(n):
            format = ("png", "jpg", "JPEG")[i % 3]
            (tmp_path / "images" / name / f"{i}.{format}").write_bytes(encoded(shade, format))
        (tmp_path / "images" / name / "readme.txt").write_text("not a picture")
    return tmp_path / "images"


def read(dataset: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Images and labels of a dataset."""
    pairs = list(dataset.as_numpy_iterator())
    return np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])


def test_without_photographs_pictures_are_drawn_and_said_to_be_synthetic(
    data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = data.find()
    assert capsys.readouterr().out == "drawn cats and dogs (synthetic, not photographs): 3,200 to train, 400 to test\n"
    images, labels = read(pictures.test().take(6))
    expected, expected_labels = data.cats_vs_dogs_drawn.draw_set(6, seed=1)
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, expected_labels)


def test_ranks_draw_different_pictures_and_all_of_them(data: ModuleType) -> None:
    pictures = data.from_pencil(n_train=7, n_test=3)
    shares = [read(pictures.train(rank, 3))[0] for rank in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    together = {image.tobytes() for share in shares for image in share}
    assert together == {image.tobytes() for image in data.cats_vs_dogs_drawn.draw_set(7)[0]}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_sees_cats_and_dogs(data: ModuleType, size: int) -> None:
    pictures = data.from_pencil(n_train=64, n_test=4)
    shares = [read(pictures.train(rank, size))[1] for rank in range(size)]
    assert all(0.2 < labels.mean() < 0.8 for labels in shares)


def test_more_ranks_than_pictures(data: ModuleType) -> None:
    with pytest.raises(ValueError, match="3 pictures are too few for 4 ranks"):
        data.from_pencil(n_train=7, n_test=3).test(0, 4)


def test_a_folder_of_images(data: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = data.find(folder)
    assert capsys.readouterr().out == f"pictures of {folder}: 24 to train, 6 to test\n"
    images, labels = read(pictures.train())
    assert images.shape == (24, 64, 64, 3)
    assert images.dtype == np.uint8
    np.testing.assert_allclose(images[labels == 0], 50, atol=2)
    np.testing.assert_allclose(images[labels == 1], 200, atol=2)
    assert np.bincount(np.concatenate([labels, read(pictures.test())[1]])).tolist() == [20, 10]
    assert len(set(labels[:12])) == 2  # shuffled
    np.testing.assert_array_equal(read(data.find(str(folder)).train())[1], labels)  # the same way every time


def test_an_image_that_cannot_be_read_is_left_out(data: ModuleType, folder: Path) -> None:
    (folder / "cats" / "0.png").write_bytes(b"")
    pictures = data.find(folder)
    assert len(read(pictures.train())[1]) + len(read(pictures.test())[1]) == 29


@pytest.mark.parametrize("kind", ["cats", "dogs"])
def test_a_folder_without_cats_or_without_dogs(data: ModuleType, folder: Path, kind: str) -> None:
    for path in (folder / kind).iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"There are no JPEG or PNG files in .*/{kind}"):
        data.find(folder)


@pytest.fixture
def tfds(data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The photographs are on disk, and a package in place of tensorflow-datasets reads them."""
    import tensorflow as tf

    (data.tfds_folder() / "cats_vs_dogs").mkdir(parents=True)
    calls: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> list[Any]:
        calls.append((name, options))
        contents = [encoded(100, "jpg")] * 5
        return [tf.data.Dataset.from_tensor_slices((contents, [1] * 5)).take(n) for n in (4, 1)]

    package: Any = ModuleType("tensorflow_datasets")
    package.load, package.decode = load, SimpleNamespace(SkipDecoding=lambda: "encoded")
    package.calls = calls
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", package)
    return package


def test_photographs_that_are_on_disk(data: ModuleType, tfds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = data.find()
    assert capsys.readouterr().out == "cats_vs_dogs of TensorFlow Datasets: 4 to train, 1 to test\n"
    images, labels = read(pictures.train(rank=1, size=2))
    assert images.shape == (2, 64, 64, 3)
    assert labels.tolist() == [1, 1]
    ((name, options),) = tfds.calls
    assert name == "cats_vs_dogs"
    assert options["download"] is False
    assert options["split"] == ["train[20%:]", "train[:20%]"]


def test_drawn_ones_when_asked_for_although_there_are_photographs(data: ModuleType, tfds: Any) -> None:
    assert "synthetic" in data.find(drawn=True).name


def test_photographs_without_the_package_that_reads_them(data: ModuleType) -> None:
    (data.tfds_folder() / "cats_vs_dogs").mkdir(parents=True)
    with pytest.raises(ImportError, match="pip install tensorflow-datasets"):
        data.find()


def test_nothing_is_downloaded_unless_asked(data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    real_import = builtins.__import__

    def spy(name: str, *args: Any, **kwargs: Any) -> Any:
        imported.append(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", spy)
    data.find()
    assert "tensorflow_datasets" not in imported


def test_the_command_says_which_pictures_there_are_and_what_a_download_lacks(data: ModuleType, tmp_path: Path) -> None:
    # A folder that comes first and has a broken package, so that it makes no difference whether there is a real one.
    (tmp_path / "tensorflow_datasets.py").write_text("raise ImportError('broken')")
    path = f"{tmp_path}{os.pathsep}{IMPORT_PATH}"
    with start([sys.executable, str(SCRIPT), "--download"], environment(PYTHONPATH=path)) as download:
        assert alone(SCRIPT, "--drawn").startswith("drawn cats and dogs (synthetic, not photographs)")
        output, _ = download.communicate()
    assert download.returncode == 1
    assert output.strip().splitlines()[-1].startswith("The photographs of TensorFlow Datasets need its package")
    assert "pip install tensorflow-datasets" in output
