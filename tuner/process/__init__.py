"""Child processes: one protocol, pools, confinement and signals."""
