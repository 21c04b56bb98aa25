"""Keep what a session found as one small JSON file: its results, isolated times, environment.

python benchmarks/summarize_session.py SESSION --out benchmarks/results/h200/NAME.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("session", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    from tuner.report.loading import load
    from tuner.report.table import json_of

    data = load(asked.session)
    content = json_of(data) | {
        "isolated_us": {result.workload.key: result.isolated_us for result in data.results},
        "environment": dict(data.environment),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
