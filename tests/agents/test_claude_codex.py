"""The real programs in a jail, against local servers with scripted turns: what is recorded, kept, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import atrex
from atrex.agents.jail import PLACEHOLDER
from atrex.cli.main import app
from atrex.generate.records import load_records
from atrex.generate.solve import Solver
from atrex.generate.transcript import HIDDEN, read
from tests.agents.servers import Anthropic, OpenAI, Refuse, Say, Scripted, Think, Turn, Use

pytestmark = pytest.mark.slow
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atrex-test" / "agents"
PACKAGES = ("@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.171.0")
KEY = "sk-placeholder-0123456789"
KERNEL = "class Model:\n    pass\n"


@dataclass(frozen=True)
class Provider:
    """One agent, the server that it speaks to, and how its model uses the tools."""

    agent: str
    server: type[Scripted]
    base: str
    key: str
    model: str
    tools: list[str]
    read: Callable[[Path], Use]
    write: Callable[[Path, str], Use]
    shell: Callable[[str], Use]
    rate: Refuse


def _patch(path: Path, text: str) -> Use:
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return Use("apply_patch", f"*** Begin Patch\n*** Add File: {path.name}\n{lines}*** End Patch\n")


CLAUDE = Provider(
    agent="claude",
    server=Anthropic,
    base="",
    key="ANTHROPIC_API_KEY",
    model="claude-sonnet-4-5",
    tools=["Bash", "Edit", "Glob", "Grep", "Read", "Write"],
    read=lambda path: Use("Read", {"file_path": str(path)}),
    write=lambda path, text: Use("Write", {"file_path": str(path), "content": text}),
    shell=lambda command: Use("Bash", {"command": command, "description": "look"}),
    rate=Refuse(429, "rate_limit_error", "slow down", {"retry-after": "1"}),
)
CODEX = Provider(
    agent="codex",
    server=OpenAI,
    base="/v1",
    key="OPENAI_API_KEY",
    model="gpt-5.5",
    tools=["apply_patch", "exec_command", "write_stdin"],
    read=lambda path: Use("exec_command", {"cmd": f"cat {path}"}),
    write=_patch,
    shell=lambda command: Use("exec_command", {"cmd": command, "yield_time_ms": 30_000}),
    rate=Refuse(429, "rate_limit_exceeded", "slow down", {"retry-after": "1"}),
)
DONE = Turn((Say("The kernel is done."),), fresh=5, cached=200, output=5)


@pytest.fixture(scope="session")
def programs():
    """Both programs, installed once from the npm registry: the folder of their commands."""
    folder = CACHE / "-".join(package.rsplit("@", 1)[1] for package in PACKAGES)
    if not (folder / "installed").exists():
        if shutil.which("npm") is None or shutil.which("node") is None:
            pytest.skip("needs Node.js and npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *PACKAGES]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=200, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"needs the npm registry: {(error.stderr or str(error)).strip().splitlines()[-1]}")
        (folder / "installed").touch()
    return folder / "node_modules" / ".bin"


@pytest.fixture
def generate(programs, tmp_path, monkeypatch):
    """Runs `atrex generate` with an agent whose model says what is written down: (folder, record)."""

    def run(provider: Provider, server: Scripted, *more: str, base_url: bool = True):
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv(provider.key, KEY)
        out = tmp_path / "out"
        given = ["generate", "--agent", provider.agent, "--dsl", "cpp", "--problem", "rms_norm", "--out", str(out)]
        given += ["--base-url", server.url + provider.base] if base_url else []
        model = [] if "--model" in more else ["--model", provider.model]
        result = CliRunner().invoke(app, [*given, *model, *more], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (record,) = load_records(out)
        return out, record

    return run


@pytest.fixture
def workspace(tmp_path):
    return tmp_path.resolve() / "out" / "workspaces" / "rms_norm-0" / "workspace"


@pytest.fixture(params=[CLAUDE, CODEX], ids=lambda provider: provider.agent)
def provider(request):
    return request.param


def _events(out: Path, kind: str) -> list:
    return [event for _, event in read(out / "transcripts" / "rms_norm-0.jsonl") if event.kind == kind]


def _results(out: Path) -> str:
    return "\n".join(event.text for event in _events(out, "tool_result"))


def test_it_reads_writes_and_says_that_it_is_done(provider, generate, workspace):
    turns = [
        Turn((Say("I read first."), provider.read(workspace / "reference.py")), fresh=100, cached=50, output=20),
        Turn((provider.write(workspace / "candidate.py", KERNEL),), fresh=10, cached=150, output=30),
        DONE,
    ]
    with provider.server(turns) as server:
        out, record = generate(provider, server)
    assert (out / "sample-0" / "rms_norm.py").read_text() == KERNEL and record.ended == "done"
    usage = record.usage
    assert (usage.input, usage.cached, usage.output) == (100 + 50 + 10 + 150 + 5 + 200, 400, 55)
    assert record.service_tokens == usage.tokens
    assert (record.turns, record.tool_calls, record.models) == (3, 2, [provider.model])
    assert record.tools == provider.tools == server.tools()
    assert "class Model(nn.Module)" in _results(out)
    assert [event.text for event in _events(out, "message") if event.role == "agent" and event.text] == [
        "I read first.", "The kernel is done.",
    ]  # fmt: skip


def test_it_is_given_the_task_and_nothing_of_a_user(provider, generate, monkeypatch, tmp_path):
    home = tmp_path / "users-home"
    for name in (".claude/CLAUDE.md", ".codex/AGENTS.md"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("REMEMBER-THIS")
    monkeypatch.setenv("HOME", str(home))
    with provider.server([DONE]) as server:
        generate(provider, server)
    sent = json.dumps(server.requests)
    assert "Write a cpp kernel: rms_norm" in sent and "REMEMBER-THIS" not in sent
    assert server.other == []


LOOK = "env; cat /proc/self/environ /proc/$PPID/environ /proc/*/environ /proc/*/cmdline; cat ~/*/config.toml; true"


def test_the_key_reaches_the_service_and_nothing_of_the_jail(provider, generate, workspace):
    """Looked for by a command within, on the disk while it works, and in what is kept; nothing had to be struck out."""
    found = []

    def look(_):
        found.append([path for path in workspace.parent.rglob("*") if path.is_file()])
        found.append([path for path in found[0] if KEY.encode() in path.read_bytes()])
        return Turn((provider.shell(LOOK),))

    with provider.server([look, DONE]) as server:
        out, record = generate(provider, server)
    assert set(server.keys) <= {KEY, f"Bearer {KEY}"} and server.keys
    assert found[0] and found[1] == []
    assert "HTTPS_PROXY" in _results(out) and PLACEHOLDER in _results(out)
    kept = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert not [data for data in kept if KEY.encode() in data or HIDDEN.encode() in data]
    assert KEY not in json.dumps(server.requests) and record.ended == "done"


def test_what_it_asks_of_the_service_is_noted_and_nothing_else(provider, generate):
    with provider.server([DONE]) as server:
        out, record = generate(provider, server)
    asked = _events(out, "asked")
    assert {event.path for event in asked} == {server.path} and {event.status for event in asked} == {200}
    assert provider.model in {event.model for event in asked} and all(event.sent and event.received for event in asked)
    assert record.refused_hosts == []


def test_its_own_service_is_asked_in_the_same_way(provider, generate, monkeypatch):
    """As users call it, without --base-url: the programs do more where they believe to speak to their own service."""
    with provider.server([Turn((provider.shell("true"),)), DONE]) as server:
        monkeypatch.setattr(import_module(f"atrex.agents.{provider.agent}"), "_API", server.url + provider.base)
        _, record = generate(provider, server, base_url=False)
    assert record.ended == "done" and record.tools == provider.tools == server.tools()
    assert record.refused_hosts == [] and server.other == [] and len(server.requests) == 2
    assert record.cost_usd > 0


def _asking(provider: Provider, body: str) -> Use:
    """A command that asks the service by itself, and prints what it answers."""
    url = f"http://127.0.0.1:3128{provider.server.path}"
    return provider.shell(f"curl -s --noproxy '*' -H 'Content-Type: application/json' -d '{body}' {url}")


def test_a_web_search_that_a_command_asks_for_is_refused(provider, generate):
    """Its tools are off, but a command could ask the service for them by itself."""
    turns = [Turn((_asking(provider, '{"model": "m", "tools": [{"type": "web_search"}]}'),)), DONE]
    with provider.server(turns) as server:
        out, record = generate(provider, server)
    assert "off under --policy default: web_search" in _results(out) and len(server.requests) == 2
    assert len(record.refused_hosts) == 1 and record.refused_hosts[0].endswith(server.path)


def test_a_reply_that_a_command_asks_for_is_counted_by_the_supervisor(provider, generate):
    body = '{"model": "another", "tools": [{"name": "t", "type": "custom"}]}'
    aside = Turn((Say("aside"),), fresh=4000, output=400)
    with provider.server([Turn((_asking(provider, body),), fresh=50, output=5), aside, DONE]) as server:
        out, record = generate(provider, server)
    assert record.usage.tokens == 50 + 5 + 5 + 200 + 5
    assert record.service_tokens == record.usage.tokens + 4400
    assert "another" in {event.model for event in _events(out, "asked")}


def test_replies_that_a_command_asks_for_are_within_the_budget(provider, generate):
    body = '{"model": "another", "tools": [{"name": "t", "type": "custom"}]}'
    first, aside = Turn((_asking(provider, body),), fresh=50, output=5), Turn((Say("aside"),), fresh=4000, output=400)
    with provider.server([first, aside, first, aside, first, aside, DONE]) as server:
        _, record = generate(provider, server, "--budget-tokens", "4000")
    assert record.ended == "budget" and "by the service's count" in record.reason and len(server.requests) <= 6


def test_another_host_is_refused_and_noted(provider, generate):
    code = "import urllib.request as r; r.urlopen('http://example.com/', timeout=9)"
    turns = [Turn((provider.shell(f'python -c "{code}"'),)), DONE]
    with provider.server(turns) as server:
        out, record = generate(provider, server)
    assert record.refused_hosts == ["example.com:80"] and "403" in _results(out)
    assert [event.host for event in _events(out, "asked") if not event.allowed] == ["example.com"]


def test_its_shell_sees_nothing_of_the_suite(provider, generate):
    secret = Path(atrex.__file__).resolve().parent / "suite" / "rms_norm" / "metadata.json"
    with provider.server([Turn((provider.shell(f"cat {secret}; ls {secret.parent}"),)), DONE]) as server:
        out, record = generate(provider, server)
    assert _results(out).count("Permission denied") == 2 and "call_count" not in json.dumps(server.requests)
    assert record.confinement["unconfined"] == []


def test_a_rate_limit_is_waited_for(provider, generate):
    with provider.server([provider.rate, DONE]) as server:
        _, record = generate(provider, server)
    assert record.ended == "done" and len(server.requests) == 2 and record.usage.output == 5


def test_a_refused_key_is_the_providers(provider, generate, monkeypatch):
    monkeypatch.setattr(Solver.__init__, "__defaults__", ((),))  # not asked again
    with provider.server([Refuse(403, "permission_error", "not with this key")]) as server:
        _, record = generate(provider, server)
    assert record.ended == "provider" and "not with this key" in record.reason and record.usage is None


def test_a_request_that_cannot_be_is_its_own_failure(provider, generate):
    with provider.server([Refuse(400, "invalid_request_error", "that is no request")]) as server:
        _, record = generate(provider, server)
    assert record.ended == "error" and "that is no request" in record.reason


def test_a_budget_in_tokens_ends_it_in_flight(provider, generate):
    step = Turn((provider.shell("true"),), fresh=1000, output=10)
    with provider.server([step]) as server:
        _, record = generate(provider, server, "--budget-tokens", "2500")
    assert record.ended == "budget" and record.usage.tokens in range(3030, 5000) and len(server.requests) <= 6


def test_its_time_ends_a_command_that_hangs(provider, generate):
    with provider.server([Turn((provider.shell("sleep 500"),))]) as server:
        _, record = generate(provider, server, "--timeout", "0.25")
    assert record.ended == "timeout" and record.usage.tokens == 110 and record.seconds < 60


def test_time_spent_waiting_for_the_service_is_the_providers(provider, generate):
    with provider.server([Refuse(503, "overloaded_error", "later")]) as server:
        _, record = generate(provider, server, "--timeout", "0.2")
    assert record.ended == "provider" and "waited for the service" in record.reason


def test_reasoning_is_kept_apart(provider, generate):
    turn = Turn((Think("Rows are short."), Say("Done.")), output=30, reasoning=20)
    with provider.server([turn]) as server:
        out, record = generate(provider, server)
    assert [event.text for event in _events(out, "message") if event.role == "reasoning"] == ["Rows are short."]
    assert record.usage.output == 30 and record.turns == 1


def test_extended_adds_the_web_and_other_agents(provider, generate):
    with provider.server([DONE]) as server:
        _, record = generate(provider, server, "--policy", "extended")
    assert record.ended == "done" and set(provider.tools) < set(record.tools)
    assert [name for name in record.tools if "web" in name.lower()]


def test_a_service_behind_tls_is_reached(provider, generate, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    authority, certificate = _certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", authority)
    with provider.server([DONE], certificate) as server:
        _, record = generate(provider, server)
    assert record.ended == "done" and record.refused_hosts == []


def _certificates(folder: Path) -> tuple[str, tuple[str, str]]:
    """(an authority's certificate, (certificate, key) of "localhost")."""
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for command in (
        f"{new} -x509 -subj /CN=authority -days 2 -keyout authority.key -out authority.pem",
        f"{new} -subj /CN=localhost -keyout server.key -out server.csr",
        "openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 "
        "-extfile names -out server.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return str(folder / "authority.pem"), (str(folder / "server.pem"), str(folder / "server.key"))


# -- one of the two ----------------------------------------------------------------------------------------------------


def test_claude_counts_dollars_itself(generate):
    with Anthropic([DONE]) as server:
        _, record = generate(CLAUDE, server)
    assert record.cost_usd == pytest.approx((5 * 3 + 200 * 0.3 + 5 * 15) / 1e6)  # $3, $0.30 and $15 a million tokens


def test_claude_ends_at_its_dollars(generate):
    step = Turn((CLAUDE.shell("true"),), fresh=100_000, output=10)
    with Anthropic([step]) as server:
        _, record = generate(CLAUDE, server, "--budget-usd", "0.5")
    assert record.ended == "budget" and 0.5 <= record.cost_usd < 1.0 and len(server.requests) == 2


def test_what_claudes_sub_agents_take_counts(generate):
    task = {"description": "look", "prompt": "Look around.", "subagent_type": "general-purpose"}
    turns = [
        Turn((Use("Task", task),), fresh=100, output=10),
        Turn((Say("I looked around."),), fresh=1000, output=100),
        DONE,
    ]
    with Anthropic(turns) as server:
        out, record = generate(CLAUDE, server, "--policy", "extended")
    assert (record.usage.input, record.usage.output) == (100 + 1000 + 5 + 200, 10 + 100 + 5)
    assert "I looked around." in _results(out)


def test_codex_knows_no_prices_of_another_service(generate):
    with OpenAI([DONE]) as server:
        _, record = generate(CODEX, server, "--budget-usd", "0.5")
    assert record.ended == "budget" and "give --budget-tokens" in record.reason and record.cost_usd is None


def test_codex_goes_on_with_its_session_after_a_rate_limit(generate, workspace):
    first = Turn((CODEX.write(workspace / "candidate.py", KERNEL),), fresh=100, output=20)
    again = Turn((CODEX.shell("cat candidate.py"),), fresh=30, output=3)
    with OpenAI([first, Refuse(429, "rate_limit_exceeded", "no time is named"), again, DONE]) as server:
        out, record = generate(CODEX, server)
    assert record.ended == "done" and record.attempts == 1 and record.candidate_sha256
    assert (record.usage.input, record.usage.output) == (100 + 30 + 5 + 200, 20 + 3 + 5)
    assert record.tool_calls == 2 and "class Model" in _results(out)


def test_codex_works_from_scripts_with_models_that_do(generate, workspace):
    script = (
        "const seen = await tools.exec_command({cmd: 'head -c 9 reference.py; printf x > candidate.py'});\n"
        "text(seen.output);\n"
    )
    with OpenAI([Turn((Use("exec", script),)), DONE]) as server:
        out, record = generate(CODEX, server, "--model", "gpt-6-sol")
    assert record.candidate_sha256 and record.ended == "done"
    assert {"exec", "exec_command", "apply_patch"} <= set(record.tools)
    assert not [name for name in record.tools if "web" in name or "agent" in name]
