"""Which variant serves which shape: the smallest set, and rules for shapes never seen."""
