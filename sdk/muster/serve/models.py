"""The models of requests and answers, with the workbench's field names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

ENGINE_ID = r"^[A-Za-z0-9_-]{1,64}$"

EngineId = Annotated[str, Field(pattern=ENGINE_ID)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]
Text = Annotated[str, Field(pattern=r"^[^\u0000]*$")]


def whole(value: Any) -> Any:
    """Return a float that is a whole number as an integer, as JSON has one type for both; other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Order(BaseModel):
    """One worker to launch. Unknown fields, which a newer client may send, are ignored."""

    model_config = ConfigDict(strict=True)

    master_id: EngineId = Field(description="The session that the worker belongs to: its engine id.")
    kernel: Literal["python3"] = "python3"
    cpu: float = Field(gt=0, le=1e6, description="Cores.")
    memory: float = Field(gt=0, le=1e6, description="Memory, in GB.")
    nvidia_gpu: Annotated[int, BeforeValidator(whole)] = Field(default=0, ge=0, le=1000, description="GPUs.")
    script: Text = Field(default="", max_length=4096, description="Path in the project. It wins over `code`.")
    code: Text = Field(default="", description="Python; a line that begins with `!` is a shell command.")
    env: dict[VariableName, Text | int | float] = Field(
        default_factory=dict, description="Environment variables.", json_schema_extra={"additionalProperties": False}
    )


class WorkerFacts(BaseModel):
    """A worker. Times are ISO 8601."""

    id: str
    status: Literal["scheduling", "starting", "running", "stopping", "succeeded", "failed", "stopped", "timedout"]
    created_at: str | None
    running_at: str | None
    finished_at: str | None
    duration: float = Field(description="Seconds that it has run.")
    ip_address: str = Field(description="`unknown` until it runs.")
    app_url: str | None
    reason: str | None = Field(description="Why it failed.")
    log: str = Field(description="The file, on the service's machine, that takes what it prints.")


class ErrorBody(BaseModel):
    """The reason why something was not done."""

    message: str
    engineId: str = Field(description="The session that it was asked for, where that is known.")
