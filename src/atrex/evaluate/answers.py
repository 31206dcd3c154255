"""What a worker may answer: every answer is read through one of these forms, so that none can break the judge."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atrex.errors import first_fault
from atrex.evaluate.failures import UnitFailure, raised
from atrex.scoring.records import Artifact, Stage

Us = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4000)]


class Answer(BaseModel):
    """An answer with nothing in it that the judge needs."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Loaded(Answer):
    import_seconds: Us
    collector_fault: Text | None


class Artifacts(Answer):
    artifacts: list[Artifact] = Field(max_length=10_000)
    missing: list[Text] = Field(max_length=10_000)


class Output(Answer):
    """One returned tensor as it came: `dtype` without torch's prefix, names of operands whose memory it shares."""

    name: Text
    dtype: Text
    shape: list[int] = Field(max_length=64)
    contiguous: bool
    device: Text
    overlaps: list[Text] = Field(max_length=1000)


class Forwarded(Answer):
    """A forward's outputs; `structure` is "none", "tensor", "dict" or "tuple"."""

    structure: Text
    outputs: list[Output] = Field(max_length=1000)


class Kernel(Answer):
    name: Text
    us: Us
    owner: Text


class Timed(Forwarded):
    us: Us
    launch_us: Us


class Adopted(Forwarded):
    kernels: list[Kernel] | None = Field(max_length=1_000_000)
    span_us: Us | None


class Hosted(Answer):
    host_us: list[Us] = Field(min_length=1, max_length=1000)


class Armed(Answer):
    unchanged: bool | None


Form = TypeVar("Form", bound=Answer)


def read(form: type[Form], answer: dict[str, Any], what: str) -> Form:
    """`answer` as `form`. Raises UnitFailure `exception` or `interface` if the worker says so, else `integrity`."""
    if "raised" in answer:
        raise UnitFailure(Stage.RUNTIME, "exception", f"{what}: {raised(answer)}")
    if "interface" in answer:
        raise UnitFailure(Stage.RUNTIME, "interface", f"{what}: {str(answer['interface'])[:500]}")
    try:
        return form.model_validate(answer)
    except ValidationError as error:
        why = f"{what}: the worker's answer is no {form.__name__}: {first_fault(error)}"
        raise UnitFailure(Stage.RUNTIME, "integrity", why) from None
