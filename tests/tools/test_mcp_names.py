"""Names of MCP tools are valid tool names; hints count for trusted servers only."""

from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.tools import MAX_NAME_LENGTH, SideEffects, check_tool
from metis.tools.mcp.server import side_effects, snake_case, tool_name
from tool_helpers import define_tool


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_server_name_gives_valid_tool_name(server: str, tool: str) -> None:
    name = tool_name(server, tool)
    assert len(name) <= MAX_NAME_LENGTH
    assert check_tool(define_tool(name)) == []
    again = tool_name(server, tool, {name})
    # A long name has the digest of both names already.
    is_long = len(f"{snake_case(server)}___{snake_case(tool)}") > MAX_NAME_LENGTH
    assert (again == name) is is_long
    assert check_tool(define_tool(again)) == []


def test_names_are_readable() -> None:
    assert tool_name("GitHub", "createPullRequest") == "git_hub___create_pull_request"
    assert snake_case("9-Lives!") == "x_9_lives"
    assert snake_case("ü") == "x"


def test_hints_count_for_trusted_servers_only() -> None:
    worst = SideEffects.NETWORK
    reads = {"readOnlyHint": True}
    assert side_effects(reads, is_trusted=False, default=worst) is worst
    assert side_effects(reads, is_trusted=True, default=worst) is SideEffects.READ
    assert side_effects({}, is_trusted=True, default=worst) is worst
    assert side_effects(None, is_trusted=True, default=worst) is worst
