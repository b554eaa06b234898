"""All settings with their values and the sources of the values."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec import Struct

from metis.adapters import names as adapter_names
from metis.adapters import profile_of
from metis.canonical.errors import InvalidValueError, SettingsError
from metis.canonical.urls import check_base_url, without_login
from metis.catalog.model_rules import EFFORTS
from metis.events.budget import Budget
from metis.settings.files import SettingsFile, UserPaths
from metis.wire.reasoning import REASONING_OFF, Reasoning

ThemeName = Literal["auto", "light", "dark", "terminal"]
"""The background on which the colours of the chat must be readable."""


class Setting(Struct, frozen=True, kw_only=True):
    """One setting; a name that ends in `.*` is a table whose keys the user chooses."""

    name: str
    kind: Any
    """The type of the value."""
    description: str
    example: str
    """A value in TOML syntax."""
    variable: str | None = None
    """The environment variable that sets it."""
    default: Any = None


_ROWS = (
    Setting(
        name="model",
        kind=str,
        variable="METIS_MODEL",
        description="The model if no option or rule names one: an id, an alias, a provider.",
        example='"sonnet"',
    ),
    Setting(
        name="store",
        kind=str,
        variable="METIS_STORE",
        description="The database of conversations; metis.db in the data directory if not set.",
        example='"sqlite:////home/me/chats.db"',
    ),
    Setting(
        name="tools",
        kind=bool,
        variable="METIS_TOOLS",
        default=True,
        description="Whether models may use the built-in tools in the current directory.",
        example="true",
    ),
    Setting(
        name="command_variables",
        kind=tuple[str, ...],
        default=(),
        description="Environment variables that run_command may see beside PATH, HOME and such.",
        example='["GH_TOKEN"]',
    ),
    Setting(
        name="system",
        kind=str,
        description="The system prompt of new conversations.",
        example='"Answer in one sentence."',
    ),
    Setting(
        name="temperature",
        kind=float,
        description="The sampling temperature; the model's default if not set.",
        example="0.7",
    ),
    Setting(
        name="max_output_tokens",
        kind=int,
        description="The longest response, in tokens; the model's limit if not set.",
        example="4096",
    ),
    Setting(
        name="thinking",
        kind=str,
        variable="METIS_THINKING",
        description="Reasoning effort: off, on, a level from minimal to max, or a token count.",
        example='"high"',
    ),
    Setting(
        name="compact_with",
        kind=str,
        description="The model that summarises old messages when the context window is full.",
        example='"haiku"',
    ),
    Setting(
        name="budget.session_usd",
        kind=Decimal,
        description="The most that one conversation may cost, in US dollars.",
        example="1.00",
    ),
    Setting(
        name="budget.day_usd",
        kind=Decimal,
        variable="METIS_BUDGET_DAY_USD",
        description="The most that all conversations of a day may cost.",
        example="5.00",
    ),
    Setting(
        name="budget.month_usd",
        kind=Decimal,
        description="The most that all conversations of a month may cost.",
        example="50.00",
    ),
    Setting(
        name="base_urls.*",
        kind=str,
        description="Another address of a provider, by provider.",
        example='"http://127.0.0.1:8080"',
    ),
    Setting(
        name="mcp.*",
        kind=tuple[str, ...],
        description="MCP servers by name: a command, or a URL and headers; $NAME is a variable.",
        example='["npx", "-y", "@modelcontextprotocol/server-filesystem", "."]',
    ),
    Setting(
        name="embedding_model",
        kind=str,
        variable="METIS_EMBEDDING_MODEL",
        description="The model of `metis embed` and `metis similar`.",
        example='"ollama:nomic-embed-text"',
    ),
    Setting(
        name="theme",
        kind=ThemeName,
        variable="METIS_THEME",
        default="auto",
        description="Colours: auto (asks the terminal), light, dark, or terminal (as it has them).",
        example='"light"',
    ),
    Setting(
        name="record_bytes",
        kind=bool,
        variable="METIS_RECORD_BYTES",
        default=True,
        description="Whether requests and responses are also stored byte by byte, for metis web.",
        example="false",
    ),
    Setting(
        name="notify_after_s",
        kind=int,
        default=30,
        description="Notify when an answer took so many seconds; 0 is never.",
        example="30",
    ),
    Setting(
        name="model_tools.*",
        kind=bool,
        description="Whether a model gets tools, by model; asked of the server if not set.",
        example="false",
    ),
    Setting(
        name="fallbacks.*",
        kind=tuple[str, ...],
        description='The models to fall back to, by the model that is down; "*" is any.',
        example='["gpt-5", "haiku"]',
    ),
)

ADDRESS_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "OPENAI_BASE_URL": ("openai", "openai-responses"),
    "ANTHROPIC_BASE_URL": ("anthropic",),
    "GOOGLE_GEMINI_BASE_URL": ("gemini",),
    "OLLAMA_HOST": ("ollama",),
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": ("bedrock", "bedrock-converse"),
}
"""The environment variables with addresses of providers, which the providers' SDKs also read."""

SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}
"""All settings by name."""


def find_setting(name: str, *, location: str) -> Setting:
    """Return the setting for a name such as `budget.day_usd` or `base_urls.ollama`.

    Raises:
        SettingsError: there is no such setting.
    """
    table, dot, key = name.partition(".")
    row = SETTINGS.get(name) or (SETTINGS.get(f"{table}.*") if dot and key else None)
    if row is not None and "*" not in name.partition(".")[0]:
        return row
    near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `metis config` lists all settings"
    raise SettingsError(f"there is no setting {name!r}{hint}", place=location)


AUTO = "auto"
"""The level without a reasoning option: the model decides."""
LEVELS = ("off", "on", *EFFORTS[1:])
"""The levels that can be set."""


def parse_thinking(text: str) -> Reasoning | None:
    """Return the reasoning option for a level or a number of tokens; None for `auto`.

    >>> parse_thinking("high"), parse_thinking("4000"), parse_thinking("auto")
    (Reasoning(effort='high', budget_tokens=None), Reasoning(effort=None, budget_tokens=4000), None)

    Raises:
        InvalidValueError: the text is neither a level nor a number of tokens.
    """
    level = text.strip().lower()
    if level == AUTO:
        return None
    if level in {"off", "none"}:
        return REASONING_OFF
    if level == "on":
        return Reasoning()
    for effort in EFFORTS:
        if level == effort:
            return Reasoning(effort)
    if level.isascii() and level.isdigit() and int(level):
        return Reasoning(None, int(level))
    levels = ", ".join((*LEVELS, AUTO))
    raise InvalidValueError(f"thinking is one of {levels}, or a number of tokens, not {text!r}")


def format_thinking(reasoning: Reasoning | None) -> str:
    """Format a reasoning option for display.

    >>> format_thinking(Reasoning("high")), format_thinking(Reasoning(None, 4000))
    ('high', '4000 tokens')
    """
    if reasoning is None:
        return AUTO
    if reasoning.is_off:
        return "off"
    if reasoning.budget_tokens is not None:
        return f"{reasoning.budget_tokens} tokens"
    return reasoning.effort or "on"


Source = Literal["option", "environment", "file", "default"]
"""The source of a value, in order of precedence."""

_VERSION_SUFFIX = re.compile(r"/(v\d+(?:beta)?)$")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Origin(Struct, frozen=True):
    """The source of a value, with the option, variable or line that sets it."""

    source: Source
    location: str = ""


class Settings(Struct, frozen=True, kw_only=True):
    """The values of all settings; None is unset."""

    model: str | None = None
    store: str | None = None
    tools: bool = True
    command_variables: tuple[str, ...] = ()
    system: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    thinking: str | None = None
    """A text for `parse_thinking`."""
    compact_with: str | None = None
    budget: Budget = Budget()
    base_urls: Mapping[str, str] = {}
    model_tools: Mapping[str, bool] = {}
    mcp: Mapping[str, tuple[str, ...]] = {}
    embedding_model: str | None = None
    theme: ThemeName = "auto"
    record_bytes: bool = True
    notify_after_s: int = 30
    fallbacks: Mapping[str, tuple[str, ...]] = {}


class LoadedSettings(Struct, frozen=True, kw_only=True):
    """The settings, with the source of each."""

    settings: Settings
    values: Mapping[str, Any]
    """Every value by its full name, such as `budget.day_usd`."""
    origins: Mapping[str, Origin]


def load(
    options: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    paths: UserPaths | None = None,
) -> LoadedSettings:
    """Load all settings; an option precedes the environment, and that precedes the file.

    Raises:
        SettingsError: an unknown name or an invalid value; the error has its location.
    """
    values = {name: row.default for name, row in SETTINGS.items() if not name.endswith(".*")}
    origins = dict.fromkeys(values, Origin("default"))
    file = SettingsFile.read((paths or UserPaths.from_environment(environment)).settings)
    for name, value, origin in (
        *_from_file(file),
        *_from_environment(environment),
        *_from_options(options or {}),
    ):
        values[name], origins[name] = value, origin
    return LoadedSettings(settings=_settings(values, origins), values=values, origins=origins)


def check_file(file: SettingsFile) -> None:
    """Raise a SettingsError if a value of a file is invalid."""
    items = list(_from_file(file))
    values = {name: value for name, value, _ in items}
    _budget(_table(values, "budget"), {name: origin for name, _, origin in items})


def check_value(row: Setting, name: str, value: Any, *, location: str) -> Any:
    """Return the value converted to the type of its setting.

    Raises:
        SettingsError: the value has another type, or is invalid.
    """
    try:
        # Amounts are numbers in TOML and texts in the environment. Other types are not converted,
        # so that `tools = "false"` is an error and not true.
        converted = msgspec.convert(value, row.kind, strict=row.kind is not Decimal)
    except msgspec.ValidationError:
        shown = without_login(repr(value))
        fault = f"{name}: expected {_TYPE_NAMES[row.kind]}, got {shown}; e.g. {row.example}"
        raise SettingsError(fault, place=location) from None
    if name == "thinking":
        _check_thinking(converted, location)
    if name.startswith("base_urls."):
        _check_address(name.partition(".")[2], converted, location)
    return converted


def _check_thinking(text: str, location: str) -> None:
    try:
        parse_thinking(text)
    except InvalidValueError as error:
        raise SettingsError(error.reason, place=location) from None


def _check_address(provider: str, url: str, location: str) -> None:
    if provider not in adapter_names():
        names = ", ".join(adapter_names())
        raise SettingsError(f"unknown provider {provider!r}. Providers: {names}", place=location)
    try:
        check_base_url(url)
    except InvalidValueError as error:
        raise SettingsError(without_login(error.reason), place=location) from None


def normalised_base_url(provider: str, url: str, location: str) -> str:
    """Return an address to which the paths of a provider can be appended.

    OpenAI's programs expect `/v1` in the address, Anthropic's do not; both forms are accepted.

    Raises:
        SettingsError: the URL is not an address, or there is no such provider.
    """
    _check_address(provider, url, location)
    url = url.rstrip("/")
    version = _VERSION_SUFFIX.search(url)
    path = profile_of(provider).path
    return url[: version.start()] if version and path.startswith(f"/{version[1]}/") else url


def addresses_from_environment(
    environment: Mapping[str, str],
) -> Iterator[tuple[str, str, str]]:
    """Yield the provider, its address and the variable for each address in the environment."""
    for variable, providers in ADDRESS_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        # OLLAMA_HOST may be `host:port`. A server listens on 0.0.0.0, but clients cannot connect
        # to that address everywhere.
        url = (text if "://" in text else f"http://{text}").replace("//0.0.0.0", "//127.0.0.1")
        for provider in providers:
            yield provider, normalised_base_url(provider, url, f"${variable}"), variable


_TYPE_NAMES: Mapping[Any, str] = {
    str: "text in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Decimal: "an amount",
    tuple[str, ...]: "a list of texts",
    ThemeName: "auto, light, dark or terminal",
}


def _from_file(file: SettingsFile) -> Iterator[tuple[str, Any, Origin]]:
    for name, value in file.values.items():
        location = file.location(name)
        row = find_setting(name, location=location)
        # Decimals are for money; a temperature is an ordinary float.
        number = float(value) if row.kind is float and isinstance(value, Decimal) else value
        yield name, check_value(row, name, number, location=location), Origin("file", location)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, Origin]]:
    for name, row in SETTINGS.items():
        text = environment.get(row.variable) if row.variable else None
        if row.variable is not None and text:  # an empty variable counts as unset
            location = f"${row.variable}"
            value = _switch(text, name, location) if row.kind is bool else text
            checked = check_value(row, name, value, location=location)
            yield name, checked, Origin("environment", location)
    for provider, url, variable in addresses_from_environment(environment):
        yield f"base_urls.{provider}", url, Origin("environment", f"${variable}")


def _from_options(options: Mapping[str, Any]) -> Iterator[tuple[str, Any, Origin]]:
    for name, value in options.items():
        if value is not None:
            yield name, value, Origin("option", f"--{name}")


def _switch(text: str, name: str, location: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise SettingsError(f"{name}: expected 1 or 0, got {text!r}", place=location)


def _settings(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    plain = {name: value for name, value in values.items() if "." not in name}
    return Settings(
        **plain,
        budget=_budget(_table(values, "budget"), origins),
        base_urls=_table(values, "base_urls"),
        model_tools=_table(values, "model_tools"),
        mcp=_table(values, "mcp"),
        fallbacks=_table(values, "fallbacks"),
    )


def _budget(limits: Mapping[str, Any], origins: Mapping[str, Origin]) -> Budget:
    try:
        return Budget(**limits)
    except InvalidValueError as error:
        name = f"budget.{error.path.removeprefix('$.')}"
        raise SettingsError(f"{name}: {error.reason}", place=origins[name].location) from None


def _table(values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the values of a table by their names in it."""
    prefix = f"{table}."
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
