"""Tools of other programs, over the Model Context Protocol."""

from metis.tools.mcp.connection import HttpServer, StdioServer
from metis.tools.mcp.server import McpServer

__all__ = ["HttpServer", "McpServer", "StdioServer"]
