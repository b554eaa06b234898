"""Errors as one line with the next step, at the command line and in the chat; exit codes."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from metis import adapters
from metis.canonical.errors import (
    AmbiguousModelError,
    AuthenticationError,
    BudgetExceededError,
    ContextOverflowError,
    InvalidAnswerError,
    MetisError,
    NetworkError,
    NoModelError,
    ProblemsError,
    ProviderError,
    RateLimitError,
    RedirectError,
    RefusedChoiceError,
    ResponseLimitError,
    ServerError,
    SwapRefusedError,
    UnknownAdapterError,
    UnknownModelError,
    UnknownSessionError,
    WebPageError,
)
from metis.canonical.urls import without_login
from metis.cli.output import echo_notice

# The command ran, but its result is empty, cut off or refused.
INCOMPLETE = 1
# The command cannot run: an option, a name, a file, a setting or the store is wrong.
INVALID = 2
# An API key is missing, wrong or not allowed.
NO_KEY = 3
# The provider failed or was not reached; the same command may succeed later.
PROVIDER_FAILED = 4
# A budget is spent.
BUDGET_SPENT = 5
# The provider refused the request; the same command will fail again.
REJECTED = 6

_MAX_CANDIDATES = 4
# `@notes.txt` may be meant as a file or as a model: the error then names both.
_FILE_NAME = re.compile(r"/|\.[A-Za-z]\w*$")
# Sources of a NetworkError whose text already gives the next step.
_SELF_EXPLAINING = frozenset({"local", "the package index"})
_LOCAL_SERVERS = frozenset({"ollama", "ollama-openai", "lmstudio", "llamacpp", "vllm"})


class _Explanation(NamedTuple):
    """What went wrong, and what to do about it at the command line and in the chat."""

    problem: str
    command_step: str = ""
    chat_step: str = ""


def report_error(error: Exception) -> int:
    """Print an error as one line on standard error, and return the exit code.

    An error that is neither a MetisError nor an OSError is raised again: it is a bug.
    """
    if not isinstance(error, MetisError | OSError):
        raise error
    echo_notice(f"metis: {error_line(error)}")
    return exit_code(error)


def exit_code(error: BaseException) -> int:  # noqa: PLR0911 - one line per code
    """Return the exit code for an error."""
    match error:
        case AuthenticationError():
            return NO_KEY
        case BudgetExceededError():
            return BUDGET_SPENT
        case InvalidAnswerError() | ResponseLimitError():
            return INCOMPLETE
        # The received part of the response is printed and stored.
        case NetworkError() if error.response_began:
            return INCOMPLETE
        case NetworkError() | RateLimitError() | ServerError() | WebPageError():
            return PROVIDER_FAILED
        case ProviderError():
            return REJECTED
        case _:
            return INVALID


def error_line(error: BaseException) -> str:
    """Return what happened and what to do about it at the command line, in one line."""
    explanation = _explain(error)
    text = "; ".join(filter(None, (explanation.problem, explanation.command_step)))
    return without_login(text)


def chat_error_text(error: BaseException) -> str:
    """Return what happened and what to do about it in the chat, as sentences."""
    if not isinstance(error, MetisError | OSError):
        return (
            f"Internal error in metis ({type(error).__name__}). The conversation is saved; "
            "/retry, or switch with /model."
        )
    explanation = _explain(error)
    sentences = (_sentence(text) for text in (explanation.problem, explanation.chat_step) if text)
    return without_login(" ".join(sentences))


def retry_notice(error_class: str, wait_s: float) -> str:
    """Return the line that announces another attempt after a failed call."""
    problem = _TEMPORARY_FAILURES.get(error_class, error_class)
    return f"{problem}; retrying in {wait_s:.0f} s"


# The first words of a retry notice, by the class of the error.
_TEMPORARY_FAILURES = {
    "NetworkError": "Connection failed",
    "RateLimitError": "Rate limit reached",
    "ServerError": "The provider failed",
}


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a file name or id at its start stays."""
    # `config.toml:2: …` must not become `Config.toml:2: …`.
    starts_with_word = text.partition(" ")[0].rstrip(",;").isalpha()
    capitalised = text[:1].upper() + text[1:] if starts_with_word else text
    return capitalised if capitalised.endswith((".", "!", "?")) else f"{capitalised}."


def _explain(error: BaseException) -> _Explanation:  # noqa: C901, PLR0911 - one short case a kind
    match error:
        case ProviderError():
            return _explain_provider(error)
        case UnknownModelError():
            return _unknown_model(error)
        case AmbiguousModelError():
            candidates = ", ".join(error.candidates[:_MAX_CANDIDATES])
            more = len(error.candidates) - _MAX_CANDIDATES
            suffix = f" and {more} more" if more > 0 else ""
            problem = f"{error.name!r} matches several models: {candidates}{suffix}"
            return _Explanation(problem, "use the full id", "use the full id")
        case UnknownAdapterError():
            return _Explanation(
                f"unknown provider {error.name!r}. Providers: {', '.join(error.known)}"
            )
        case UnknownSessionError():
            problem = f"no session has {error.session_id!r} in its id or title"
            return _Explanation(problem, "`metis sessions` lists all", "/sessions lists all")
        case BudgetExceededError():
            command_step = f"raise it with `metis config set budget.{error.scope}_usd AMOUNT`"
            return _Explanation(_line(str(error)), command_step, "/budget sets another")
        case RefusedChoiceError():
            steps = _REFUSED_STEPS.get(error.reason, ("", "/model picks another"))
            return _Explanation(_line(str(error)), *steps)
        case SwapRefusedError() if error.capability == "not_configured":
            return _missing_key(error)
        case NoModelError():
            tried = "; ".join(f"{model}: {_line(reason)}" for model, reason in error.tried)
            problem = f"no model can be used ({tried or 'none is configured'})"
            return _Explanation(problem, "choose one with -m", "choose one with /model")
        case ProblemsError():
            # The first problem often causes the others, and an error is one line.
            first, *others = error.problems
            suffix = f" (and {len(others)} more)" if others else ""
            return _Explanation(f"{error.subject}: {first.path}: {_line(first.text)}{suffix}")
        case OSError():
            location = f"{error.filename}: " if error.filename else ""
            return _Explanation(f"{location}{error.strerror or type(error).__name__}")
        case _:
            return _Explanation(_line(str(error)))


def _explain_provider(error: ProviderError) -> _Explanation:  # noqa: PLR0911 - one short case a kind
    provider, text = error.provider or "the provider", _line(error.text)
    match error:
        case AuthenticationError() if error.status is None:
            # Raised by metis before a request, with the next step in its text.
            return _Explanation(text)
        case AuthenticationError():
            source = "`metis doctor` shows where it comes from"
            return _Explanation(
                f"{provider} rejected the API key: {text}",
                f"check the key; {source}",
                f"fix the key ({source}) and /retry, or switch with /model",
            )
        case NetworkError():
            return _explain_network(error, provider, text)
        case ResponseLimitError():
            problem = f"the response of {provider} was ended: {text}; what arrived is saved"
            return _Explanation(problem, "", "/retry, or switch with /model")
        case RedirectError() | WebPageError():
            step = f"check the network and the setting base_urls.{provider}"
            return _Explanation(f"{provider} cannot be used: {text}", step, f"{step}, then /retry")
        case RateLimitError():
            wait = f"in {error.retry_after_s:g} s" if error.retry_after_s else "later"
            problem = f"{provider} rate limit reached: {text}"
            return _Explanation(
                problem, f"try again {wait}", f"/retry {wait}, or switch with /model"
            )
        case ContextOverflowError():
            return _Explanation(
                f"the conversation is too long for the model: {text}",
                "choose a model with a larger context window, or use /compact in the chat",
                "/compact summarises old messages",
            )
        case ServerError():
            problem = f"{provider} failed: {text}"
            return _Explanation(problem, "try again", "/retry, or switch with /model")
        case _:
            problem = f"{provider} rejected the request: {text}"
            return _Explanation(problem, "", "rephrase, or switch with /model")


def _explain_network(error: NetworkError, provider: str, text: str) -> _Explanation:
    if error.provider in _SELF_EXPLAINING:
        return _Explanation(text)
    if error.response_began:
        problem = f"the connection to {provider} broke off in the middle of the response"
        return _Explanation(problem, "try again", "/retry tries again")
    problem = f"could not reach {provider}: {text}"
    if error.provider in _LOCAL_SERVERS:
        command_step = "start the server, or choose another model with -m"
        return _Explanation(problem, command_step, "start it and /retry, or switch with /model")
    command_step = "check the network; `metis -m sim` works without one"
    return _Explanation(problem, command_step, "check the network and /retry, or use /model")


def _unknown_model(error: UnknownModelError) -> _Explanation:
    kind = "file or model" if _FILE_NAME.search(error.model) else "model"
    problem = f"there is no {kind} {error.model!r}"
    near = re.match(r"did you mean (.+?)\?", error.hint)
    if near:
        return _Explanation(f"{problem}; did you mean {near[1]}?")
    return _Explanation(problem, "`metis models` lists all", "/models lists all")


def _missing_key(error: SwapRefusedError) -> _Explanation:
    provider = error.model.partition(":")[0]
    variable = adapters.profile_of(provider).auth.variable if provider in adapters.names() else None
    if variable is None:
        return _Explanation(_line(str(error)))
    active = f". Still using {error.active}" if error.active else ""
    step = f"set {variable} or run `metis keys set {provider}`"
    return _Explanation(f"no API key for {provider}: {step}{active}")


# The next step at the command line and in the chat, by why the model cannot be used.
_REFUSED_STEPS: Mapping[str, tuple[str, str]] = {
    "not_configured": (
        "store a key with `metis keys set PROVIDER`; `metis doctor` shows what is missing",
        "store a key with `metis keys set PROVIDER`, or pick another with /model",
    ),
    "no_tool_support": (
        "add --no-tools, or choose another model with -m",
        "restart with --no-tools, or pick another with /model",
    ),
    "provider_unavailable": ("try again later", "/model picks another, /retry tries now"),
}


def _line(text: str) -> str:
    """Return a text as one line without its full stop."""
    return " ".join(text.split()).rstrip(".")
