"""`tune mcp` as a process, and a client of the protocol that tunes a kernel with it on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult
from slow import mostly_slow

from tuner.extensions.agents.mcp.session_runner import PHASES
from tuner.session.events import Said
from tuner.session.session import Session

BRIEF = ("--device", "host", "--no-mutants", "--trials", "2", "--workload", "N=4096")
PLAN = {
    "hypothesis": "each thread has little to do",
    "change": "blocks of one warp as well",
    "expectations": [{"metric": "time_us", "factor": 0.9, "workload": "N=4096"}],
}
CHANGED = "notifications/tools/list_changed"
LEADING = ["start", "status", "briefing", "submit", "finish"]


class Editor:
    """A client that calls tools and remembers what it was told on the way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.progress: list[str] = []

    async def call(self, name: str, **arguments: Any) -> CallToolResult:
        """Call a tool once."""

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append(message or "")

        return await self.client.call_tool(name, arguments, progress_callback=heard)

    async def told(self, name: str, **arguments: Any) -> str:
        """Call a tool that must work; return its text."""
        result = await self.call(name, **arguments)
        assert not result.is_error, text(result)
        return text(result)

    async def refused(self, name: str, **arguments: Any) -> str:
        """Call a tool that must not work; return what it says."""
        result = await self.call(name, **arguments)
        assert result.is_error, text(result)
        return text(result)

    async def tools(self) -> dict[str, str]:
        """List the tools with their descriptions."""
        listed = await self.client.list_tools()
        return {tool.name: tool.description or "" for tool in listed.tools}


def text(result: CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


def served(project, work: Callable[[Editor], Awaitable[None]], *words: object) -> None:
    """Let a client work with a server of its own."""

    async def main() -> None:
        with (project.root / "stderr.txt").open("w") as log:
            async with Client(stdio_client(parameters(project, *words), log)) as client:
                await work(Editor(client))

    anyio.run(main)


def parameters(project, *words: object) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "tuner", "mcp", *map(str, words)],
        cwd=project.root,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


def answer(project) -> dict[str, str]:
    """Write another template for the kernel, and its space."""
    space = project.space.read_text().replace("[64, 128, 256]", "[32, 128, 256]")
    return {"template": project.template.read_text(), "space": space}


def test_a_client_leads_a_session_from_its_start_to_its_results(project) -> None:
    outside = project.root.parent / "outside.py"
    outside.write_text((project.root / "kernels/scale.py").read_text())
    (project.root / "kernels/linked.cu").symlink_to(outside)

    async def work(editor: Editor) -> None:
        before = await editor.tools()
        assert list(before)[:5] == LEADING
        assert {"render", "compile", "verify", "measure", "search", "read_notes"} <= set(before)
        await say_what_is_missing(editor)
        await start_nothing_outside(editor)
        told = await editor.refused("start", kernel="kernels/scal.cu")
        assert "no such kernel file: kernels/scal.cu" in told
        assert "mine: no such session" in await editor.refused("start", resume="mine")
        told = await editor.refused("start", kernel="kernels/scale.cu", device="recorded")
        assert "use --device cuda" in told

        assert "Round 1 is open" in await editor.told("start", kernel="kernels/scale.cu")
        assert set(editor.progress) & {"files are read and the device is opened", *PHASES.values()}
        assert "a session is open already" in await editor.refused("start")
        after = await editor.tools()
        assert list(after) == list(before)
        assert "for the session's device" in before["compile"]
        assert "The times are a CPU's" in after["measure"]
        asked = await editor.told("briefing")
        assert "# How to answer here" in asked
        assert "Build on the candidate initial" in asked
        assert "# How to answer here" not in await editor.told("briefing")
        assert "# How to answer here" in await editor.told("briefing", whole=True)

        good = answer(project)
        wrong = {**good, "template": good["template"].replace("2.0f *", "3.0f *")}
        assert "times the tolerance" in await editor.told("verify", template=wrong["template"])
        problem = await editor.refused("submit", **PLAN, **wrong)
        assert "repair 1 of 3" in problem
        assert problem.split("\n\n`submit`")[0] in await editor.told("briefing")
        came = await editor.told("submit", **good)
        assert "round 1 -> r1: blocks of one warp as well" in came
        assert "ran correctly; 1 answer refused before" in came, "a CPU's times tell nothing"
        assert "Round 2 is open" in came
        assert "waits for `submit`" in await editor.told("status")

        result = await editor.call("finish")
        assert not result.is_error
        assert "tuned kernels" in text(result)
        (tuned,) = result.structured_content["workloads"]
        assert tuned["workload"] == {"N": 4096}
        first, second = result.structured_content["rounds"]
        assert (first["candidate"], second["end"]) == ("r1", "idle")
        assert len(first["refused"]) == 1

    async def say_what_is_missing(editor: Editor) -> None:
        for name in [*LEADING[1:], "render"]:
            given = answer(project) if name == "submit" else {}
            assert "`start` opens one" in await editor.refused(name, **given)
        assert "there is no tool 'sumbit'" in await editor.refused("sumbit")
        assert "'kernl' is no argument" in await editor.refused("start", kernl="kernels/scale.cu")
        assert "template is missing" in await editor.refused("submit", space="x")

    async def start_nothing_outside(editor: Editor) -> None:
        for kernel in ("../kernel.cu", "/etc/passwd", "kernels/linked.cu"):
            told = await editor.refused("start", kernel=kernel)
            assert f"outside the folder that the server was started in: {kernel}" in told
        assert "`session` is outside" in await editor.refused("start", session="../mine")
        assert "`resume` is outside" in await editor.refused("start", resume="..")
        project.edit(project.space, "../kernels/scale.py", str(outside))
        assert f"{outside}: is outside" in await editor.refused("start", kernel="kernels/scale.cu")
        project.edit(project.space, str(outside), "../kernels/scale.py")

    served(project, work, *BRIEF, "--session", "mine")
    assert (project.root / "mine" / "report.html").exists()


@pytest.mark.parametrize(
    "end",
    mostly_slow([signal.SIGINT, signal.SIGTERM, None], [], [None]),
    ids=["INT", "TERM", "gone"],
)
def test_a_server_that_ends_leaves_a_session_that_a_client_goes_on_with_in_its_round(
    project, tune, end: signal.Signals | None
) -> None:
    process = spoken_to(project, "kernels/scale.cu", *BRIEF, "--session", "mine")
    say(process, 1, "start", {})
    assert "Round 1 is open" in heard_of(process, 1)
    wrong = {**answer(project), "space": "no space"}
    say(process, 2, "submit", {**PLAN, **wrong})
    assert "Refused" in heard_of(process, 2)
    say(process, 3, "read_notes", {})
    heard_of(process, 3)
    if end is not None:
        os.killpg(process.pid, end)
        process.wait(timeout=60)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if end else 0), err
    assert "interrupted; resume with: tune mcp --resume mine" in err
    assert "Traceback" not in err
    alone = tune("--resume", "mine")
    assert (alone.exit_code, "go on with `tune mcp`" in alone.stderr) == (2, True)

    async def work(editor: Editor) -> None:
        assert "Round 1 is open" in await editor.told("start")
        assert "repair 1 of 3" in await editor.told("briefing")
        assert "Round 2 is open" in await editor.told("submit", **answer(project))

    served(project, work, "--resume", "mine")
    said = [entry for number, entry in transcript(project.root / "mine") if number == 1]
    kinds = [entry.get("message", {}).get("role", entry["type"]) for entry in said]
    assert kinds == ["user", "plan", "answer", "user", "assistant", "tool", "answer"]


def test_standard_output_carries_the_protocol_alone_until_a_client_goes_in_a_call(project) -> None:
    noise = "import os\nprint('printed')\nos.system('echo by a child')\n"
    path = project.root / "kernels/scale.py"
    path.write_text(path.read_text().replace("def reference", f"{noise}\n\ndef reference"))
    process = spoken_to(project, "kernels/scale.cu", *BRIEF)
    process.stdin.write("this is no message\n")
    lines: list[str] = []
    send(process, id=3, method="tools/list", params={})
    heard_of(process, 3, lines)
    say(process, 1, "start", {})
    heard_of(process, 1, lines)
    say(process, 2, "search", {"configs": 16})
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "by a child" in err
    assert "Traceback" not in err
    assert "interrupted; resume with: tune mcp --resume " in err
    messages = [json.loads(line) for line in (*lines, *rest.splitlines())]
    assert all("jsonrpc" in message for message in messages)
    # A client of this older protocol hears that the tools are now those of the session's device.
    assert CHANGED in [message.get("method") for message in messages]


def spoken_to(project, *words: object) -> Any:
    """Start a server as a process that leads a group, and shake hands with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "mcp", *map(str, words)],
        cwd=project.root,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    about = {"name": "by hand", "version": "1"}
    first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    send(process, id=0, method="initialize", params=first)
    assert "serverInfo" in heard_of(process, 0)
    send(process, method="notifications/initialized")
    return process


def say(process: Any, number: int, tool: str, arguments: object) -> None:
    send(process, id=number, method="tools/call", params={"name": tool, "arguments": arguments})


def send(process: Any, **message: object) -> None:
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def heard_of(process: Any, number: int, lines: list[str] | None = None) -> str:
    """Read lines up to the answer to a request."""
    for line in process.stdout:
        if lines is not None:
            lines.append(line)
        if json.loads(line).get("id") == number:
            return str(line)
    raise AssertionError(process.stderr.read())


def transcript(folder: Path) -> list[tuple[int, Any]]:
    """Read what was said in each round of a session."""
    with Session.open(folder, read_only=True) as session:
        return [(one.round, one.entry) for one in session.events(Said)]
