"""Reports of the runner about an exception."""

from __future__ import annotations

import json
import linecache
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
import pytest
from muster.checks.script import make_script
from muster.failure.failures import Bearing, Failure, FailureKind
from muster.runner import exceptions, runner, stacks, tracebacks
from muster.runner.exceptions import LONGEST_MESSAGE, message_of
from muster.runner.tracebacks import of_scripts

FOLDER = str(Path(runner.__file__).parent)

GRAPH = """Graph execution error:

Detected at node gradient_0 defined at (most recent call last):
{}
Horovod has been shut down. This was caused by an exception on one of the ranks.
\t [[{{{{node gradient_0}}}}]] [Op:__inference_multi_step_on_iterator_452]"""
FRAMES = '  File "/home/me/a-long-name-of-a-project/train.py", line 27, in <module>\n\n' * 40


def test_what_happened_comes_first_in_an_error_of_a_graph() -> None:
    for stack in (FRAMES, "<stack traces unavailable>", FRAMES + "Node: 'gradient_0'"):
        message = message_of(RuntimeError(GRAPH.format(stack)))
        assert message.splitlines()[0].startswith("Horovod has been shut down.")
    two = "Graph execution error:\n\n" + "Detected at node a defined at (most recent call last):\n" * 2 + FRAMES
    assert message_of(RuntimeError(two + "Incompatible shapes: [32,10] vs. [32,9]")).startswith("Incompatible shapes")
    assert message_of(RuntimeError("Graph execution error:")) == "Graph execution error:"
    assert message_of(ValueError("no Graph execution error:\n\n  text")) == "no Graph execution error:\n\n  text"


@pytest.mark.parametrize(
    ("message", "headline"),
    [
        (
            GRAPH.format(FRAMES).replace("Horovod has", "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  It has"),
            "It has been",
        ),
        ("2 root error(s) found.\n  (0) Invalid argument: nan\n\t [[x]]\n  (1) Internal: inf", "nan"),
        (
            "Exception encountered when calling A.call().\n\n\x1b[1mInput 0 is incompatible\x1b[0m\n\nArguments",
            "Input 0 is incompatible",
        ),
        ("Exception encountered when calling layer 'a' (type A).\n\nbad\n\nCall arguments", "bad"),
        (
            "Exception encountered when calling A.call().\n\n\x1b[1m\x1b[0m\n\nArguments received",
            "Exception encountered",
        ),
        ("{{function_node __wrapped__MatMul_device_/job:a/device:CPU:0}} Matrix size-incompatible", "Matrix size"),
        ("{{function_node __wrapped__Next}} KeyError: 'label'\nTraceback (most recent", "KeyError: 'label'"),
    ],
)
def test_what_happened_comes_before_a_frameworks_headings(message: str, headline: str) -> None:
    assert message_of(RuntimeError(message)).startswith(headline)


def test_the_stacks_of_a_graphs_nodes_have_the_scripts_frames_alone() -> None:
    of_packages = '  File "/x/lib/python3.11/site-packages/keras/src/fit.py", line 7, in fit\n\n' * 3
    of_packages += f'  File "{FOLDER}/modes.py", line 5, in main\n\n' * 2
    scripts = '  File "/home/me/train.py", line 27, in <module>\n\n'
    assert of_scripts(of_packages + scripts + of_packages) == scripts
    plain = '  File "/x/site-packages/keras/src/fit.py", line 7, in fit\n    raise ValueError\n'
    assert of_scripts(plain) == plain


def test_a_long_message_keeps_its_end_which_may_tell_of_another_rank() -> None:
    message = message_of(RuntimeError("In the loop of train.py: " + "x" * 5000 + " Horovod has been shut down."))
    assert message.startswith("In the loop")
    assert len(message) <= LONGEST_MESSAGE
    assert Failure(FailureKind.EXCEPTION, 1.0, type="UnknownError", message=message).bearing is Bearing.COLLECTIVE


@pytest.fixture(params=["cloudpickle as installed", "cloudpickle that leaves out the names of files"])
def any_cloudpickle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either pickles code as its releases up to 3.1.2 do, or as those from 3.1.3 on."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def without_filename(code: CodeType) -> tuple[Any, ...]:
        made, arguments = reduce(code)
        return made, tuple("<dynamic-code>" if part == code.co_filename else part for part in arguments)

    if "leaves out" in request.param:
        monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, CodeType, without_filename)


@pytest.mark.usefixtures("any_cloudpickle")
def test_a_function_of_a_notebook_brings_its_cell_which_tensorflow_compiles_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "ipykernel_1" / "2.py")  # which no worker has
    cell = "def train():\n    import inspect\n    def step(): return 7\n    return inspect.getsource(step)\n"
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(True), name))
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), space)
    script = make_script(space["train"])
    (tmp_path / "function").write_bytes(script.pickled + script.sources)
    environment = {**os.environ, "MUSTER_RESULTS": str(tmp_path), "MUSTER_WORKER": "worker-0"}
    command = [sys.executable, runner.__file__, "function", str(tmp_path / "function")]
    subprocess.run(command, env=environment, check=True)
    assert "def step(): return 7" in (tmp_path / "worker-0.json").read_text()


def test_what_a_function_of_a_notebook_raises_names_the_cell_in_the_workers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "ipykernel_1" / "2.py")
    cell = "def train():\n    raise ValueError('no data')\n"
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(True), name))
    monkeypatch.setattr("muster.checks.function.cell_name", {name: "Cell In[12]"}.__getitem__)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), space)
    script = make_script(space["train"])
    (tmp_path / "function").write_bytes(script.pickled + script.sources)
    command = [sys.executable, runner.__file__, "function", str(tmp_path / "function")]
    printed = subprocess.run(command, stderr=subprocess.PIPE, text=True).stderr
    assert "  Cell In[12], line 2, in train\n    raise ValueError('no data')\n" in printed
    assert "ipykernel_" not in printed
    monkeypatch.setitem(tracebacks.CELLS, name, "Cell In[12]")
    with pytest.raises(ValueError) as caught:
        space["train"]()
    assert caught.tb.tb_next is not None
    assert "  Cell In[12], line 2 in train\n" in stacks._stack("MainThread", caught.tb.tb_next.tb_frame)


@pytest.mark.parametrize(
    ("status", "kept"),
    [("0", "null"), ("", "null"), ("256", "null"), ("3", None), ("0.0", None), ("2**64", None), ("'no data'", None)],
)
def test_a_function_that_ends_itself_without_an_error_has_returned_none(
    tmp_path: Path, status: str, kept: str | None
) -> None:
    function = tmp_path / "function"
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def train():\n    import sys\n    sys.exit({status})", space)
    function.write_bytes(cloudpickle.dumps(space["train"]))
    environment = {**os.environ, "MUSTER_RESULTS": str(tmp_path), "MUSTER_WORKER": "worker-0"}
    command = [sys.executable, runner.__file__, "function", str(function)]
    ended = subprocess.run(command, env=environment, stderr=subprocess.DEVNULL)
    value = tmp_path / "worker-0.json"
    assert (ended.returncode == 0, value.read_text() if value.exists() else None) == (kept is not None, kept)


@pytest.mark.parametrize(
    "change",
    [
        "os.environ.clear()",
        "os.environ['MUSTER_RESULTS'] = '/nowhere'",
        "os.environ.update(MUSTER_RANK='0', PMI_RANK='0', HOROVOD_RANK='0')",
        "if os.fork() == 0: return 'of a fork'\n    os.wait()",
        "import time\n    if os.fork() == 0:\n        time.sleep(0.5)\n        return 'of a fork'",
    ],
)
def test_what_a_function_does_to_its_environment_does_not_change_whose_value_it_is(tmp_path: Path, change: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def train():\n    import os\n    {change}\n    return 'of the rank'", space)
    (tmp_path / "function").write_bytes(cloudpickle.dumps(space["train"]))
    (tmp_path / "results").mkdir()
    environment = {**os.environ, "MUSTER_RESULTS": str(tmp_path / "results"), "MUSTER_WORKER": "worker-1"}
    command = [sys.executable, runner.__file__, "function", str(tmp_path / "function")]
    environment["MUSTER_RANK"] = "1"
    subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # its forks have ended, too
    (value,) = (tmp_path / "results").iterdir()
    assert (value.name, value.read_text()) == ("rank-1.json", '"of the rank"')


def test_what_is_raised_without_frames_of_the_scripts_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_REPORT", str(tmp_path / "report"))
    monkeypatch.setattr(exceptions, "AGENT", [])
    monkeypatch.setattr(exceptions, "RESERVED", [])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "report"))
        exceptions.reserve()
        exceptions.report(TypeError("cannot be sent back"))
        told = json.loads(agent.recv(1 << 16))
    assert (told["type"], told["message"], told["traceback"]) == ("TypeError", "cannot be sent back", "")


@pytest.mark.skipif(sys.version_info < (3, 8), reason="older ones do not end by the signal")
def test_an_interrupt_that_a_script_raises_shows_its_own_frames_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def step():\n    raise KeyboardInterrupt\nstep()\n")
    (tmp_path / "hooked.py").write_text(
        "import sys, traceback\nsys.excepthook = lambda *found: print(len(traceback.extract_tb(found[2])), 'frames')\n"
        "def step():\n    raise KeyboardInterrupt\nstep()\n"
    )
    function = tmp_path / "function"

    def interrupted() -> None:
        raise KeyboardInterrupt

    function.write_bytes(cloudpickle.dumps(interrupted))
    outcomes = {}
    for kind, name in (("program", "train.py"), ("module", "train"), ("function", str(function)), ("module", "hooked")):
        command = [sys.executable, runner.__file__, kind, name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        outcomes[kind, name] = done
        assert done.returncode == -signal.SIGINT
        assert FOLDER not in done.stderr
        assert "runpy" not in done.stderr
    for named in (("program", "train.py"), ("module", "train")):
        assert outcomes[named].stderr.count("  File ") == 2
        assert outcomes[named].stderr.endswith("raise KeyboardInterrupt\nKeyboardInterrupt\n")
    assert "in interrupted" in outcomes["function", str(function)].stderr
    assert outcomes["module", "hooked"].stdout == "2 frames\n"


@pytest.mark.parametrize("text", ["x = 1\nbreakpoint()\n", "def f():\n    breakpoint()\n    return 1\n\n\nf()\n"])
def test_a_breakpoint_raises_where_it_stands(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, runner.__file__, "program", "train.py"]
    env = {**os.environ, "PYTHONBREAKPOINT": ""}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    *frames, _ = done.stderr.splitlines()
    assert next(line.strip() for line in reversed(frames) if "^" not in line) == "breakpoint()"
    assert done.stderr.endswith(
        "RuntimeError: breakpoint() has no debugger here, since workers have no standard input\n"
    )
    assert FOLDER not in done.stderr

    env["PYTHONBREAKPOINT"] = "0"
    assert subprocess.run(command, cwd=tmp_path, check=False, env=env).returncode == 0


def test_what_a_script_has_written_to_files_that_it_leaves_open_is_there(tmp_path: Path) -> None:
    """As ``python FILE`` would have it, which clears the script's module before the garbage collector comes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit\ndef function(): pass\natexit.register(function)\n"
        "text = open('text', 'w')\ntext.write('x')\nbinary = open('binary', 'ab+')\nbinary.write(b'y')\n"
    )
    subprocess.run([sys.executable, runner.__file__, "program", str(script)], cwd=tmp_path, check=True)
    assert [(tmp_path / name).read_text() for name in ("text", "binary")] == ["x", "y"]


@pytest.mark.parametrize(
    "text",
    [
        "def interrupt(path): raise KeyboardInterrupt\nos.listdir = interrupt\nos._exit(7)",  # as Ctrl-C may
        "os._exit('a word')",
        "import pickle\nassert pickle.loads(pickle.dumps(os._exit)) is os._exit\nos._exit(7)",
        "import cloudpickle\nassert cloudpickle.loads(cloudpickle.dumps(os._exit)) is os._exit\nos._exit(7)",
    ],
)
def test_os_exit_ends_a_script_whatever_becomes_of_its_report(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    lines = [
        "import os",
        "try:",
        *(f"    {line}" for line in text.splitlines()),
        "except TypeError:",
        "    os._exit(7)",
    ]
    script.write_text("\n".join(lines))
    environment = {**os.environ, "MUSTER_REPORT": str(tmp_path / "nobody")}
    command = [sys.executable, runner.__file__, "program", str(script)]
    assert subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 7
