"""The agent's package, packed to travel to workers where it is not installed."""

from __future__ import annotations

import base64
import functools
import importlib.machinery
import importlib.util
import marshal
import sys
import threading
import zlib
from pathlib import Path

from muster.agent.worker import UNPACKED
from muster.runtime.forks import in_forked_children

AGENT = Path(__file__).resolve().parents[1] / "agent"
FORMAT = 2  # of marshal's data: one that all versions of Python read
UNCHECKED = b"\1\0\0\0"  # flags of a .pyc file with its source's hash, which is not checked (PEP 552)
LINE = 100  # characters of a line of packed source
# Python would look through what has been imported again and again, all of which stays; on again once all is imported.
NO_COLLECTION = "import gc\n\ngc.disable()"

# To compile these files would take Python a sixth of the time that it takes to import the agent.
FROM_PACKAGE = """
import marshal
import sys
import zlib
from importlib._bootstrap_external import MAGIC_NUMBER

with open({}, "rb") as file:
    packed = file.read()
for name in {}:
    source, compiled = map(zlib.decompress, marshal.loads(packed)[1][name])
    is_read = compiled.startswith(MAGIC_NUMBER)
    exec(marshal.loads(compiled[16:]) if is_read else compile(source, name, "exec", dont_inherit=True))
"""

_packing = threading.Lock()  # many hosts are logged in to at once, and all may need the same package


def _renew_lock() -> None:
    global _packing
    _packing = threading.Lock()


in_forked_children(_renew_lock)  # a thread of the parent's may have held it, which the child does not have


def packed_agent(*, has_bytecode: bool = False) -> bytes:
    """Return the agent's package, packed for ``Package`` of the agent's ``unpacking.py``.

    Args:
        has_bytecode: whether to include this interpreter's bytecode: three times as much data, but workers with the
            same version of Python, such as 3.11, start in half the time. Each checks that it reads such bytecode.
    """
    with _packing:
        return _packed(has_bytecode)


@functools.lru_cache
def _packed(has_bytecode: bool) -> bytes:
    files = {}
    for path in sorted(AGENT.glob("*.py")):  # each by itself, as agents need no more than two thirds of them
        compiled = zlib.compress(_bytecode(path)) if has_bytecode else b""
        files[path.name] = zlib.compress(path.read_bytes()), compiled
    return marshal.dumps((sys.implementation.cache_tag, files), FORMAT)


def _bytecode(path: Path) -> bytes:
    """Return a module as in a .pyc file, without docstrings and assertions: they would be a third of it."""
    source = path.read_bytes()
    head = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source)
    return head + marshal.dumps(compile(source, str(path), "exec", dont_inherit=True, optimize=2))


def program(bootstrap: str, *arguments: str) -> str:
    """Return the source of a program that turns the process that runs it into a worker; it has the package in it.

    Args:
        bootstrap: name of the agent's file that defines ``become_worker``.
        arguments: arguments of ``become_worker`` after the first, the context manager that unpacks the agent.
    """
    text = base64.b64encode(packed_agent()).decode()
    lines = "".join(f"{text[start : start + LINE]}\n" for start in range(0, len(text), LINE))
    package = f"unpacked(base64.b64decode('''\n{lines}'''), {UNPACKED!r}, True)"
    call = f"become_worker({', '.join([package, *map(repr, arguments)])})\n"
    return with_unpacking(bootstrap, f"import base64\n\n{call}")


def from_package(bootstrap: str, packed: str, call: str) -> str:
    """Return a program like that of ``with_unpacking``, which takes the two files from the package, as bytecode.

    Args:
        bootstrap: one of the agent's files.
        packed: path of the file with the package, which includes bytecode.
        call: a call of a function in that file, for which ``packed`` is the package.
    """
    return "\n".join([NO_COLLECTION, FROM_PACKAGE.format(repr(packed), ["unpacking.py", bootstrap]), call])


def with_unpacking(bootstrap: str, call: str) -> str:
    """Return a program: how to unpack the package, one of the agent's files, and a call of a function in that."""
    return "\n\n".join([NO_COLLECTION, _text("unpacking.py"), _text(bootstrap), call])


@functools.lru_cache
def _text(name: str) -> str:
    return (AGENT / name).read_text(encoding="utf-8")
