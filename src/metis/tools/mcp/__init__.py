"""MCP: tools of other programs, over the Model Context Protocol."""

from metis.tools.mcp.server import McpServer
from metis.tools.mcp.where import HttpServer, StdioServer

__all__ = ["HttpServer", "McpServer", "StdioServer"]
