"""What one kernel on one machine can do without: every package needs the core, few each other."""
