"""Knowledge that stays: what earlier runs found, for a search to start from."""
