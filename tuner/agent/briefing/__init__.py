"""What the agent reads: pure functions from trials, outcomes and findings to text."""
