"""What an agent may do while it reasons: try drafts, read sources, look things up."""

from tuner.extensions.agents.tools.tool_session import ToolSession

__all__ = ["ToolSession"]
