"""Builders for Gemini bodies, and one sample request for each feature of a request."""

import json
from typing import Any

from corpus import body_of
from encoding import encode_request
from metis.canonical import decode, encode
from metis.wire.call import RequestContext
from metis.wire.gemini.codec import CODEC
from metis.wire.gemini.fast import decode_request

CONTEXT = RequestContext(session_id="sess_test", model="gemini:gemini-3.5-flash")


def round_trip_body(request: Any) -> Any:
    read = decode_request(body_of(request), CONTEXT)
    stored = [decode(encode(message)) for message in read.messages]
    return json.loads(encode_request(CODEC, stored, read.tools, read.options))


def wire_turn(*parts: Any, role: str | None = "user", **keys: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"parts": list(parts), **keys}
    return content if role is None else {"role": role, **content}


def sent(*contents: Any, **options: Any) -> dict[str, Any]:
    return {"contents": list(contents), **options}


TEXT = {"text": "hi"}
CALL = {"functionCall": {"name": "f", "args": {"a": 1}}}
SIGNED = {**CALL, "thoughtSignature": "c2ln"}
RESULT = {"functionResponse": {"name": "f", "response": {"output": "ok"}}}
PROMPT_TURN = wire_turn(TEXT)
CALLED = wire_turn(SIGNED, role="model")
BLOB = {"inlineData": {"mimeType": "image/png", "data": "+/8="}}
DECLARED: dict[str, Any] = {
    "name": "f",
    "description": "Does it.",
    "parametersJsonSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def result(response: Any, **keys: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "f", "response": response, **keys}}


REQUESTS: dict[str, dict[str, Any]] = {
    "text": sent(PROMPT_TURN),
    "nothing": sent(),
    "one content without a list": {"contents": PROMPT_TURN},
    "one part without a list": sent({"role": "user", "parts": TEXT}),
    "no parts at all": sent(PROMPT_TURN, {"role": "model"}),
    "empty parts": sent(wire_turn(role="model")),
    "no role": sent(wire_turn(TEXT, role=None)),
    "a role of null": sent({"role": None, "parts": [TEXT]}),
    "null instructions": sent(
        PROMPT_TURN, systemInstruction=None, tools=None, generationConfig=None
    ),
    "the old role of results": sent(PROMPT_TURN, CALLED, wire_turn(RESULT, role="function")),
    "unknown key in a content": sent(wire_turn(TEXT, mood="calm")),
    "unknown key in a part": sent(wire_turn({**TEXT, "partMetadata": {"x": 1}})),
    "unknown part": sent(
        wire_turn({"hologram": [1.5, None]}), wire_turn({"hologram": 1}, role="model")
    ),
    "a part that is no object": sent(wire_turn("hi")),
    "system": sent(PROMPT_TURN, systemInstruction={"parts": [TEXT, TEXT]}),
    "system with a role": sent(PROMPT_TURN, systemInstruction={"role": "user", "parts": [TEXT]}),
    "system in snake case": sent(PROMPT_TURN, system_instruction={"parts": [TEXT]}),
    "system as a string": sent(PROMPT_TURN, systemInstruction="be brief"),
    "calls without ids": sent(
        PROMPT_TURN, wire_turn(CALL, CALL, role="model"), wire_turn(RESULT, RESULT)
    ),
    "calls with ids": sent(
        PROMPT_TURN,
        wire_turn({"functionCall": {"name": "f", "args": {}, "id": "1"}}, role="model"),
        wire_turn(result({"output": "x"}, id="1")),
    ),
    "an empty id": sent(
        PROMPT_TURN, wire_turn({"functionCall": {"name": "f", "args": {}, "id": ""}}, role="model")
    ),
    "a call without arguments": sent(
        PROMPT_TURN, wire_turn({"functionCall": {"name": "f"}}, role="model")
    ),
    "results in contents of their own": sent(
        PROMPT_TURN, wire_turn(CALL, CALL, role="model"), wire_turn(RESULT), wire_turn(RESULT)
    ),
    "results and text in one content": sent(PROMPT_TURN, CALLED, wire_turn(RESULT, TEXT)),
    "a result without a call": sent(wire_turn(RESULT)),
    "a result of another name": sent(PROMPT_TURN, CALLED, wire_turn(result({}, name="g"))),
    "an empty result": sent(PROMPT_TURN, CALLED, wire_turn(result({}))),
    "a result as an object": sent(
        PROMPT_TURN, CALLED, wire_turn(result({"z": 1, "a": [True, 1.0]}))
    ),
    "a result under result": sent(PROMPT_TURN, CALLED, wire_turn(result({"result": "x"}))),
    "a result of several texts": sent(
        PROMPT_TURN, CALLED, wire_turn(result({"output": ["a", "b"]}))
    ),
    "an error": sent(PROMPT_TURN, CALLED, wire_turn(result({"error": "no"}))),
    "an error as an object": sent(PROMPT_TURN, CALLED, wire_turn(result({"error": {"code": 1}}))),
    "a result with media": sent(PROMPT_TURN, CALLED, wire_turn(result({}, parts=[BLOB]))),
    "a result with a file": sent(
        PROMPT_TURN,
        CALLED,
        wire_turn(
            result({}, parts=[{"fileData": {"fileUri": "gs://b/x", "mimeType": "image/png"}}])
        ),
    ),
    "a result that is late": sent(
        PROMPT_TURN, CALLED, wire_turn(result({}, willContinue=True, scheduling="SILENT"))
    ),
    "signatures on any part": sent(
        PROMPT_TURN,
        wire_turn(
            {"text": "a", "thought": True, "thoughtSignature": "MQ=="},
            {"text": "b", "thoughtSignature": "Mg=="},
            {"text": "", "thoughtSignature": "Mw=="},
            {**BLOB, "thoughtSignature": "NA=="},
            SIGNED,
            CALL,
            role="model",
        ),
        wire_turn(RESULT, RESULT),
    ),
    "a thought that is none": sent(
        PROMPT_TURN, wire_turn({"text": "a", "thought": False}, role="model")
    ),
    "a signature of a user": sent(wire_turn({"text": "a", "thoughtSignature": "MQ=="})),
    "snake case": sent(
        wire_turn({"inline_data": {"mime_type": "image/png", "data": "-_8="}}),
        wire_turn(
            {"function_call": {"name": "f", "args": {"a_b": 1}}, "thought_signature": "a-_="},
            role="model",
        ),
        wire_turn({"function_response": {"name": "f", "response": {"return_value": "x"}}}),
        generation_config={"max_output_tokens": 9, "response_mime_type": "application/json"},
        safety_settings=[{"category": 7, "threshold": 3}],
    ),
    "both cases": sent(wire_turn({"inlineData": {"mime_type": "image/png", "data": "AA=="}})),
    "media": sent(
        wire_turn(
            BLOB,
            {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}},
            {"inlineData": {"mimeType": "text/csv", "data": "YSxi"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://youtu.be/x"}},
            {"fileData": {"fileUri": "https://youtu.be/x"}, "videoMetadata": {"fps": 0.5}},
            {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/x.png"}},
        )
    ),
    "code execution": sent(
        PROMPT_TURN,
        wire_turn(
            {"executableCode": {"language": "PYTHON", "code": "1", "id": "x"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1", "id": "x"}},
            {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "y"}, "thoughtSignature": "MQ=="},
            TEXT,
            role="model",
        ),
        PROMPT_TURN,
    ),
    "options": sent(
        PROMPT_TURN,
        generationConfig={
            "temperature": 0.0,
            "topP": 1,
            "topK": 40.0,
            "maxOutputTokens": 9,
            "stopSequences": ["x"],
            "candidateCount": 1,
            "thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True},
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object"},
        },
        safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        cachedContent="cachedContents/x",
        labels={"team": "a"},
    ),
    "tools": sent(
        PROMPT_TURN,
        tools=[
            {"functionDeclarations": [DECLARED, {"name": "g"}]},
            {"googleSearch": {}},
            {"codeExecution": {}},
        ],
        toolConfig={
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]},
            "includeServerSideToolInvocations": True,
        },
    ),
    "tools that are no list": sent(PROMPT_TURN, tools={"function_declarations": [DECLARED]}),
    "the mode as a number": sent(PROMPT_TURN, toolConfig={"functionCallingConfig": {"mode": 2}}),
    "unknown key in a request": sent(PROMPT_TURN, speed="fast"),
}


ANSWER: dict[str, Any] = {
    "candidates": [{"content": wire_turn(TEXT, role="model"), "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9},
    "modelVersion": "gemini-3.5-flash",
    "responseId": "resp1",
}


def answered(*parts: Any, finish: Any = "STOP", usage: Any = None, **keys: Any) -> dict[str, Any]:
    candidate = {
        "content": wire_turn(*parts, role="model"),
        "finishReason": finish,
        "index": 0,
        **keys,
    }
    return {**ANSWER, "candidates": [candidate], **({"usageMetadata": usage} if usage else {})}
