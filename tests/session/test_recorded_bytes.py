"""Request and response bytes of a turn are stored unchanged, without keys."""

import msgspec
import pytest

from build import call
from metis.canonical import Message, Role
from metis.canonical.errors import NetworkError
from metis.canonical.ids import new_tool_use_id
from metis.session import Metis
from metis.store import open as open_store
from metis.store.wire_bodies import StoredBody, read_previous_body
from metis.tools import Registry
from metis.tools.builtin import ReadFile
from session.fake import Fake, say, serving
from session.helpers import options

pytestmark = pytest.mark.anyio
KEY = "sk-a-key-of-this-test-0123456789"


async def bodies_of(url: str, messages: list[Message]) -> list[StoredBody]:
    async with open_store(url, recover=False) as store:
        found = [
            await store.wire_body(message.session_id, message.id)
            for message in messages
            if message.role is Role.ASSISTANT
        ]
    return [body for body in found if body is not None]


async def test_request_and_response_bytes_are_stored_unchanged(url: str) -> None:
    fake = Fake(say(call("read_file", new_tool_use_id(), path="x")), say(f"it is {KEY}"), say("ok"))
    async with serving(fake):
        given = options(fake, tools=Registry(ReadFile), keys={"anthropic": KEY})
        async with Metis(url, given) as m:
            session = await m.session(model="anthropic:claude-sonnet-4-6")
            await session.ask("read x")
            await session.ask("and again")
            messages = session.messages
    bodies = await bodies_of(url, messages)
    sent = msgspec.json.encode(fake.bodies).replace(KEY.encode(), b"[key]")
    assert [msgspec.json.decode(body.request) for body in bodies] == msgspec.json.decode(sent)
    assert all(b'"tools"' in body.request for body in bodies)
    assert {body.path for body in bodies} == {"/v1/messages"}
    assert all(body.response.startswith(b"event: message_start") for body in bodies)
    assert b"it " in bodies[1].response
    assert not any(KEY.encode() in body.response for body in bodies)
    async with open_store(url, recover=False) as store:
        last = bodies[-1]
        session_id = messages[0].session_id
        assert await store.read(lambda t: read_previous_body(t, session_id, last)) == bodies[-2]


async def test_bytes_of_truncated_response_are_stored(url: str) -> None:
    fake = Fake(say("one two three", events=3))
    async with serving(fake), Metis(url, options(fake)) as m:
        session = await m.session(model="anthropic:claude-sonnet-4-6")
        with pytest.raises(NetworkError):
            await session.ask("count")
        messages = session.messages
    (body,) = await bodies_of(url, messages)
    assert b"message_start" in body.response
    assert b"message_stop" not in body.response


async def test_nothing_is_stored_if_it_is_switched_off(url: str) -> None:
    fake = Fake(say("one"))
    async with serving(fake), Metis(url, options(fake, record_bytes=False)) as m:
        session = await m.session(model="anthropic:claude-sonnet-4-6")
        await session.ask("a")
        messages = session.messages
    assert await bodies_of(url, messages) == []
