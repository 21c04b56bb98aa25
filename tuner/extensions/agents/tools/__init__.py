"""What an agent may do while it reasons: try drafts, read sources, look things up."""
