"""AWS signatures, compared with published examples and botocore."""

from datetime import UTC, datetime

import pytest
from aiohttp import web

from build import user
from metis import adapters
from metis.canonical import TextBlock
from metis.canonical.errors import AuthenticationError
from metis.canonical.metadata import StopReason
from metis.streaming import MessageComplete, MessageStart, StreamEvent, TextDelta
from metis.transport import Keys, Transport
from metis.transport.concealment import hide_key
from metis.transport.signing import Credentials, read_credentials, region_of, sign
from metis.wire.call import AdapterOptions, RequestContext

NOW = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
ID, SECRET = "AKIDEXAMPLE12345", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
URLS = [
    f"https://bedrock-runtime.us-east-1.amazonaws.com/model/{MODEL}/invoke",
    f"https://bedrock-runtime.eu-central-1.amazonaws.com/model/{MODEL}/invoke-with-response-stream",
    "https://bedrock-runtime.us-gov-west-1.amazonaws.com/model/arn:aws:x%2Fy/invoke",
]


def test_published_example_has_published_signature() -> None:
    """`post-vanilla` of the Signature Version 4 test suite."""
    given = sign(
        "POST",
        "https://example.amazonaws.com/",
        {},
        b"",
        Credentials(access_key_id="AKIDEXAMPLE", secret_access_key=SECRET),
        service="service",
        now=NOW,
    )
    assert given == {
        "x-amz-date": "20150830T123600Z",
        "authorization": (
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, "
            "Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        ),
    }


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("token", [None, "dG9rZW4="])
def test_signatures_equal_those_of_botocore(url: str, token: str | None) -> None:
    auth = pytest.importorskip("botocore.auth")
    request_type = pytest.importorskip("botocore.awsrequest").AWSRequest
    keys = pytest.importorskip("botocore.credentials").Credentials(ID, SECRET, token)
    headers = {"content-type": "application/json"}
    ours = Credentials(access_key_id=ID, secret_access_key=SECRET, session_token=token)
    given = sign("POST", url, headers, b'{"a":1}', ours, service="bedrock", now=NOW)
    request = request_type(method="POST", url=url, data=b'{"a":1}', headers=dict(headers))
    request.context["timestamp"] = "20150830T123600Z"
    signer = auth.SigV4Auth(keys, "bedrock", region_of(url))
    request.headers["X-Amz-Date"] = "20150830T123600Z"
    if token is not None:
        request.headers["X-Amz-Security-Token"] = token
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    assert given["authorization"].endswith(f"Signature={signature}")


def test_region_is_read_from_url() -> None:
    regions = ["us-east-1", "eu-central-1", "us-gov-west-1"]
    assert [region_of(url) for url in URLS] == regions
    assert region_of("http://127.0.0.1:8080/model") == "us-east-1"


def test_signing_requires_id_and_secret() -> None:
    assert read_credentials("ABSKQmVkcm9ja0FQSUtleS0x") is None
    assert read_credentials("short:secret") is None
    token = ID.lower()
    events = read_credentials(f"{ID}:{SECRET}:{token}")
    assert events == Credentials(access_key_id=ID, secret_access_key=SECRET, session_token=token)
    assert SECRET not in repr(events)


def test_aws_environment_variables_are_used_for_bedrock_only() -> None:
    environment = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    keys = Keys(environment=environment)
    bedrock = adapters.get("bedrock").profile
    assert keys.lookup(bedrock) == ([f"{ID}:{SECRET}"], "$AWS_ACCESS_KEY_ID")
    assert keys.next(adapters.get("anthropic").profile) is None
    session = Keys(environment={**environment, "AWS_SESSION_TOKEN": "t"})
    assert session.next(bedrock) == f"{ID}:{SECRET}:t"
    bearer = Keys(environment={**environment, "AWS_BEARER_TOKEN_BEDROCK": "ABSK1"})
    assert bearer.next(bedrock) == "ABSK1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_signed_request_over_real_connection() -> None:
    """The path and the headers arrive as they were signed; the response has frames."""
    requests: list[web.Request] = []
    context = RequestContext(session_id="sess_signed")
    message = adapters.get("bedrock").from_wire_response(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
        context,
    )
    events: list[StreamEvent] = [
        MessageStart(message.id, "claude"),
        TextDelta(message.id, 0, "hello"),
        MessageComplete(message.id, StopReason.END_TURN, message),
    ]

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        encoder = adapters.get("bedrock").stream_encoder(context)
        data = b"".join(map(encoder.encode, events)) + encoder.finish()
        return web.Response(body=data, content_type="application/vnd.amazon.eventstream")

    app = web.Application()
    app.router.add_post("/model/{model}/invoke-with-response-stream", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        adapter = adapters.get("bedrock", base_url=url)
        options = AdapterOptions(model=MODEL, stream=True)
        wire = adapter.to_wire([user("hi")], (), options)
        async with Transport(keys=Keys({"bedrock": f"{ID}:{SECRET}"})) as transport:
            events = [event async for event in transport.stream(adapter, wire, context)]
    finally:
        await runner.cleanup()
    end = events[-1]
    assert isinstance(end, MessageComplete)
    assert end.message.content == (TextBlock("hello"),)
    (request,) = requests
    assert request.match_info["model"] == MODEL
    moment = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")  # noqa: DTZ007 - of the wire
    again = sign(
        "POST",
        f"http://{request.host}{request.raw_path}",
        {"content-type": request.headers["content-type"]},
        wire.body,
        Credentials(access_key_id=ID, secret_access_key=SECRET),
        service="bedrock",
        now=moment,
    )
    assert request.headers["authorization"] == again["authorization"]


def test_secret_is_removed_from_texts() -> None:
    error = AuthenticationError(f"no access for {SECRET}")
    hide_key(error, f"{ID}:{SECRET}")
    assert error.text == "no access for [key]"
    assert SECRET not in str(error)
