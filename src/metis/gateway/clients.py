"""How clients are pointed at the gateway: environment, arguments and settings of each."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_KEY_WITHOUT_KEYS = "metis"
"""What clients send if the gateway needs no key; they refuse to start without one."""


class ClientSetup(Struct, frozen=True, kw_only=True):
    """What points one client at the gateway."""

    title: str
    command: str
    environment: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    """Arguments that go before the user's."""

    def lines(self) -> list[str]:
        """Return the lines to paste into a shell."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return [*lines, shlex.join((self.command, *self.arguments))]


def client_setups(
    url: str, key: str | None = None, model: str | None = None
) -> dict[str, ClientSetup]:
    """Return the setups of the five most used clients, by the name of their command."""
    key = key or _KEY_WITHOUT_KEYS
    codex_provider = (
        f'{{name="metis",base_url={json.dumps(url + "/v1")},env_key="METIS_GATEWAY_KEY",'
        'wire_api="responses"}'
    )
    opencode: dict[str, Any] = {
        "provider": {
            "metis": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "metis",
                "options": {"baseURL": f"{url}/v1", "apiKey": key},
                "models": {model or "gpt-5": {}},
            }
        }
    }
    return {
        "claude": ClientSetup(
            title="Claude Code",
            command="claude",
            environment={
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_AUTH_TOKEN": key,
                "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
                **({"ANTHROPIC_MODEL": model} if model else {}),
            },
        ),
        "codex": ClientSetup(
            title="Codex",
            command="codex",
            environment={"METIS_GATEWAY_KEY": key},
            arguments=(
                "-c",
                'model_provider="metis"',
                "-c",
                f"model_providers.metis={codex_provider}",
                *(("-m", model) if model else ()),
            ),
        ),
        "gemini": ClientSetup(
            title="Gemini CLI",
            command="gemini",
            environment={"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": key},
            arguments=("-m", model) if model else (),
        ),
        "opencode": ClientSetup(
            title="opencode",
            command="opencode",
            environment={"OPENCODE_CONFIG_CONTENT": json.dumps(opencode)},
            arguments=("--model", f"metis/{model or 'gpt-5'}"),
        ),
        "aider": ClientSetup(
            title="aider",
            command="aider",
            environment={"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key},
            arguments=("--model", f"openai/{model or 'gpt-5'}"),
        ),
    }
