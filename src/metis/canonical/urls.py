"""URLs of servers: validation, and removal of logins and keys before a URL is shown."""

import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import unquote, urlsplit, urlunsplit

from metis.canonical.errors import InvalidValueError

LOGIN_MARK = "[login]"
"""The replacement for the login of a URL wherever the URL is shown."""

_MAX_LOGIN = 500
# A password may contain an unescaped slash: text after `name:` that is not a port belongs to the
# login up to the last @. The bound makes this linear on a text of `://://…`.
_LOGIN = re.compile(
    rf"(?<=://)(?:[^/?#\s@:]{{0,{_MAX_LOGIN}}}:(?!\d{{1,5}}(?:[/?#\s]|$))\S{{0,{_MAX_LOGIN}}}"
    rf"|[^/?#\s]{{0,{_MAX_LOGIN}}})@"
)
_SECRET_PARAMETER = re.compile(
    r"(?<=[?&])((?:api[_-]?)?key|access_token|token|password|secret|sig|signature)=[^&#\s\"']+",
    re.IGNORECASE,
)
_HOST_NAME = re.compile(r"[^\s<>\"\\^`{|}%@/?#\[\]:]+")


def without_login(text: str) -> str:
    """Return a text with the logins and secret parameters of its URLs replaced.

    >>> without_login("postgresql://me:secret@db/metis")
    'postgresql://[login]@db/metis'
    """
    if "://" not in text:
        return text
    text = _LOGIN.sub(f"{LOGIN_MARK}@", text)
    return _SECRET_PARAMETER.sub(rf"\1={LOGIN_MARK}", text)


def has_login(text: str) -> bool:
    """Return whether a text contains a URL with a login or a key."""
    return without_login(text) != text


def shown_address(url: str) -> str:
    """Return the scheme, host and path of a URL, without login, query and fragment.

    >>> shown_address("https://me:secret@host:81/v1?key=1#part")
    'https://host:81/v1'
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "an address that is not a URL"
    return without_login(urlunsplit((parts.scheme, host, parts.path, "", "")))


def check_base_url(url: str) -> None:
    """Raise an error unless a URL is the http or https address of a server.

    Raises:
        InvalidValueError: the reason, without the login that the URL may contain.
    """
    fault = _fault(url)
    if fault:
        shown = without_login(url)
        # In an invalid URL a login may be where it is not recognised: then it is not shown at all.
        subject = "the address" if "@" in shown.replace(f"{LOGIN_MARK}@", "") else repr(shown)
        raise InvalidValueError(f"{subject} is not an address: {fault}", path="$.base_url")


def _fault(url: str) -> str:
    """Return the fault of a base URL, or an empty string."""
    if not url.startswith(("http://", "https://")):
        return "it must start with http:// or https://"
    if any(character.isspace() or not character.isprintable() for character in url):
        return "it has a space or a control character"
    try:
        parts = urlsplit(url)
        is_valid = _is_host(parts.hostname or "", parts.netloc.rpartition("@")[2], parts.port)
    except (ValueError, UnicodeError):  # `idna` raises for an empty or overlong label
        is_valid = False
    if not is_valid:
        return "its host or port is not valid"
    # The path of a request is appended to the URL and would become part of the query or fragment.
    has_query = "?" in url or "#" in url
    return "it must have no query and no fragment" if has_query else ""


def _is_host(host: str, authority: str, port: int | None) -> bool:
    """Return whether a host is a valid name or address, and the authority consists only of it."""
    if authority.startswith("["):
        return authority in (f"[{host}]", f"[{host}]:{port}")
    is_name = _HOST_NAME.fullmatch(host) is not None and bool(host.encode("idna"))
    return is_name and authority.lower() in (host, f"{host}:{port}")


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the login as the value of an Authorization header."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    return bare, f"Basic {b64encode(unquote(login).encode()).decode()}"


_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


@lru_cache(maxsize=256)
def foreign_page_fault(host: str, origin: str | None) -> str | None:
    """Return why a request to a loopback server may come from a foreign web page; None if not.

    A browser sends requests of any web page to loopback addresses. A page whose host name resolves
    to loopback (DNS rebinding) is recognised by the header `Host`, any other page by `Origin`.

    >>> foreign_page_fault("localhost:8080", None) is None
    True
    >>> foreign_page_fault("localhost:8080", "https://example.org")
    'requests from web pages of other origins are refused'
    """
    if not _is_local(f"http://{host}"):
        return "the Host header names another machine"
    if origin is not None and not _is_local(origin):
        return "requests from web pages of other origins are refused"
    return None


def _is_local(url: str) -> bool:
    try:
        return urlsplit(url).hostname in _LOCAL_NAMES
    except ValueError:
        return False
