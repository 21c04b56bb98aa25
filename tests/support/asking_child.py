"""Ask a server as a process of its own: what came of it and the most memory that it took, as JSON.

    python asking_child.py URL OPTIONS

The options are JSON: `ask` is `complete` or `check`, `stream`, `max_tokens`, `longest_s`, `times`
(how often it is asked on after a reply).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tuner.extensions.agents.budget import TokenBudget
from tuner.extensions.agents.client import Ask, ChatClient
from tuner.extensions.agents.endpoint import STREAM, Endpoint
from tuner.model.errors import AgentError, ReplyError


def main(url: str, options: dict[str, object]) -> None:
    budget = TokenBudget(max_tokens=options.get("max_tokens"))
    more = {"longest_s": options["longest_s"]} if "longest_s" in options else {}
    client = ChatClient(Endpoint(url), "m", budget, 5.0, retries=1, pause_s=0.0, **more)
    if not options.get("stream", True):
        client.capabilities.given_up.add(STREAM)
    messages = [{"role": "user", "content": "a question of thirty letters"}]
    began_s, said, finish, chars, calls = time.monotonic(), "", "", 0, 0
    try:
        for _ in range(int(options.get("times", 1))):
            if options.get("ask") == "check":
                client.check()
                continue
            reply = client.complete(Ask(messages), lambda *_: None)
            finish, chars = reply.finish_reason, chars + len(reply.message["content"])
            calls = len(reply.message.get("tool_calls", ()))
    except (AgentError, ReplyError) as error:
        said = str(error)
    status = Path("/proc/self/status").read_text()
    # Of this program alone; `ru_maxrss` starts with that of whoever started it.
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    found = {
        "said": said,
        "finish": finish,
        "chars": chars,
        "calls": calls,
        "spent": budget.spent.total,
        "seconds": time.monotonic() - began_s,
        "rss_mb": int(peak.split()[1]) / 1000,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
