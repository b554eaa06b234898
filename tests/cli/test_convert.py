import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli

ASKED: dict[str, Any] = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 100,
    "system": "be brief",
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}],
        },
    ],
}


def run(*arguments: str, body: object = ASKED) -> Result:
    return CliRunner().invoke(cli, ["convert", *arguments, "-"], input=json.dumps(body).encode())


@pytest.mark.row("M-021", "M-242", "M-243", "M-244", "T212")
def test_a_request_moves_to_another_provider_and_names_its_losses() -> None:
    done = run("--from", "anthropic", "--to", "openai")
    assert done.exit_code == 0
    body = json.loads(done.stdout)
    assert body["model"] == "gpt-5"
    system, user, assistant, tool = body["messages"]
    assert system == {"role": "system", "content": "be brief"}
    assert user == {"role": "user", "content": "go"}
    (call,) = assistant["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert tool == {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    assert done.stderr.splitlines() == [
        "dropped: thinking at message 3 $.content[0]: the target takes no thoughts",
        "dropped: option at $.thinking: the option 'thinking' of anthropic has no place here",
    ]


def test_the_same_provider_gives_the_same_request() -> None:
    done = run("--from", "anthropic", "--to", "anthropic")
    assert json.loads(done.stdout) == ASKED
    assert done.stderr == ""


def test_strict_prints_losses_only() -> None:
    done = run("--from", "anthropic", "--to", "openai", "--strict", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert [json.loads(line)["block_type"] for line in done.stderr.splitlines()] == [
        "thinking",
        "option",
    ]


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (("--from", "anthropic", "--to", "nobody"), ASKED, "no adapter is named 'nobody'"),
        (("--from", "anthropic", "--to", "openai"), [], "a request is a JSON object"),
        (
            ("--from", "anthropic", "--to", "openai"),
            {"messages": [{"role": "x", "content": ""}]},
            "$.messages[0].role: unknown role 'x'",
        ),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(
    arguments: tuple[str, ...], body: object, said: str
) -> None:
    done = run(*arguments, body=body)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output
