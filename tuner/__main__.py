"""`tune` and `python -m tuner`: the program from its first moment, which may be that of Ctrl-C."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program on the command line's arguments."""
    try:
        from tuner.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        exec("")  # noqa: S102 - as in tuner/cli/exits.py, which says why
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
