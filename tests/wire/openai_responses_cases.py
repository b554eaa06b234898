"""Handwritten items of OpenAI Responses: one item or sequence of items for each feature."""

from typing import Any

Wire = dict[str, Any]

PROMPT: Wire = {"role": "user", "content": "What is new?"}
REASONING: Wire = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Look it up."}],
    "encrypted_content": "gAAAA1",
}
SEALED: Wire = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAA2"}
CALL: Wire = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look_up",
    "arguments": '{"word": "new", "deep": true}',
    "status": "completed",
}
OUTPUT: Wire = {"type": "function_call_output", "call_id": "call_1", "output": "nothing"}
CITED: Wire = {
    "type": "url_citation",
    "url": "https://news.example",
    "title": "News",
    "start_index": 0,
    "end_index": 4,
}
MESSAGE: Wire = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Nothing is new.", "annotations": [CITED], "logprobs": []}
    ],
}
CUSTOM: Wire = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_2",
    "name": "sql",
    "input": "SELECT 1",
}
CUSTOM_OUTPUT: Wire = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"}

FEATURES: dict[str, list[Wire]] = {
    "a thought beside its call": [REASONING, CALL, OUTPUT],
    "a sealed thought": [SEALED, MESSAGE],
    "a thought in two summaries": [
        {
            "type": "reasoning",
            "id": "rs_3",
            "summary": [
                {"type": "summary_text", "text": "One."},
                {"type": "summary_text", "text": "Two."},
            ],
        },
        MESSAGE,
    ],
    "a thought in the clear": [
        {
            "type": "reasoning",
            "id": "rs_4",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "All of it."}],
            "encrypted_content": None,
            "status": "completed",
        },
        {"role": "assistant", "content": "So."},
    ],
    "a custom tool": [CUSTOM, CUSTOM_OUTPUT],
    "a namespace": [{**CALL, "namespace": "crm"}, OUTPUT],
    "a call by a program": [{**CALL, "caller": {"type": "program", "caller_id": "p"}}, OUTPUT],
    "arguments as an object": [{**CALL, "arguments": {"word": "new"}}, OUTPUT],
    "broken arguments": [{**CALL, "arguments": '{"word": '}, OUTPUT],
    "no arguments": [{**CALL, "arguments": ""}, OUTPUT],
    "an output of parts": [
        CALL,
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [
                {"type": "input_text", "text": "see"},
                {
                    "type": "input_image",
                    "detail": "low",
                    "image_url": "data:image/png;base64,aWY=",
                },
                {"type": "input_file", "file_data": "data:application/pdf;base64,cGRm"},
                {"type": "surprise", "text": "?"},
            ],
        },
    ],
    "an output with keys of its own": [
        CALL,
        {**OUTPUT, "id": "fco_1", "status": "completed", "caller": {"type": "direct"}},
    ],
    "an output of nothing": [CALL, {**OUTPUT, "output": None}],
    "extra tools": [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        }
    ],
    "a search for tools by the server": [
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "call_id": None,
            "execution": "server",
            "arguments": {"paths": ["crm"]},
            "status": "completed",
        },
        {
            "type": "tool_search_output",
            "id": "tso_1",
            "call_id": None,
            "execution": "server",
            "tools": [],
            "status": "completed",
        },
        CALL,
        OUTPUT,
    ],
    "a search for tools by the client": [
        {
            "type": "tool_search_call",
            "call_id": "call_3",
            "execution": "client",
            "arguments": {"query": "crm"},
            "status": "completed",
        },
        {
            "type": "tool_search_output",
            "call_id": "call_3",
            "execution": "client",
            "tools": [{"type": "function", "name": "f"}],
            "status": "completed",
        },
    ],
    "a search of the web": [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "news"},
        },
        MESSAGE,
    ],
    "a search in files": [
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "completed",
            "queries": ["news"],
            "results": None,
        },
        MESSAGE,
    ],
    "code that was run": [
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "1 + 1",
            "container_id": "cntr_1",
            "outputs": [{"type": "logs", "logs": "2"}],
        },
        MESSAGE,
    ],
    "a picture": [
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "result": "aWY=",
            "output_format": "webp",
        },
        MESSAGE,
    ],
    "a picture that lies at the provider": [{"type": "image_generation_call", "id": "ig_1"}],
    "tools of a server": [
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "server_label": "s",
            "name": "f",
            "arguments": "{}",
        },
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "s",
            "name": "f",
            "arguments": "{}",
            "output": "ok",
            "approval_request_id": "mcpr_1",
        },
        MESSAGE,
    ],
    "a compaction": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA3"}, PROMPT],
    "a wish for a compaction": [{"type": "compaction_trigger"}],
    "a local shell": [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "call_4",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "call_4", "output": "a\nb"},
    ],
    "a shell": [
        {
            "type": "shell_call",
            "call_id": "call_5",
            "action": {"commands": ["ls"]},
            "environment": {"type": "local"},
            "status": "completed",
        },
        {
            "type": "shell_call_output",
            "call_id": "call_5",
            "max_output_length": 100,
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
    ],
    "a shell of the provider": [
        {
            "type": "shell_call",
            "id": "sh_1",
            "call_id": "call_6",
            "action": {"commands": ["ls"]},
            "environment": {"type": "container_reference", "container_id": "c"},
            "status": "completed",
        },
        MESSAGE,
    ],
    "a patch": [
        {
            "type": "apply_patch_call",
            "id": "apc_1",
            "call_id": "call_7",
            "status": "completed",
            "operation": {"type": "update_file", "path": "a.py", "diff": "-a\n+b"},
        },
        {
            "type": "apply_patch_call_output",
            "call_id": "call_7",
            "status": "failed",
            "output": "no such line",
        },
    ],
    "a computer": [
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "call_8",
            "status": "completed",
            "pending_safety_checks": [],
            "action": {"type": "screenshot"},
        },
        {
            "type": "computer_call_output",
            "call_id": "call_8",
            "output": {
                "type": "computer_screenshot",
                "image_url": "data:image/png;base64,aWY=",
            },
        },
    ],
    "a computer that does several things": [
        {
            "type": "computer_call",
            "id": "cu_2",
            "call_id": "call_9",
            "status": "completed",
            "pending_safety_checks": [],
            "actions": [{"type": "wait"}, {"type": "screenshot"}],
        },
        {
            "type": "computer_call_output",
            "call_id": "call_9",
            "output": {"type": "computer_screenshot", "file_id": "file_1"},
        },
    ],
    "citations and a refusal": [
        {
            **MESSAGE,
            "phase": "final_answer",
            "content": [
                *MESSAGE["content"],
                {"type": "refusal", "refusal": "No more."},
                {"type": "output_text", "text": "bare"},
                {"type": "output_text", "text": "odd", "annotations": [], "later": 1},
            ],
        }
    ],
    "an answer as a client writes it": [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two", "phase": "commentary"},
        {"type": "message", "role": "assistant", "content": "three"},
        {"role": "assistant", "content": [{"type": "input_text", "text": "four"}]},
    ],
    "an answer that is empty": [{**MESSAGE, "content": []}],
    "questions of all roles": [
        {"role": "system", "content": "first"},
        {"role": "developer", "content": [{"type": "input_text", "text": "second"}]},
        {"type": "message", "role": "user", "content": "third", "status": "completed"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "4"}]},
        {"role": "user", "content": "", "later": [1]},
        {"role": "user", "content": None},
    ],
    "media": [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "detail": "auto", "image_url": "https://a.example/b.png"},
                {"type": "input_image", "image_url": "data:image/png;base64,aWY="},
                {"type": "input_image", "detail": "auto", "file_id": "file_1"},
                {"type": "input_file", "file_id": "file_2"},
                {"type": "input_file", "file_url": "https://a.example/b.pdf"},
                {"type": "input_file", "file_data": "cGRm", "filename": "b.pdf"},
                {"type": "input_file", "file_data": "data:text/csv;base64,YSxi"},
                {"type": "input_file", "file_data": "data:audio/mpeg;base64,YQ=="},
                {"type": "input_file", "file_data": "data:video/mp4;base64,YQ=="},
                {"type": "input_file", "file_data": "data:image/gif;base64,YQ=="},
                {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "mp3"}},
                {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "m"}},
            ],
        }
    ],
    "a reference": [{"type": "item_reference", "id": "msg_0"}, {"id": "msg_00"}],
    "things of a later day": [
        {"type": "dream", "id": "dr_1", "content": [1]},
        {"type": "wish", "role": "user", "content": "x"},
        {"type": "reasoning", "id": "rs_9", "summary": "all in one"},
        {"type": "function_call", "call_id": "call_0"},
        {"type": "function_call_output", "output": "lost"},
    ],
    "calls without an id": [
        {"type": "function_call", "id": "fc_9", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "fc_9", "output": "ok"},
    ],
}
"""Sequences of items by feature."""
