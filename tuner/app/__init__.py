"""What a command, a server or a Python caller does: open a run, run it, check, record."""
