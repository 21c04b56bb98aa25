"""An evaluator for tests: it compiles nothing, and a source says in comments what becomes of it.

`us=12.5` is the time in microseconds (or `kPieces = 12`), `status=compile` a failure. What it is
started with says how it behaves; `log=FILE` keeps its requests, a line each, and `after=N` lets N
requests pass first.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

MODES = dict(word.partition("=")[::2] for word in sys.argv[1:])


def requests_before(line):
    """Keep a request; tell how many there were before it."""
    if "log" not in MODES:
        return 0
    with Path(MODES["log"]).open("a+") as log:
        log.seek(0)
        count = sum(1 for _ in log)
        log.write(line + "\n")
    return count


def describe():
    found = {"version": 1, "name": "fake", "streaming_gbps": 100.0, "l2_bytes": 1024}
    found |= {"verifies": "verifies" in MODES, "compares": "compares" in MODES}
    return found | json.loads(MODES.get("describe", "{}"))


def time_of(program):
    found = re.search(r"(?:us=|kPieces = )([\d.]+)", program["source"])
    return float(found[1]) if found else 50.0


def answered(request):
    for program in request["programs"]:
        failed = re.search(r"status=(\w+)", program["source"])
        if failed:
            return {"status": failed[1], "reason": f"it is said to be {failed[1]}"}
    answer = {"status": "correct", "verified": "verifies" in MODES}
    times = [time_of(one) for one in request["programs"]]
    if request["purpose"] == "compare":
        answer["rounds_us"] = [times] * request["rounds"]
    elif request["purpose"] != "verify":
        answer["times_us"] = [times[0]] * 5
    return answer | json.loads(MODES.get("answer", "{}"))


def misbehave():
    if "dies" in MODES:
        sys.exit("the queue is closed")
    if "hangs" in MODES:
        child = subprocess.Popen(["sleep", "600"])
        if "pids" in MODES:
            Path(MODES["pids"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    if "endless" in MODES:
        while True:
            sys.stdout.write("yes " * 1000)
    if "leaves" in MODES:
        subprocess.Popen(["sleep", "20"])  # which holds the output open
        return
    if "silent" in MODES:
        sys.exit(0)
    if "nonsense" in MODES:
        print("srun: job 17 queued and waiting")
        sys.exit(0)


def linger():
    sys.stdout.flush()
    for stream in (1, 2):
        os.close(stream)
    time.sleep(float(MODES["lingers"]))
    os._exit(0)


def main():
    text = sys.stdin.read()
    request = json.loads(text)
    before = requests_before(text)
    describing = request["purpose"] == "describe"
    if (not describing or "early" in MODES) and before >= int(MODES.get("after", "0")):
        misbehave()
    json.dump(describe() if describing else answered(request), sys.stdout)
    if "lingers" in MODES and not describing:
        linger()


main()
