"""Check that recorded exchanges survive the way to the canonical form and back."""

import json

from metis import verify
from metis.verify import Findings, Law, Recording, Verdict

exchange = {
    "id": "1",
    "protocol": "openai_chat",
    "request": {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]},
    "response": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1778198400,
        "model": "gpt-5",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
    },
}
recording: Recording = verify.read_recording(json.dumps(exchange).encode())
adapter = verify.adapter_of(recording)
assert adapter is not None
assert verify.adapter_for("openai_chat") == adapter.name

findings: Findings = verify.check_laws(recording, adapter)
verdicts: list[Verdict] = findings.verdicts
assert not any(verdict.faults for verdict in verdicts)
assert Law.REQUEST in {verdict.law for verdict in verdicts}
print([f"{verdict.law}: holds" for verdict in verdicts])

# Recognise the protocol of a body, and list where two bodies differ.
protocol = verify.guess_protocol({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})
assert protocol == "gemini"
print(verify.PROTOCOL_NAMES[protocol])
print(list(verify.differences({"a": [1, 2]}, {"a": [1, 2.0]})))
