"""The search-space file and the template: read, checked, rendered."""
