"""Code that makes the agent's package importable on a machine where it is not installed.

It is sent as text, followed by the code that uses the package. Modules are imported from memory, and from bytecode
where this Python reads it: to write all files and read them again would take a quarter of an agent's start. They are
written only for programs of other processes, into a folder that is removed after its use. Meanwhile the folder is
locked, which shows others that it is in use. If the process is killed, the next one removes the folder
(``removal.remove_unused``). Where many workers start at once on few cores, all wait for what each one imports: so there
is little of that.
"""

import sys

if sys.version_info < (3, 6):
    sys.exit("muster: python3 is Python {}.{}.{}; workers need 3.6".format(*sys.version_info[:3]))

import contextlib
import fcntl
import marshal
import os
import zlib
from importlib._bootstrap_external import MAGIC_NUMBER  # as in importlib.util, which takes a while to import
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Iterator

LONGEST = 40  # characters of the path of the folder around it: paths of sockets inside must be shorter than 108
HEADER = 16  # bytes before the code in a .pyc file
TROUBLE = "muster: the agent cannot be put into {}: {}"


class Package:
    """The agent's package, whose modules are imported from memory, and written into files where a program needs these.

    Args:
        packed: the package, as the session has packed it.
        folder: the folder that the package is written into.
    """

    def __init__(self, packed: bytes, folder: str) -> None:
        self._tag, self._files = marshal.loads(packed)  # files by name: a source and its .pyc file, both compressed
        self._around = folder
        self._folder = os.path.join(folder, "agent")

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return how a module of the package is imported; None for any other module."""
        package, _, module = name.partition(".")
        file = (module or "__init__") + ".py"
        if package != "agent" or file not in self._files:
            return None
        spec = ModuleSpec(name, self, origin=os.path.join(self._folder, file))  # type: ignore[arg-type]
        spec.has_location = True
        if not module:
            spec.submodule_search_locations = [self._folder]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Have Python make the module as usual."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the module."""
        exec(self._code(module.__file__ or ""), vars(module))

    def _code(self, path: str) -> "CodeType":
        source, compiled = self._files[os.path.basename(path)]
        if compiled:
            pyc = zlib.decompress(compiled)
            if pyc.startswith(MAGIC_NUMBER):
                code = marshal.loads(pyc[HEADER:])  # type: CodeType
                return code
        return compile(zlib.decompress(source), path, "exec", dont_inherit=True)

    def get_source(self, name: str) -> str:
        """Return the source of a module, for tracebacks."""
        return zlib.decompress(self._files[(name.partition(".")[2] or "__init__") + ".py"][0]).decode("utf-8")

    def write(self) -> None:
        """Write the package into its folder, unless it is there, as a fork of this process may need it, too.

        Sources come with their bytecode: whatever Python runs them compiles what it cannot read. Raises OSError.
        """
        if os.path.isdir(self._folder):
            return
        made = os.path.join(self._around, "agent-" + os.urandom(4).hex())
        os.makedirs(os.path.join(made, "__pycache__"))
        for name, (source, compiled) in self._files.items():
            kinds = {name: source, "__pycache__/{}.{}.pyc".format(name[:-3], self._tag): compiled}
            for path, content in kinds.items():
                if content:
                    with open(os.path.join(made, path), "wb") as file:
                        file.write(zlib.decompress(content))
        with contextlib.suppress(OSError):  # another process has been quicker
            os.rename(made, self._folder)


def make_importable(packed: bytes, folder: str) -> Package:
    """Have the agent's package imported from memory, and return it; the arguments are those of ``Package``."""
    package = Package(packed, folder)
    sys.meta_path.insert(0, package)
    return package


@contextlib.contextmanager
def unpacked(packed: bytes, prefix: str, in_files: bool) -> "Iterator[str]":
    """Make the agent's package importable, and provide a folder for it, mode 0700; remove that at the end.

    Args:
        packed: the package, as the session has packed it.
        prefix: the beginning of the folder's name.
        in_files: whether to write it into files at once.

    Raises:
        SystemExit: the folder cannot be made, or its files.
    """
    around = _temporary_folder()
    # The folder around it may be shared with other machines, whose locks not every file system shows; so the names of
    # their folders begin with another prefix.
    prefix += "{:08x}-".format(zlib.crc32(os.uname().nodename.encode()))
    try:
        folder, lock = _make_folder(prefix, around)
    except OSError as error:
        sys.exit(TROUBLE.format(around, error.strerror or error))
    try:
        package = make_importable(packed, folder)
        if in_files:
            try:
                package.write()
            except OSError as error:
                sys.exit(TROUBLE.format(around, error.strerror or error))
        yield folder
    finally:
        from agent.removal import remove_folder  # type: ignore[import-not-found]

        remove_folder(folder)
        os.close(lock)


def _temporary_folder() -> str:
    """Return a folder for temporary files whose path is short enough, if there is one that can be used."""
    own = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    short = [own] if len(own) <= LONGEST and " " not in own else []
    return next((folder for folder in [*short, "/tmp", "/var/tmp"] if os.access(folder, os.W_OK | os.X_OK)), "/tmp")


def _make_folder(prefix: str, around: str) -> "tuple[str, int]":
    """Make a folder, and return its path and a descriptor of it that holds its lock."""
    while True:
        folder = os.path.join(around, prefix + os.urandom(4).hex())
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removed it as unused before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # without locks, nothing is removed as unused either
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)
