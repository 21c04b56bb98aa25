"""From a config to a trial, and from trials to winners: search, finals, verification."""
