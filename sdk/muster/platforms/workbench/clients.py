"""Clients of the workbench's API: its own client library where the session has one, else REST."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from types import ModuleType
from typing import Any, TypeVar

from muster.errors import LaunchRefused, PlatformError, PlatformUnsupported
from muster.platforms.workbench.client import CONNECTIONS, WorkbenchClient
from muster.platforms.workbench.detection import LIBRARIES, REST_VARIABLES, find_library
from muster.runtime.extras import extra
from muster.text.arguments import Argument, ArgumentText

with extra("workbench"):
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import MaxRetryError, ProtocolError
    from urllib3.util import Retry

TIMEOUT = (5.0, 10.0)  # seconds for connecting, and for each read of an answer
LAUNCH_TIMEOUT = (5.0, 30.0)  # the same for a launch, which cannot be repeated
SERVER_ERROR = 500  # with this status or a higher one, a request may have been carried out all the same
EXCERPT = 200  # characters of an answer that an error shows

T = TypeVar("T")
TORN = (  # errors of an answer that broke off, or does not have the expected form
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    requests.exceptions.InvalidJSONError,
)

# Listing and stopping may always be repeated. A launch may be repeated only if it has certainly not begun: there was no
# connection, or the workbench answered 429 (too many requests).
SAFE = Retry(
    total=5,
    read=2,  # fewer, as each waits for the whole timeout
    allowed_methods=None,
    status_forcelist=(429, 500, 502, 503, 504),
    backoff_factor=0.5,
    backoff_jitter=0.5,
    backoff_max=10,
    retry_after_max=30,
    raise_on_status=False,
)
LAUNCH = SAFE.new(total=3, read=0, other=0, status_forcelist=(429,), respect_retry_after_header=False)


def find_client(environ: Mapping[str, str]) -> WorkbenchClient:
    """Return the client for a session with this environment.

    Raises:
        PlatformUnsupported: this is not a session of the workbench.
    """
    name = find_library()
    return LibraryClient(importlib.import_module(name)) if name else RestClient.of_session(environ)


class LibraryClient:
    """A client through the Python library that the workbench itself provides.

    Args:
        library: the module, with ``launch_workers``, ``list_workers`` and ``stop_workers``.
    """

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def launch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Launch one worker; see :class:`WorkbenchClient`."""
        with self._translated("launch_workers"):
            (worker,) = self._library.launch_workers(1, **request)
        return _launched(worker)

    def list(self) -> list[dict[str, Any]]:
        """Return the session's workers; see :class:`WorkbenchClient`."""
        with self._translated("list_workers"):
            return _checked(self._library.list_workers())

    def stop(self, worker_id: str) -> None:
        """Ask a worker to end; see :class:`WorkbenchClient`."""
        with self._translated("stop_workers"):
            answers = self._library.stop_workers(worker_id)
        for answer in answers or ():
            if isinstance(answer, requests.Response):
                _check_stopped(answer)

    @contextlib.contextmanager
    def _translated(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library may raise anything
            raise PlatformError(f"The workbench's {self._library.__name__}.{call} failed: {error!r}.") from error


class RestClient:
    """A client of the workbench's REST API.

    Args:
        project_url, engine_url: addresses of the project and of the session, as the workbench gives them.
        api_key: the session's key.
        master_id: the session's id.
    """

    def __init__(self, project_url: str, engine_url: str, api_key: str, master_id: str) -> None:
        self._workers = f"{engine_url.rstrip('/')}/workers"
        self._dashboards = f"{project_url.rstrip('/')}/dashboards"
        self._master_id = master_id
        self._launching = _session(api_key, LAUNCH)
        self._asking = _session(api_key, SAFE)

    @classmethod
    def of_session(cls, environ: Mapping[str, str]) -> RestClient:
        """Return the client for a session with this environment.

        Raises:
            PlatformUnsupported: the environment does not name a workbench.
        """
        missing = [name for name in REST_VARIABLES if not environ.get(name)]
        if missing:
            are = "are" if len(missing) > 1 else "is"
            raise PlatformUnsupported(
                f"This is no session of a workbench: {', '.join(missing)} {are} not set, and neither of "
                f"{' and '.join(LIBRARIES)} can be imported.",
                advice=ArgumentText(
                    "run in a session of the workbench, or ",
                    Argument("platform", "local"),
                    " for workers on this machine",
                ),
            )
        key, project, engine = (environ[name] for name in REST_VARIABLES)
        return cls(project, engine, key, environ.get("CDSW_MASTER_ID") or environ.get("CDSW_ENGINE_ID", ""))

    def launch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Launch one worker; see :class:`WorkbenchClient`."""
        with _translated():
            asked = {**request, "master_id": self._master_id}
            response = self._launching.post(self._dashboards, json=asked, timeout=LAUNCH_TIMEOUT)
            if response.ok:
                return _launched(response.json())
            raise _refusal(response, is_launch=True)

    def list(self) -> list[dict[str, Any]]:
        """Return the session's workers; see :class:`WorkbenchClient`."""
        return self._ask("GET", self._workers, _workers)

    def stop(self, worker_id: str) -> None:
        """Ask a worker to end; see :class:`WorkbenchClient`. One that the workbench does not know has ended."""
        self._ask("PUT", f"{self._dashboards}/{worker_id}/stop", _check_stopped)

    def _ask(self, method: str, url: str, read: Callable[[requests.Response], T]) -> T:
        """Send a request and return what ``read`` makes of the answer; retry where that is incomplete or malformed."""
        retries = SAFE
        while True:
            with _translated():
                try:
                    return read(self._asking.request(method, url, timeout=TIMEOUT))
                except TORN as error:
                    retries = retries.increment(method, url, error=ProtocolError(str(error)))
                retries.sleep()


def _session(api_key: str, retries: Retry) -> requests.Session:
    session = requests.Session()
    session.auth = (api_key, "")
    adapter = HTTPAdapter(pool_maxsize=CONNECTIONS, max_retries=retries)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session


def _launched(worker: Any) -> dict[str, Any]:
    """Return the answer to a launch if it is a worker; raise LaunchRefused or PlatformError otherwise."""
    if isinstance(worker, dict) and worker.get("id"):
        return worker
    if isinstance(worker, dict) and "message" in worker:
        raise LaunchRefused(str(worker["message"]))
    raise PlatformError(f"The workbench's answer makes no sense: {str(worker)[:EXCERPT]}")


def _workers(response: requests.Response) -> list[dict[str, Any]]:
    if not response.ok:
        raise _refusal(response)
    return _checked(response.json())


def _checked(found: Any) -> list[dict[str, Any]]:
    """Return an answer if it is a list of workers; raise InvalidJSONError otherwise."""
    if not isinstance(found, list) or not all(isinstance(worker, dict) and "id" in worker for worker in found):
        raise requests.exceptions.InvalidJSONError(f"no list of workers: {str(found)[:EXCERPT]}")
    return found


def _check_stopped(response: requests.Response) -> None:
    if not response.ok and response.status_code != HTTPStatus.NOT_FOUND:
        raise _refusal(response)


def _refusal(response: requests.Response, is_launch: bool = False) -> PlatformError:
    """Return the error for an unsuccessful answer: LaunchRefused only where nothing can have been launched."""
    said = f"HTTP {response.status_code} {response.reason}"
    try:
        message = dict(response.json())
    except (requests.exceptions.JSONDecodeError, TypeError, ValueError):
        message = {}
    kind = (
        LaunchRefused if is_launch and (response.status_code < SERVER_ERROR or "engineId" in message) else PlatformError
    )
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return kind(
            f"The workbench does not accept the key in CDSW_API_KEY ({said}).",
            advice="a key ends with its session, and may expire before: restart the session",
        )
    why = message.get("message") or response.text[:EXCERPT].strip() or "it does not say why"
    return kind(f"The workbench answers: {why} ({said}).")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate exceptions of requests into Muster's errors."""
    try:
        yield
    except (*TORN, MaxRetryError) as error:
        raise PlatformError(f"The workbench's answer cannot be read: {_innermost(error)}.") from error
    except requests.RequestException as error:
        raise PlatformError(
            f"The workbench does not answer: {_innermost(error)}.",
            advice="see whether the addresses in CDSW_ENGINE_URL and CDSW_PROJECT_URL can be reached from here",
        ) from error


def _innermost(error: Exception) -> str:
    """Return the message of the innermost error: those of requests wrap those of urllib3, which wrap others."""
    wrapped = [getattr(error, "reason", None), *error.args]
    inner = next((part for part in wrapped if isinstance(part, Exception)), None)
    return _innermost(inner) if inner else str(error).rstrip(".")
