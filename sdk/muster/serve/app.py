"""The REST interface: the HTTP application over :class:`~muster.serve.engines.Engines`."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster import __version__
from muster.errors import JobError, MusterError
from muster.serve.engines import Caller, Engines, RequestRefused
from muster.serve.models import ENGINE_ID, ErrorBody, Order, WorkerFacts
from muster.serve.site import ENGINES_PATH, PROJECT_PATH

LARGEST_BODY = 4 << 20  # bytes
LARGEST_BODIES = 32 << 20  # bytes of all requests that are under way
LARGEST_OF_ONE = 16 << 20  # bytes of one caller's requests that are under way, which leaves room for others
DESCRIPTION = "/openapi.json"  # needs no key
WRONG_KEY = JSONResponse(
    {"message": "The API key is wrong. It goes into the user of HTTP basic authentication.", "engineId": ""},
    HTTPStatus.UNAUTHORIZED,
    headers={"WWW-Authenticate": "Basic"},
)
REFUSALS = {
    400: "The body cannot be read.",
    401: "The API key is wrong.",
    403: "The session is not the caller's.",
    404: "The caller has nothing of that name.",
    409: "It cannot be done here: nothing to run, no such script, more than there is.",
    413: "The body is too long.",
    422: "The request is not as described.",
    429: "There are too many workers.",
    503: "The platform cannot do it, the disk is full, or too much is being sent at once.",
}

Result = TypeVar("Result")
Id = Annotated[str, Path(pattern=ENGINE_ID)]
BASIC = HTTPBasic(auto_error=False, description="The user is the API key; the password is empty.")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of the refusals that an operation may answer with."""
    return {status: {"model": ErrorBody, "description": REFUSALS[status]} for status in statuses}


router = APIRouter(responses=refusals(401, 422, 503))


async def authenticated(
    request: Request, credentials: Annotated[HTTPBasicCredentials | None, Depends(BASIC)]
) -> Caller:
    """Return the caller that :class:`RequestBounds` has found. The credentials are only for the API's description."""
    caller: Caller = request.state.caller
    return caller


Authenticated = Annotated[Caller, Depends(authenticated)]


@router.post(f"{PROJECT_PATH}/dashboards", response_model=WorkerFacts, responses=refusals(400, 403, 409, 413, 429))
async def launch_worker(order: Order, caller: Authenticated, request: Request) -> Any:
    """Launch one worker."""
    address = request.client.host if request.client else ""
    request.state.engine_id = order.master_id
    return await in_turn(request, lambda: engines_of(request).launch(caller, order, address))


@router.put(f"{PROJECT_PATH}/dashboards/{{worker_id}}/stop", response_model=WorkerFacts, responses=refusals(404))
async def stop_worker(worker_id: Id, caller: Authenticated, request: Request) -> Any:
    """Ask a worker to end."""
    return await in_turn(request, lambda: engines_of(request).stop(caller, worker_id))


@router.get(f"{ENGINES_PATH}/{{engine_id}}/workers", response_model=list[WorkerFacts], responses=refusals(403))
async def list_workers(engine_id: Id, caller: Authenticated, request: Request) -> Any:
    """List all workers of a session, including those that have ended, oldest first."""
    return await in_turn(request, lambda: engines_of(request).workers(caller, engine_id))


@router.delete(f"{ENGINES_PATH}/{{engine_id}}", status_code=HTTPStatus.NO_CONTENT, responses=refusals(403))
async def end_session(engine_id: Id, caller: Authenticated, request: Request) -> None:
    """End a session, and stop its workers."""
    await in_turn(request, lambda: engines_of(request).end(caller, engine_id))


def engines_of(request: Request) -> Engines:
    """Return the engines that the application serves."""
    engines: Engines = request.app.state.engines
    return engines


async def in_turn(request: Request, work: Callable[[], Result]) -> Result:
    """Call ``work``, which may take long, in the single thread for such calls."""
    return await asyncio.get_running_loop().run_in_executor(request.app.state.executor, work)


class RequestBounds:
    """Middleware that checks API keys and bounds the sizes of requests.

    It refuses a request without a key before any of its body is read; one whose body is longer than ``LARGEST_BODY``,
    or too long together with those of other requests; and one that is unanswered when the service ends.

    Args:
        app: the application that gets the other requests.
        engines: the engines, which know the keys.
    """

    def __init__(self, app: ASGIApp, engines: Engines) -> None:
        self._app = app
        self._engines = engines
        self._held = 0
        self._held_of: Counter[Caller | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, with its body up to the limits."""
        if scope["type"] != "http":
            return
        caller: Caller | None = None
        if scope["path"] != DESCRIPTION:
            caller = self._engines.authenticate(api_key(scope))
            if caller is None:
                await WRONG_KEY(scope, receive, send)
                return
            scope["state"]["caller"] = caller
            if "connection" in scope["state"]:
                scope["state"]["connection"].caller = caller
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            part = len(message.get("body", b""))
            size += part
            self._held += part
            self._held_of[caller] += part
            if size > LARGEST_BODY:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {LARGEST_BODY >> 20} MiB."
                )
            if self._held > LARGEST_BODIES or self._held_of[caller] > LARGEST_OF_ONE:
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "Too much is being sent at once. Try again.")
            return message

        try:
            await self._app(scope, receive_some, send)
        except asyncio.CancelledError:
            response = JSONResponse({"message": "The service is ending.", "engineId": ""}, 503)
            await response(scope, receive, send)
        finally:
            self._held -= size
            self._held_of[caller] -= size
            if not self._held_of[caller]:
                del self._held_of[caller]


def api_key(scope: Scope) -> str:
    """Return the user of HTTP basic authentication, which is the API key; empty where there is none."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, encoded = given.partition(b" ")
    try:
        return base64.b64decode(encoded).partition(b":")[0].decode() if scheme.lower() == b"basic" else ""
    except ValueError:
        return ""


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Return the answer to a request that failed, in the workbench's form."""
    headers: Any = None
    engine_id = getattr(request.state, "engine_id", "")
    message = str(error)
    if isinstance(error, RequestRefused):
        status = error.status
    elif isinstance(error, AnyHTTPException):
        status, message, headers = HTTPStatus(error.status_code), str(error.detail), error.headers
    elif isinstance(error, RequestValidationError):
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        message = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        engine_id = error.body.get("master_id", "") if isinstance(error.body, dict) else ""
    else:
        status = HTTPStatus.CONFLICT if isinstance(error, JobError) else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({"message": encodable(message), "engineId": encodable(str(engine_id))}, status, headers)


def encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: JSON can hold them, but UTF-8 cannot encode them."""
    return text.encode(errors="backslashreplace").decode()


def make_app(engines: Engines, executor: ThreadPoolExecutor) -> FastAPI:
    """Return the application.

    Args:
        engines: the engines that it serves.
        executor: an executor with one thread, in which ``engines`` is called.
    """
    app = FastAPI(
        title="muster serve",
        version=__version__,
        description="The workbench's workers, over any Muster platform.",
        openapi_url=DESCRIPTION,
        docs_url=None,  # these pages would load scripts from other sites
        redoc_url=None,
    )
    app.state.engines = engines
    app.state.executor = executor
    app.include_router(router)
    app.add_middleware(RequestBounds, engines=engines)
    for kind in (RequestRefused, RequestValidationError, AnyHTTPException, MusterError, OSError):
        app.add_exception_handler(kind, refuse)
    return app
