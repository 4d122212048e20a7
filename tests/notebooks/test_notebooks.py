"""The ready notebooks, each run from top to bottom in a real kernel, with parameters that make it quick."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import muster
import nbformat
import pytest

from tests.support import reports_of

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute_notebooks", NOTEBOOKS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the notebooks' folder beside the scripts, on a machine with neither MNIST nor photographs."""
    monkeypatch.delenv("MUSTER_DASHBOARD")  # what users see is looked at, too
    monkeypatch.delenv("MUSTER_MNIST", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tensorflow_datasets"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (tmp_path / "worker_scripts").symlink_to(ROOT / "worker_scripts")
    copy = tmp_path / "notebooks"
    copy.mkdir()
    for module in NOTEBOOKS.glob("*.py"):
        (copy / module.name).symlink_to(module)
    return copy


class Executed:
    """A notebook that has been run, and what its cells show."""

    def __init__(self, name: str, folder: Path, **parameters: object) -> None:
        self.notebook = tool.execute(NOTEBOOKS / f"{name}.ipynb", folder, **parameters)
        outputs = [output for cell in self.notebook.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output.output_type == "error"]
        shown = [output for output in outputs if "data" in output]
        self.printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
        self.complaints = "".join(output.text for output in outputs if output.get("name") == "stderr")
        self.tables = [output.data["text/html"] for output in shown if "<table" in output.data.get("text/html", "")]
        self.markdown = [output.data["text/markdown"] for output in shown if "text/markdown" in output.data]
        self.drawings = [output for output in shown if {"image/png", "image/jpeg"} & set(output.data)]

    def accuracies(self) -> list[float]:
        """All that is said about how many of the test pictures are right."""
        return [float(text) / 100 for text in re.findall(r"([\d.]+)% of [\d,]+ test", self.printed)]


def assert_shows_runs(notebook: Executed, workers: list[str], status: str, n: int) -> None:
    """There are tables of so many runs, each with all workers and how it ended."""
    runs = [table for table in notebook.tables if all(worker in table for worker in workers)]
    assert len(runs) == n
    assert all(status in table for table in runs)


@pytest.mark.slow
@pytest.mark.horovod
def test_mnist_on_horovod(folder: Path) -> None:
    notebook = Executed("mnist_horovod", folder, epochs=3)
    (accuracy,) = re.findall(r"succeeded, test accuracy ([\d.]+)%", notebook.printed)
    assert float(accuracy) >= 88
    assert_shows_runs(notebook, ["worker-0", "worker-1"], "succeeded", 1)
    assert len(notebook.drawings) == 2
    assert notebook.complaints == ""
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["mnist_horovod.keras"]
    run = muster.open_run("last")
    *_, last = reports_of(run.run_dir, "worker-1")
    assert (last["epochs"], last["examples"]) == (3, 3 * 23 * 32)
    written = [path.parent.name for path in run.run_dir.rglob("*tfevents*")]
    assert sorted(written) == ["train", "validation"], "by rank 0 alone"


@pytest.mark.slow
def test_mnist_on_parameter_servers(folder: Path) -> None:
    notebook = Executed("mnist_parameter_servers", folder, epochs=3)
    assert_shows_runs(notebook, ["ps-0", "worker-0", "worker-1"], "succeeded", 2)
    accuracies = notebook.accuracies()
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.85
    (comparison,) = notebook.markdown
    rows = {row.split("|")[1].strip(" *"): row.split("|")[2:-1] for row in comparison.splitlines()[2:]}
    updates, _, _, accuracy = ({name: cells[column].strip() for name, cells in rows.items()} for column in range(4))
    assert int(updates["asynchronous"]) == pytest.approx(2 * int(updates["synchronous"]), abs=2)
    assert [float(text.rstrip("%")) / 100 for text in accuracy.values()] == pytest.approx(accuracies)
    assert len(notebook.drawings) == 3
    assert notebook.complaints == ""
    runs = muster.list_runs()
    assert len(runs) == 2
    for run in runs:
        first, *_ = (report for report in reports_of(run.run_dir, "worker-0") if "step" in report)
        *_, last = (report for report in reports_of(run.run_dir, "worker-1") if "examples" in report)
        assert {"loss", "accuracy"} <= set(first["metrics"])
        assert 0 < last["examples"] < 2 * 32 * last["step"], "both of them worked"


@pytest.mark.slow
@pytest.mark.horovod
def test_cats_and_dogs(folder: Path) -> None:
    notebook = Executed("cats_vs_dogs_horovod", folder, epochs=2, steps=30)
    assert "drawn cats and dogs (synthetic, not photographs): 3,200 to train, 400 to test" in notebook.printed
    (accuracy,) = re.findall(r"^test accuracy ([\d.]+)%$", notebook.printed, re.MULTILINE)
    assert float(accuracy) >= 58  # of 400, half of which chance gets right, give or take 2.5 %
    assert_shows_runs(notebook, ["worker-0", "worker-1"], "succeeded", 1)
    assert len(notebook.drawings) == 3
    assert notebook.complaints == ""
    *_, last = reports_of(muster.open_run("last").run_dir, "worker-1")
    assert (last["epochs"], last["steps"], last["examples"]) == (2, 30, 2 * 30 * 32)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["cats_vs_dogs.keras"]


@pytest.mark.slow
@pytest.mark.horovod
def test_the_tour_of_failures(folder: Path) -> None:
    notebook = Executed("tour_of_failures", folder)
    assert_shows_runs(notebook, ["worker-0", "worker-1"], "failed", 4)
    printed = notebook.printed
    assert re.search(r"ScriptError: .*/train.py, line 2, does not compile", printed)
    assert "ScriptFailed: rank 1 (worker-1) failed first: NameError: name 'wieghts' is not defined" in printed
    assert "typo.py" in printed
    assert "Horovod has been shut down" in printed
    assert re.search(r"WorkerOutOfMemory: rank 1 \(worker-1\) used [\d.]+ GB of memory and was given 1 GB", printed)
    assert "Try: memory=2" in printed
    assert re.search(r"RunStalled: rank [01] .* has shown no progress for 15 s", printed)
    assert re.search(r"--- rank 0 .*allreduce.*--- rank 1 .*in next_batch", printed, re.DOTALL)
    assert "WorkerKilled: rank 1 (worker-1) was ended by signal 9 (SIGKILL)" in printed
    assert printed.count("Cause: ") == 3  # explained
    (summary,) = [table for table in notebook.markdown if table.startswith("| run |")]
    rows = re.findall(r"^\| (\w+) \| failed \| (worker-\d) \|", summary, re.MULTILINE)
    assert [script for script, _ in rows] == ["typo", "out_of_memory", "hang", "killed"]
    assert [worker for script, worker in rows if script != "hang"] == ["worker-1"] * 3
    assert notebook.complaints == ""


@pytest.mark.slow
def test_the_kernel_is_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    path = tmp_path / "which.ipynb"
    source = "import sys; print(sys.executable)"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, id="which")]), path)
    (cell,) = tool.execute(path, tmp_path).cells
    assert Path(cell.outputs[0].text.strip()).parent == Path(sys.executable).parent


# ------------------------------------------------------------------------------------------------ as they are in git


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def kept(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.read(request.param, as_version=4)
    return notebook


def test_one_cell_has_the_parameters(kept: nbformat.NotebookNode) -> None:
    (cell,) = [cell for cell in kept.cells if "parameters" in cell.metadata.get("tags", [])]
    assert re.match(r"n_workers = \d  #", cell.source)


def test_it_begins_by_saying_what_it_does(kept: nbformat.NotebookNode) -> None:
    nbformat.validate(kept)
    assert kept.cells[0].cell_type == "markdown"
    assert re.match(r"# \w[^\n]+\n\n.*This notebook ", kept.cells[0].source, re.DOTALL)


def test_it_begins_by_saying_how_long_it_takes_what_to_change_and_where_its_result_can_be_seen(
    kept: nbformat.NotebookNode,
) -> None:
    (before,) = re.findall(r"\*\*Before you start\.\*\*(.*)", kept.cells[0].source, re.DOTALL)
    assert re.search(r"takes about (half )?a minute", before)
    (cell,) = [cell for cell in kept.cells if "parameters" in cell.metadata.get("tags", [])]
    changed = re.findall(r"`(\w+)`", before.partition("[What it shows]")[0].partition("**")[0])
    assert len(changed) >= 2
    assert all(re.search(rf"^{name} = ", cell.source, re.MULTILINE) for name in changed), "in the cell of parameters"
    (picture,) = re.findall(r"\[What it shows\]\((\S+\.png)\)", before)
    assert (NOTEBOOKS / picture).stat().st_size > 20_000


def test_what_it_shows_is_from_one_run_from_top_to_bottom_and_names_no_folder_of_a_machine(
    kept: nbformat.NotebookNode,
) -> None:
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = json.dumps([cell.outputs for cell in code])
    assert not re.findall(r"/(?:home|root|Users|work|opt|mnt|tmp/tmp\w+|tmp/muster-\w+)/[\w./-]+", shown)
    assert '"error"' not in shown
    assert len(shown) < 300_000


def test_links_lead_somewhere(kept: nbformat.NotebookNode) -> None:
    text = "\n".join(cell.source for cell in kept.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []


def test_paths_become_those_of_nobody() -> None:
    text = f'File "{ROOT}/worker_scripts/typo.py" of {Path.home()}/.muster, {tempfile.gettempdir()}/muster-ab_12/lib'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text, id="text")])
    (cell,) = tool.as_kept(notebook).cells
    assert cell.source == 'File "~/muster/worker_scripts/typo.py" of ~/.muster, /tmp/.../lib'
