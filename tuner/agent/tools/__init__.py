"""What an agent may do while it reasons: try drafts, read sources, look things up."""

from tuner.agent.tools.tool_session import ToolSession

__all__ = ["ToolSession"]
