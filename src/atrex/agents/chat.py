"""One reply of a model, from any provider that LiteLLM knows or a service that speaks OpenAI's protocol."""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from atrex.agents.events import Usage
from atrex.errors import UserError

PACKAGE, EXTRA = "litellm", "pip install 'atrex[agents]'"
SILENCE = 600.0  # seconds in which a service may say nothing
_REASON = 300  # characters of a service's message
_KEYS = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_SHORTEST = 8  # characters of a key; what is shorter is a placeholder, or a word that stands everywhere
_NOT_OURS = {401: "the key was refused", 402: "the account is not paid for", 403: "access was refused"}
_OF_THE_REQUEST = (400, 413, 422)


class Failure(Exception):
    """No reply. `again`: asking again may help; `provider`: it will not; `error`: what was asked cannot be answered.

    `wait` is how many seconds the service wants to be left alone, where it said so.
    """

    def __init__(self, how: Literal["again", "provider", "error"], reason: str, wait: float | None = None):
        super().__init__(reason)
        self.how, self.reason, self.wait = how, reason, wait


@dataclass(frozen=True)
class Call:
    """A tool call as the model wrote it; `arguments` is meant to be a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """`message` is what goes back into the conversation. `usage` is None when the service told none."""

    model: str
    text: str
    reasoning: str
    calls: list[Call]
    finish: str
    usage: Usage | None
    message: dict[str, Any] = field(repr=False)


def keys() -> tuple[str, ...]:
    """Every value of the environment that its name says is a key, a token or a password."""
    return tuple(value for name, value in os.environ.items() if _KEYS.search(name) and len(value) >= _SHORTEST)


def installed() -> bool:
    return find_spec(PACKAGE) is not None


def price(model: str, usage: Usage) -> float | None:
    """Dollars of a reply by LiteLLM's table: None for a model that it does not list, or where it is not installed."""
    if not installed():
        return None
    library = _library()
    cached = {"cached_tokens": usage.cached}
    told = library.Usage(prompt_tokens=usage.input, completion_tokens=usage.output, prompt_tokens_details=cached)
    return _listed(library, model, told)


def _listed(library: Any, model: str, told: Any) -> float | None:
    try:
        return sum(library.cost_per_token(model=model, usage_object=told)) or None
    except Exception:  # it says so with several classes, of which not all are public
        return None


class Chat:
    """A model to talk to. Raises UserError for one that cannot be asked: no provider, or no key in the environment."""

    def __init__(self, model: str, base_url: str | None):
        if base_url and not re.match(r"https?://[^/]", base_url):
            raise UserError(f"--base-url {base_url}: expected an address such as http://localhost:8000/v1")
        self._litellm = _library()
        self._base_url = base_url
        self.model = self._named(model, base_url)
        missing = self._litellm.validate_environment(self.model)["missing_keys"]
        self._key = None
        if base_url and missing:
            self._key = "none"  # a service of one's own may want none, the client libraries want one
        elif missing and all(name.endswith("_API_KEY") for name in missing):
            raise UserError(f"--agent api:{model}: no key; set {' or '.join(missing)} in the environment")

    def _named(self, model: str, base_url: str | None) -> str:
        """PROVIDER/MODEL, or a name that means one provider. A service of one's own speaks OpenAI's protocol."""
        try:
            provider = self._litellm.get_llm_provider(model)[1]
        except Exception:
            provider = None
        if base_url and not (provider and model.startswith(f"{provider}/")):
            return f"openai/{model}"
        if provider is None:
            raise UserError(
                f"--agent api:{model}: no provider is known for it; expected PROVIDER/MODEL, such as openai/{model}, "
                "or --base-url"
            )
        return model

    def ask(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], stop: threading.Event) -> Reply:
        """The model's reply to a conversation. Raises Failure, also soon after `stop` is set."""
        try:
            stream = self._litellm.completion(
                model=self.model,
                messages=copy.deepcopy(messages),  # some providers' forms are made in place
                tools=tools,
                stream=True,
                stream_options={"include_usage": True},
                timeout=SILENCE,
                num_retries=0,
                max_retries=0,
                base_url=self._base_url,
                api_key=self._key,
            )
            chunks = [chunk for chunk in stream if not _left(stop)]
            whole = self._litellm.stream_chunk_builder(chunks)
        except Failure:
            raise
        except Exception as error:  # LiteLLM raises its own, its clients' and, on nonsense, any other
            raise self._failure(error) from None
        # Of the stream's own pieces: those that it hands out hold a usage that LiteLLM estimates where none was told.
        told = [piece.usage for piece in stream.chunks if getattr(piece, "usage", None) is not None]
        return self._reply(whole, told)

    def _reply(self, whole: Any, told: list[Any]) -> Reply:
        if whole is None or not whole.choices:
            raise Failure("again", "the service sent an empty reply")
        choice = whole.choices[0]
        message = plain(choice.message.model_dump(exclude_none=True))
        calls = [
            Call(each.get("id") or "", each["function"].get("name") or "", each["function"].get("arguments") or "")
            for each in message.get("tool_calls") or ()
        ]
        text, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
        if not (text or reasoning or calls or told):
            raise Failure("again", "the service sent an empty reply")
        usage = self._usage(whole.usage, told) if told else None
        return Reply(plain(whole.model or self.model), text, reasoning, calls, choice.finish_reason, usage, message)

    def _usage(self, summed: Any, told: list[Any]) -> Usage:
        """LiteLLM adds up the parts, and estimates reasoning where none was told: that is left out."""
        reasoning = max(_detail(each, "completion_tokens_details", "reasoning_tokens") for each in told)
        return Usage(
            input=summed.prompt_tokens or 0,
            output=summed.completion_tokens or 0,
            cached=_detail(summed, "prompt_tokens_details", "cached_tokens"),
            reasoning=reasoning,
            cost_usd=self._cost(summed),
        )

    def _cost(self, usage: Any) -> float | None:
        """By the providers' own prices: none is known for a service of one's own."""
        return None if self._base_url else _listed(self._litellm, self.model, usage)

    def _failure(self, error: Exception) -> Failure:
        known, status = self._litellm.exceptions, getattr(error, "status_code", None)
        said = (plain(str(error)).rsplit("Exception - ", 1)[-1].strip().splitlines() or [""])[0][:_REASON]
        if isinstance(error, known.ContextWindowExceededError):
            return Failure("error", f"the conversation is longer than the model takes: {said}")
        if isinstance(error, known.ContentPolicyViolationError):
            return Failure("error", f"the provider refuses the content: {said}")
        if status in _NOT_OURS:  # what is said along may quote the key
            return Failure("provider", f"{_NOT_OURS[status]} (status {status})")
        if status == 404:
            return Failure("provider", f"no such model or address (status 404): {said}")
        if status in _OF_THE_REQUEST:
            return Failure("error", f"the request was refused (status {status}): {said}")
        what = f"status {status}" if status else type(error).__name__
        return Failure("again", f"{what}: {said}", _wait(error))


def _left(stop: threading.Event) -> bool:
    if stop.is_set():
        raise Failure("again", "the reply was not waited for")
    return False


def _library() -> Any:
    """LiteLLM, made quiet. It takes seconds to load, so only a run that talks to a model does."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # prices of the installed version, not of today
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")  # no .env file of the current folder
    try:
        import litellm
    except ImportError as error:
        raise UserError(f"--agent api: {PACKAGE} cannot be loaded ({error}): {EXTRA}") from None
    litellm.suppress_debug_info = True
    litellm.disable_streaming_logging = True  # halves what a piece of a reply costs here
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # a model that repeats itself is no failure of the service
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return litellm


def _detail(usage: Any, part: str, name: str) -> int:
    return getattr(getattr(usage, part, None), name, None) or 0


def _wait(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers.get("retry-after")))
    except (TypeError, ValueError):
        return None


def plain(value: Any) -> Any:
    """With characters that UTF-8 has no form for replaced: a model can write half of a pair as JSON."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value
