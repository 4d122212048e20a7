"""The standard library's SHA-256, imported when first used: every launch waits for a guard's imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib


def sha256(data: bytes = b"") -> "hashlib._Hash":
    """Return a new hash object that has hashed ``data``."""
    import hashlib

    return hashlib.sha256(data)
