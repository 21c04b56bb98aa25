"""The version of the program, for those below the package's own front."""

TUNER_VERSION = "0.1.0"
