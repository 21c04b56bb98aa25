"""No test reads or writes the user's own store of past runs, or ignores Ctrl-C."""

import os
import signal
import threading

os.environ["TUNE_STORE"] = "none"

# A shell starts background jobs of a script with SIGINT ignored, and so would be every `tune` that
# a test starts and interrupts. `tune` itself goes on ignoring it there, as such jobs should.
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
if ignored and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
