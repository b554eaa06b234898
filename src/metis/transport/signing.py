"""The headers that authenticate a request: a key, or an AWS signature in place of the secret.

A signature (Signature Version 4) covers the method, the path, some headers and the body. It is
valid for a few minutes only, so that every attempt is signed again.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec import Struct

from metis.adapters.profile import Profile
from metis.transport.keys import key_headers

ALGORITHM = "AWS4-HMAC-SHA256"
# For custom endpoints, whose host names no region.
_DEFAULT_REGION = "us-east-1"
# An access key id and its secret; any other key of Bedrock is a bearer token.
_KEY = re.compile(r"(?P<id>[A-Z0-9]{16,128}):(?P<secret>[^:\s]+)(?::(?P<token>[^:\s]+))?")
_REGION = re.compile(r"\.(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)\.")
_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token")


def auth_headers(  # noqa: PLR0913, PLR0917 - all that a signature covers
    profile: Profile, key: str, method: str, url: str, headers: Mapping[str, str], body: bytes
) -> dict[str, str]:
    """Return the headers to add to a request, so that it is authenticated with a key.

    Raises:
        AuthenticationError: the key cannot be sent in a header.
    """
    service = profile.auth.aws_service
    credentials = read_credentials(key) if service else None
    if service is None or credentials is None:
        return key_headers(profile, key)
    now = datetime.now(UTC)
    return sign(method, url, headers, body, credentials, service=service, now=now)


class Credentials(Struct, frozen=True, kw_only=True):
    """An access key, and the session token of temporary credentials."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id[:4]}…)"


def read_credentials(key: str) -> Credentials | None:
    """Parse a key of the form `id:secret` or `id:secret:token`; None for any other key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return Credentials(
        access_key_id=match["id"], secret_access_key=match["secret"], session_token=match["token"]
    )


def region_of(url: str) -> str:
    """Return the region that an AWS URL names.

    >>> region_of("https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/invoke")
    'eu-west-1'
    """
    match = _REGION.search(urlsplit(url).netloc)
    return _DEFAULT_REGION if match is None else match["region"]


def sign(  # noqa: PLR0913 - all that a signature covers
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: Credentials,
    *,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """Return the headers to add to a request, with its signature among them."""
    moment, parts = now.strftime("%Y%m%dT%H%M%SZ"), urlsplit(url)
    added = {"x-amz-date": moment}
    if credentials.session_token is not None:
        added["x-amz-security-token"] = credentials.session_token
    all_headers = {key.lower(): value.strip() for key, value in headers.items()}
    all_headers |= {"host": parts.netloc, **added}
    signed = [key for key in _SIGNED_HEADERS if key in all_headers]
    canonical_request = "\n".join(
        (
            method,
            # Encoded once more, as AWS does: model ids contain colons, which are %3A in the path.
            quote(parts.path or "/", safe="/~"),
            parts.query,
            *(f"{key}:{all_headers[key]}" for key in signed),
            "",
            ";".join(signed),
            hashlib.sha256(body).hexdigest(),
        )
    )
    region = region_of(url)
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical_request.encode()).hexdigest()
    string_to_sign = f"{ALGORITHM}\n{moment}\n{scope}\n{digest}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for step in (moment[:8], region, service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    signature = hmac.digest(key, string_to_sign.encode(), "sha256").hex()
    added["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
        f"SignedHeaders={';'.join(signed)}, Signature={signature}"
    )
    return added
