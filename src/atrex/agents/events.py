"""What an agent is seen doing: a transcript is a list of these, the same whatever the agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Usage(_Event):
    """Tokens that one reply of a model took, of which `cached` were read from a cache, and its cost where it is known.

    `input` counts every token that went in, the cached ones too; `output` every one that came out, reasoning too.
    """

    kind: Literal["usage"] = "usage"
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [each.cost_usd for each in (self, other) if each.cost_usd is not None]
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            reasoning=self.reasoning + other.reasoning,
            cost_usd=sum(costs) if costs else None,
        )

    @property
    def tokens(self) -> int:
        return self.input + self.output


class Cost(_Event):
    """Dollars for the replies since the last of these, by the agent's own count: for one that tells no cost of each."""

    kind: Literal["cost"] = "cost"
    usd: float


class Message(_Event):
    """Something said, by the supervisor or by the agent. One message of the agent's is a turn."""

    kind: Literal["message"] = "message"
    role: Literal["supervisor", "agent", "reasoning"]
    text: str


class ToolCall(_Event):
    """A tool that the agent uses, by the name that it has there."""

    kind: Literal["tool_call"] = "tool_call"
    id: str
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolResult(_Event):
    """What a tool answered."""

    kind: Literal["tool_result"] = "tool_result"
    id: str
    text: str
    failed: bool = False


class Tools(_Event):
    """The tools that the agent says it has: the effective list, whatever was asked for."""

    kind: Literal["tools"] = "tools"
    names: tuple[str, ...]


class Model(_Event):
    """The model that answers, as the provider names it."""

    kind: Literal["model"] = "model"
    name: str


class Output(_Event):
    """A line that the agent printed and that is none of the above."""

    kind: Literal["output"] = "output"
    stream: Literal["out", "err"]
    text: str


class Asked(_Event):
    """The agent's network: a host that it wanted to reach, and whether it was let through.

    Of a request to the model's service also its `path`, the `model` that was asked, the `status` of the answer, and the
    `tokens` in and out that it tells of.
    """

    kind: Literal["asked"] = "asked"
    host: str
    port: int
    allowed: bool
    sent: int = 0
    received: int = 0
    error: str | None = None
    path: str | None = None
    model: str | None = None
    status: int | None = None
    tokens: int | None = None


class Ended(_Event):
    """The last event. `done`: the agent says so; `budget`, `timeout`, `error`: it was ended, or failed.

    A `provider` error (the model's service was down, or refused for its rate) says nothing about the agent. Where
    `again` is false it makes no sense to ask once more: a key or a model that the service does not know.
    """

    kind: Literal["ended"] = "ended"
    how: Literal["done", "budget", "timeout", "error", "provider"]
    reason: str | None = None
    again: bool = True


Event = Annotated[
    Usage | Cost | Message | ToolCall | ToolResult | Tools | Model | Output | Asked | Ended, Field(discriminator="kind")
]
