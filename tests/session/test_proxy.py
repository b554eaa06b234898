"""Requests use the proxy of the environment, except for hosts in NO_PROXY."""

import pytest

from metis.canonical.errors import NetworkError
from metis.session import Metis, Options, text_of
from metis.transport import Retry
from session.fake import Fake, say, serving
from session.helpers import SONNET

pytestmark = pytest.mark.anyio
AWAY = "http://provider.example"
"""A host that is reachable only through the proxy."""


NOBODY = "http://127.0.0.1:9"


def at(address: str) -> Options:
    urls, keys = {"anthropic": address}, {"anthropic": "k"}
    return Options(base_urls=urls, keys=keys, retry=Retry(attempts=1))


async def test_a_proxy_of_the_environment_carries_requests(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Fake(say("from afar"))) as fake:
        monkeypatch.setenv("http_proxy", fake.url)
        monkeypatch.setenv("no_proxy", "")
        async with Metis(url, at(AWAY)) as m:
            session = await m.session(model=SONNET)
            answer = await session.ask("hello")
            assert answer is not None
            assert text_of(answer.content).strip() == "from afar"
        (headers,) = fake.headers
        assert headers["host"] == "provider.example"


async def test_no_proxy_host_is_reached_directly(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Fake(say("never"))) as fake:
        monkeypatch.setenv("http_proxy", fake.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with Metis(url, at(NOBODY)) as m:
            session = await m.session(model=SONNET)
            with pytest.raises(NetworkError):
                await session.ask("hello")
        assert fake.headers == []
