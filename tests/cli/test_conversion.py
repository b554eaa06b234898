"""`metis convert`."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli

REQUEST: dict[str, Any] = {
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


def run(*arguments: str, body: object = REQUEST) -> Result:
    return CliRunner().invoke(cli, ["convert", *arguments, "-"], input=json.dumps(body).encode())


COUNTS_NOTHING = "gpt-5 has no thinking-token budget; mapped to effort 'minimal'"


@pytest.mark.row("M-021", "M-242", "M-243", "M-244", "T212")
def test_request_is_converted_with_losses() -> None:
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
        "dropped: thinking at message 3 $.content[0]: the model does not accept thinking blocks",
        f"altered: option at $.reasoning: {COUNTS_NOTHING}",
    ]


def test_conversion_to_same_provider_is_identity() -> None:
    done = run("--from", "anthropic", "--to", "anthropic")
    assert json.loads(done.stdout) == REQUEST
    assert done.stderr == ""


def test_strict_prints_losses_only() -> None:
    done = run("--from", "anthropic", "--to", "openai", "--strict", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert [json.loads(line)["block_type"] for line in done.stderr.splitlines()] == [
        "thinking",
        "option",
    ]


CHAT_REQUEST: dict[str, Any] = {
    "model": "gpt-5",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "go"},
    ],
}


@pytest.mark.parametrize(
    ("arguments", "body", "expected"),
    [
        (
            ("--from", "anthropic", "--to", "nobody"),
            REQUEST,
            "invalid value for '--to': unknown provider 'nobody'",
        ),
        (
            ("--from", "nobody", "--to", "openai"),
            REQUEST,
            "invalid value for '--from': unknown provider 'nobody'",
        ),
        (("--from", "anthropic", "--to", "openai"), [], "-: $: a request is a JSON object"),
        (
            ("--from", "anthropic", "--to", "openai"),
            {"messages": [{"role": "x", "content": ""}]},
            "$.messages[0].role: unknown role 'x'",
        ),
        (
            ("--from", "anthropic", "--to", "openai"),
            {"messages": [None]},
            "$.messages[0]: expected an object, got null",
        ),
        (
            ("--from", "anthropic", "--to", "openai"),
            {"messages": {}},
            "$.messages: expected an array, got object with 0 properties",
        ),
        (
            ("--from", "anthropic", "--to", "openai"),
            {"messages": [{"content": ""}]},
            "$.messages[0].role: a message has a role",
        ),
        (
            ("--from", "anthropic", "--to", "ollama"),
            CHAT_REQUEST,
            "unknown role 'developer'; this looks like a request for Chat Completions; try --from",
        ),
        (
            ("--from", "openai", "--to", "anthropic"),
            {"contents": [{"parts": [{"text": "hi"}]}]},
            "this looks like a request for Gemini",
        ),
    ],
)
def test_unconvertible_file_is_one_sentence(
    arguments: tuple[str, ...], body: object, expected: str
) -> None:
    done = run(*arguments, body=body)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.output


def test_a_body_that_looks_like_another_protocol_is_pointed_out() -> None:
    done = run("--from", "openai", "--to", "openai", "--model", "gpt-5")
    assert done.exit_code == 0
    expected = "-: this looks like a request for Anthropic Messages; try --from anthropic"
    assert f"note: {expected}" in done.stderr.splitlines()
    as_json = run("--from", "openai", "--to", "openai", "--model", "gpt-5", "--json")
    assert json.loads(as_json.stderr.splitlines()[0]) == {"note": expected}


@pytest.mark.parametrize("data", [b"", b" \n", b"\xef\xbb\xbf"])
def test_empty_file_is_reported_as_empty(data: bytes) -> None:
    arguments = ["convert", "--from", "anthropic", "--to", "openai", "-"]
    done = CliRunner().invoke(cli, arguments, input=data)
    assert (done.exit_code, done.stderr) == (2, "-: the file is empty\n")


def test_byte_order_mark_is_ignored() -> None:
    arguments = ["convert", "--from", "anthropic", "--to", "anthropic", "-"]
    done = CliRunner().invoke(cli, arguments, input=b"\xef\xbb\xbf" + json.dumps(REQUEST).encode())
    assert json.loads(done.stdout) == REQUEST


@pytest.mark.row("M-242")
def test_request_is_converted_to_bedrock_and_back() -> None:
    there = run("--from", "anthropic", "--to", "bedrock-converse")
    body = json.loads(there.stdout)
    assert body["system"] == [{"text": "be brief"}]
    assert body["inferenceConfig"]["maxTokens"] == 100
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    back = run("--from", "bedrock-converse", "--to", "anthropic", body=body)
    assert [turn["role"] for turn in json.loads(back.stdout)["messages"]] == [
        "user",
        "assistant",
        "user",
    ]
    same = run("--from", "bedrock-converse", "--to", "bedrock-converse", body=body)
    assert (json.loads(same.stdout), same.stderr) == (body, "")
