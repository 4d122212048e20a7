"""Program of ``scripts/worker_image.sh``: has the tests' Docker build the image, by build arguments, and saves it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms.containers_docker import Docker, fetch, why_not

REPOSITORY = Path(__file__).parents[2]
IMAGE = "muster-worker"
# Others than the Dockerfile's own, which Podman's image has: those of the guide.
VERSIONS = {"TENSORFLOW": "2.17.1", "NUMPY": "1.26.4"}


def main(base: str, name: str, change: str, target: str) -> None:
    """Build the image on a base.

    Args:
        base: archive of the base's files.
        name: name by which the Dockerfile asks for the base.
        change: instruction of a Dockerfile that the base is to have as well.
        target: where the image is saved.
    """
    packages = None if why_not() else fetch()
    if packages is None:
        print("Docker builds no image:", why_not() or "Debian's packages of it cannot be fetched here")
        return
    try:
        docker = Docker(packages)
    except pytest.skip.Exception as skipped:
        print("Docker builds no image:", skipped)
        return
    try:
        docker.run("import", "--change", change, base, name)
        arguments = " ".join(f"--build-arg {name}={version}" for name, version in VERSIONS.items())
        command = ["make", "image", "ENGINE=docker", f"ARGS=--network=host {arguments}"]
        subprocess.run(command, cwd=REPOSITORY, env=docker.environment, check=True)
        docker.run("save", "--output", target, IMAGE)
    finally:
        docker.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
