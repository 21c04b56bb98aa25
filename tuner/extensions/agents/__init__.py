"""Who writes the next template: a model behind an OpenAI-compatible server, files, or no model."""
