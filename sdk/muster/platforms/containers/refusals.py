"""Errors of a container engine: its refusals by their text, what they mean, and what to try."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Protocol

from muster.agent import linux
from muster.errors import LaunchRefused, PlatformError
from muster.platforms.refusals import Refusal, find_refusal, in_words
from muster.text.arguments import Argument, ArgumentText

START_ENGINE = ArgumentText(
    "start it (systemctl start docker, or podman system service --time=0), or ",
    Argument("engine", ""),
    " the address of another",
)


class EngineGone(PlatformError):
    """The engine does not answer."""


# Texts of Docker and Podman, which also differ between versions. The first that matches counts.
REFUSALS = (
    Refusal(
        r"no space left on device",
        "the engine's disk is full",
        "docker system df says what is there, docker system prune frees some",
    ),
    Refusal(
        r"invalid reference format|repository name must be lowercase",
        "it is no name that an image can have",
        ArgumentText(Argument("image", ""), " NAME:TAG in lower case, as docker pull takes it"),
    ),
    Refusal(
        r"pull access denied|unauthorized|authentication required|denied: ",
        "the registry gives the image to nobody, or not to you",
        ArgumentText("docker login, or ", Argument("image", ""), " another name"),
    ),
    Refusal(
        r"manifest unknown|manifest for .* not found|not found: manifest|repository .* not found|name unknown",
        "the registry has no such image",
        ArgumentText(Argument("image", ""), " NAME:TAG, as docker pull takes it"),
    ),
    Refusal(
        r"connection refused|dial tcp|no such host|pinging container registry|request canceled while waiting",
        "the registry does not answer",
        ArgumentText("whether this machine reaches it, or ", Argument("image", ""), " another name"),
    ),
    Refusal(
        r"no such image|image not known",
        "there is no such image here",
        ArgumentText(Argument("image", ""), " one that docker images lists"),
    ),
    Refusal(
        r"network .*not found|unable to find network|no such network|network not found",
        "there is no such network",
        ArgumentText(Argument("network", ""), " one that docker network ls lists, or leave it out"),
    ),
    Refusal(
        r"docker-init",
        "the engine has no init process for containers",
        "install tini on its machine, which docker-init is",
    ),
    Refusal(
        r"setting rlimit",
        "the engine may not raise the limits of containers that far",
        "default_ulimits = [] below [containers] in /etc/containers/containers.conf, or higher limits for the engine;"
        " either counts once its service is started anew",
    ),
    Refusal(
        r"executable file .*not found|exec: .*not found|starting container process caused.*no such file",
        "the image does not have the program that is to run in it",
        ArgumentText(
            Argument("image", ""), " one with Python 3.6 or later, or ", Argument("python", ""), " where it is in there"
        ),
    ),
    Refusal(
        r"exec.*permission denied|permission denied.*exec",
        "the program that is to run in the image may not be executed",
        ArgumentText(Argument("python", ""), " a program that this user may execute in there"),
    ),
    Refusal(
        r"port is already allocated|address already in use",
        "a port is taken",
        "end what holds it",
    ),
    Refusal(
        r"could not select device driver",
        "the engine cannot give GPUs to containers",
        "install the NVIDIA container toolkit on its machine",
    ),
    Refusal(
        r"bind source path does not exist|statfs .*no such file",
        "its machine does not have a folder that is to be mounted",
        ArgumentText(
            Argument("volumes", ""), " folders of that machine, and ", Argument("image", ""), " one with Python"
        ),
    ),
    Refusal(
        r"already in use by|name .* is in use|is already in use",
        "there is a container of that name",
        "docker rm -f NAME",
    ),
)


class Asked(Protocol):
    """The facts about an engine that errors name."""

    @property
    def product(self) -> str:
        """Name of the engine's product."""

    @property
    def url(self) -> str:
        """The address at which it listens."""


@contextlib.contextmanager
def asking(engine: Asked, what: str, worker: str | None = None) -> Iterator[None]:
    """Turn the errors of requests made inside into Muster's own.

    Args:
        engine: the engine that is asked.
        what: what could not be done if it refuses, such as ``worker-1 could not be created``.
        worker: the worker that is being launched; a refusal is then raised as LaunchRefused.

    Raises:
        EngineGone: the engine does not answer.
        LaunchRefused, PlatformError: the engine refuses.
    """
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        knock(engine.url)
        yield
    except APIError as error:
        said = str(error.explanation or error)
        refusal = find_refusal(REFUSALS, said)
        kind = LaunchRefused if worker else PlatformError
        advice = refusal.advice if refusal else None
        raise kind(in_words(what, said, refusal, engine.product), worker=worker, advice=advice) from error
    except (DockerException, RequestException, OSError) as error:
        cause = system_error(error)
        raise EngineGone(
            f"{engine.product} does not answer at {engine.url}: {getattr(cause, 'strerror', None) or cause}.",
            worker=worker,
            advice=START_ENGINE,
        ) from error


def knock(url: str) -> tuple[int, int] | None:
    """Return the process and user id of the listener on a Unix socket; None for other addresses, or if not visible.

    Called before each request, as on a refused connection the client libraries would leave their socket open.

    Raises:
        OSError: nothing listens there.
    """
    if not url.startswith("unix://"):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(url.removeprefix("unix://"))
        pid, uid = linux.peer_of(probe)
    return (pid, uid) if pid else None


def system_error(error: BaseException) -> BaseException:
    """Return the OSError that the errors of libraries wrap; the error itself where there is none."""
    seen: list[BaseException] = []
    queue: list[Any] = [error]
    while queue:
        next_ = queue.pop(0)
        if isinstance(next_, BaseException) and next_ not in seen:
            if isinstance(next_, OSError) and next_.errno:
                return next_
            seen.append(next_)
            queue += [*next_.args, next_.__cause__, next_.__context__, getattr(next_, "reason", None)]
    return error
