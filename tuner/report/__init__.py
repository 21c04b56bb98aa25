"""What people take away from a session."""
