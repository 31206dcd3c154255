"""What an agent has spent, and whether it may go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from atrex.agents.events import Asked, Cost, Event, Message, Model, ToolCall, Tools, Usage


@dataclass(frozen=True)
class Budget:
    """Of one problem: dollars, tokens in and out, seconds of wall time. None is no bound."""

    usd: float | None = None
    tokens: int | None = None
    seconds: float = 3600.0


@dataclass
class Account:
    """Sums over everything that an agent did for one problem; nothing told later replaces what was told before.

    `agent_keeps_usd`: the agent counts dollars itself, and ends at its budget of them. `service_tokens` is what the
    service told in `answers` of its own, whoever in the jail had asked; `refused` what was asked and not let through.
    """

    budget: Budget
    agent_keeps_usd: bool = False
    usage: Usage = field(default_factory=Usage)
    told: int = 0  # replies whose usage was told
    turns: int = 0
    tool_calls: int = 0
    tools: tuple[str, ...] | None = None
    models: list[str] = field(default_factory=list)
    answers: int = 0
    service_tokens: int = 0
    refused: set[str] = field(default_factory=set)
    _largest: int = 0  # tokens of one answer
    _without_cost: bool = False

    def add(self, event: Event) -> None:
        if isinstance(event, Usage):
            self.usage = self.usage + event
            self.told += 1
            self._without_cost |= event.cost_usd is None and event.tokens > 0
        elif isinstance(event, Cost):
            self.usage = self.usage + Usage(cost_usd=event.usd)
            self._without_cost = False
        elif isinstance(event, Message) and event.role == "agent":
            self.turns += 1
        elif isinstance(event, ToolCall):
            self.tool_calls += 1
        elif isinstance(event, Tools):
            self.tools = event.names
        elif isinstance(event, Asked):
            self._asked(event)
        elif isinstance(event, Model) and event.name not in self.models:
            self.models.append(event.name)

    def _asked(self, event: Asked) -> None:
        if not event.allowed:
            self.refused.add(f"{event.host}:{event.port}{event.path or ''}")
        if event.tokens is not None:
            self.answers += 1
            self.service_tokens += event.tokens
            self._largest = max(self._largest, event.tokens)

    @property
    def cost_usd(self) -> float | None:
        """What it cost, None where that is not known of every reply."""
        return None if self._without_cost else self.usage.cost_usd

    def over(self) -> str | None:
        """Which budget is spent, in one line; None while the agent may go on.

        The service is a reply ahead of what the agent tells; what it has answered beyond that was asked by another.
        A budget in dollars ends a problem as soon as a reply has no known cost: it could not be kept.
        """
        tokens = self.budget.tokens
        usd = None if self.agent_keeps_usd else self.budget.usd
        if tokens is not None and self.usage.tokens >= tokens:
            return f"{self.usage.tokens} tokens, of {tokens}"
        if tokens is not None and self.service_tokens >= tokens + self._largest > 0:
            return f"{self.service_tokens} tokens by the service's count, of {tokens}"
        if usd is not None and self._without_cost:
            return f"the model's price is not known, so ${usd:g} cannot be kept to; give --budget-tokens"
        return None if usd is None else self.spent()

    def spent(self) -> str | None:
        """Whether no dollars are left for another attempt, in one line, by what is known of the cost."""
        usd = self.budget.usd
        if usd is not None and (self.usage.cost_usd or 0.0) >= usd:
            return f"${self.usage.cost_usd:.4f}, of ${usd:g}"
        return None
