"""The rounds and the tools for a client of the Model Context Protocol."""
