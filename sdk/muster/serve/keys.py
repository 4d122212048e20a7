"""The file of API keys: one key per line, readable by its owner only."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from muster.errors import JobError
from muster.security.ssh import write_private

KEY = re.compile(r"[A-Za-z0-9_-]{32,}")


def make_key(path: Path) -> str:
    """Make a new key, write it as the only one to a file, and return it. Raises OSError."""
    key = secrets.token_urlsafe(32)
    write_private(path, key + "\n")
    return key


def make_key_file(path: Path) -> bool:
    """Make a file with one new key, and return True; return False where the file exists already.

    Raises:
        JobError: the file cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise JobError(f"The key file {path} cannot be made: {error.strerror}.") from error
    with open(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    return True


def read_keys(path: Path) -> list[str]:
    """Return the keys in a file.

    Raises:
        JobError: the file cannot be read, others can read it, too, or a line is no key.
    """
    try:
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            keys = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"The key file {path} cannot be read: {error}.") from error
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise JobError(
            f"The key file {path} is open to others than its owner, or belongs to somebody else.",
            advice=f"chmod 600 {path}; and where others may have read it, delete it: a new one is made",
        )
    wrong = next((number for number, key in enumerate(keys, 1) if not KEY.fullmatch(key)), None)
    if wrong or not keys:
        raise JobError(
            f"Line {wrong or 1} of the key file {path} is no key.",
            advice="one key a line: at least 32 letters, digits, '-' and '_', such as `openssl rand -hex 32` makes",
        )
    return keys
