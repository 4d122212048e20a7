"""The REST interface itself: from HTTP to :class:`~muster.serve.engines.Engines` and back."""

from __future__ import annotations

import asyncio
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
from muster.serve.engines import Caller, Engines, Refused
from muster.serve.models import ENGINE_ID, Order, Refusal, WorkerFacts
from muster.serve.site import ENGINES_PATH, PROJECT_PATH

LARGEST_BODY = 4 << 20  # bytes
REFUSALS = {
    400: "The body cannot be read.",
    401: "The API key is wrong.",
    403: "The session is not the caller's.",
    404: "The caller has nothing of that name.",
    409: "It cannot be done here: nothing to run, no such script, more than there is.",
    413: "The body is too long.",
    422: "The request is not as described.",
    429: "There are too many workers.",
    503: "The platform cannot do it, or the disk is full.",
}

Result = TypeVar("Result")
Id = Annotated[str, Path(pattern=ENGINE_ID)]
BASIC = HTTPBasic(auto_error=False, description="The user is the API key; the password is empty.")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation may answer beside the ordinary, for its description."""
    return {status: {"model": Refusal, "description": REFUSALS[status]} for status in statuses}


router = APIRouter(responses=refusals(401, 422, 503))


async def authenticated(
    request: Request, credentials: Annotated[HTTPBasicCredentials | None, Depends(BASIC)]
) -> Caller:
    """Who asks. Raises HTTPException where nobody has that key."""
    caller = engines_of(request).authenticate(credentials.username) if credentials else None
    if caller is None:
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "The API key is wrong. It goes into the user of HTTP basic authentication.",
            headers={"WWW-Authenticate": "Basic"},
        )
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
    """All workers of a session, ended ones included, oldest first."""
    return await in_turn(request, lambda: engines_of(request).workers(caller, engine_id))


@router.delete(f"{ENGINES_PATH}/{{engine_id}}", status_code=HTTPStatus.NO_CONTENT, responses=refusals(403))
async def end_session(engine_id: Id, caller: Authenticated, request: Request) -> None:
    """End a session: its workers are stopped."""
    await in_turn(request, lambda: engines_of(request).end(caller, engine_id))


def engines_of(request: Request) -> Engines:
    """What the application serves."""
    engines: Engines = request.app.state.engines
    return engines


async def in_turn(request: Request, work: Callable[[], Result]) -> Result:
    """Do what may take its time in the one thread that is there for it."""
    return await asyncio.get_running_loop().run_in_executor(request.app.state.executor, work)


class Bounds:
    """Refuses a request whose body turns out to be longer than ``LARGEST_BODY``, or that outlasts the service."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and its body as far as it may go."""
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST_BODY:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {LARGEST_BODY >> 20} MiB."
                )
            return message

        try:
            await self._app(scope, receive_some, send)
        except asyncio.CancelledError:
            response = JSONResponse({"message": "The service is ending.", "engineId": ""}, 503)
            await response(scope, receive, send)


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """The answer to what cannot be done, in the platform's shape."""
    headers: Any = None
    engine_id = getattr(request.state, "engine_id", "")
    message = str(error)
    if isinstance(error, Refused):
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
    """The text without lone surrogates, which JSON may bring and UTF-8 cannot take."""
    return text.encode(errors="backslashreplace").decode()


def make_app(engines: Engines, executor: ThreadPoolExecutor) -> FastAPI:
    """The application.

    Args:
        engines: what it serves.
        executor: one thread, in which ``engines`` is called.
    """
    app = FastAPI(
        title="muster serve",
        version=__version__,
        description="The workbench's workers, over any Muster platform.",
        docs_url=None,  # pages that would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.engines = engines
    app.state.executor = executor
    app.include_router(router)
    app.add_middleware(Bounds)
    for kind in (Refused, RequestValidationError, AnyHTTPException, MusterError, OSError):
        app.add_exception_handler(kind, refuse)
    return app
