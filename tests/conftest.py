"""No test reads or writes what the user's own runs keep, ignores Ctrl-C or fails for being slow."""

import os
import signal
import tempfile
import threading

from hypothesis import HealthCheck, settings

os.environ["TUNE_STORE"] = "none"
# Where it is kept whose Python may run.
os.environ["XDG_STATE_HOME"] = f"{tempfile.gettempdir()}/tune-tests-{os.getuid()}"

# A shell starts background jobs of a script with SIGINT ignored, and so would be every `tune` that
# a test starts and interrupts. `tune` itself goes on ignoring it there, as such jobs should.
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
if ignored and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long hypothesis takes to draw or to run an example says how busy the machine is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
