"""No test reads or writes the user's own store of past runs."""

import os

os.environ["TUNE_STORE"] = "none"
