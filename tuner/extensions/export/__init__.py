"""What other programs take away from a session."""
