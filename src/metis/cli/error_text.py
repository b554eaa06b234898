"""Errors as one line with the next step, at the command line and in the chat; exit codes."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

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
    RefusedChoiceError,
    ServerError,
    SwapRefusedError,
    UnknownAdapterError,
    UnknownModelError,
    UnknownSessionError,
)

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
# Ctrl-C, as shells report it.
INTERRUPTED = 130

_MAX_CANDIDATES = 4
# `@notes.txt` may be meant as a file or as a model: the error then names both.
_FILE_NAME = re.compile(r"/|\.[A-Za-z]\w*$")
# What a NetworkError says if a response had begun when the connection failed.
_BROKEN_STREAM = re.compile(r"\b(stream|cut off|broke off|did not end)\b")
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

    An error that is neither ours nor of the system is raised again: it is a bug.
    """
    if not isinstance(error, MetisError | OSError):
        raise error
    click.echo(f"metis: {error_line(error)}", err=True)
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    match error:
        case AuthenticationError():
            return NO_KEY
        case BudgetExceededError():
            return BUDGET_SPENT
        case ProviderError():
            return PROVIDER_FAILED
        case InvalidAnswerError():
            return INCOMPLETE
        case _:
            return INVALID


def error_line(error: BaseException) -> str:
    """Return what happened and what to do about it at the command line, in one line."""
    explanation = _explain(error)
    return "; ".join(filter(None, (explanation.problem, explanation.command_step)))


def chat_error_text(error: BaseException) -> str:
    """Return what happened and what to do about it in the chat, as sentences."""
    if not isinstance(error, MetisError | OSError):
        return (
            f"Internal error in metis ({type(error).__name__}). The conversation is saved; "
            "/retry, or switch with /model."
        )
    explanation = _explain(error)
    return " ".join(
        _sentence(text) for text in (explanation.problem, explanation.chat_step) if text
    )


def retry_notice(error_class: str, wait_s: float) -> str:
    """Return the line that announces another attempt after a failed call."""
    problem = _TEMPORARY_FAILURES.get(error_class, error_class)
    return f"{problem}; retrying in {wait_s:.0f} s"


# What a retry notice says, by the class of the error.
_TEMPORARY_FAILURES = {
    "NetworkError": "Connection failed",
    "RateLimitError": "Rate limit reached",
    "ServerError": "The provider failed",
}


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a file name or id at its start stays."""
    # `config.toml:2: …` must not become `Config.toml:2: …`.
    starts_with_word = text.partition(" ")[0].isalpha()
    capitalised = text[:1].upper() + text[1:] if starts_with_word else text
    return capitalised if capitalised.endswith((".", "!", "?")) else f"{capitalised}."


def _explain(error: BaseException) -> _Explanation:
    for kind, explain in _EXPLANATIONS.items():
        if isinstance(error, kind):
            return explain(error)
    return _Explanation(_line(str(error)))


def _unknown_model(error: UnknownModelError) -> _Explanation:
    kind = "file or model" if _FILE_NAME.search(error.model) else "model"
    problem = f"there is no {kind} {error.model!r}"
    near = re.match(r"did you mean (.+?)\?", error.hint)
    if near:
        return _Explanation(f"{problem}; did you mean {near[1]}?")
    return _Explanation(problem, "`metis models` lists all", "/models lists all")


def _ambiguous_model(error: AmbiguousModelError) -> _Explanation:
    candidates = ", ".join(error.candidates[:_MAX_CANDIDATES])
    more = len(error.candidates) - _MAX_CANDIDATES
    rest = f" and {more} more" if more > 0 else ""
    step = "use the full id"
    return _Explanation(f"{error.name!r} matches several models: {candidates}{rest}", step, step)


def _unknown_provider(error: UnknownAdapterError) -> _Explanation:
    return _Explanation(f"unknown provider {error.name!r}. Providers: {', '.join(error.known)}")


def _unknown_session(error: UnknownSessionError) -> _Explanation:
    problem = f"no session has {error.session_id!r} in its id or title"
    return _Explanation(problem, "`metis sessions` lists all", "/sessions lists all")


def _authentication(error: AuthenticationError) -> _Explanation:
    # Raised by us before a request, with the next step in the text.
    if error.status is None:
        return _Explanation(_line(error.text))
    return _Explanation(
        f"{_provider(error)} rejected the API key: {_line(error.text)}",
        "check the key; `metis doctor` shows where it comes from",
        "fix the key (`metis doctor` shows where it comes from) and /retry, or switch with /model",
    )


def _rate_limit(error: RateLimitError) -> _Explanation:
    wait = f"in {error.retry_after_s:g} s" if error.retry_after_s else "later"
    return _Explanation(
        f"{_provider(error)} rate limit reached: {_line(error.text)}",
        f"try again {wait}",
        f"/retry {wait}, or switch with /model",
    )


def _network(error: NetworkError) -> _Explanation:
    if error.provider in _SELF_EXPLAINING:
        return _Explanation(_line(error.text))
    if _BROKEN_STREAM.search(error.text):
        problem = f"the connection to {_provider(error)} broke off in the middle of the response"
        return _Explanation(problem, "try again", "/retry tries again")
    is_local = error.provider in _LOCAL_SERVERS
    return _Explanation(
        f"could not reach {_provider(error)}: {_line(error.text)}",
        "start the server, or choose another model with -m"
        if is_local
        else "check the network; `metis -m sim` works without one",
        f"{'start the server' if is_local else 'check the network'} and /retry, "
        "or switch with /model",
    )


def _context_overflow(error: ContextOverflowError) -> _Explanation:
    return _Explanation(
        f"the conversation is too long for the model: {_line(error.text)}",
        "choose a model with a larger context window, or summarise it with /compact in the chat",
        "/compact summarises old messages",
    )


def _server(error: ServerError) -> _Explanation:
    problem = f"{_provider(error)} failed: {_line(error.text)}"
    return _Explanation(problem, "try again", "/retry, or switch with /model")


def _rejected_request(error: ProviderError) -> _Explanation:
    problem = f"{_provider(error)} rejected the request: {_line(error.text)}"
    return _Explanation(problem, "", "rephrase, or switch with /model")


def _budget(error: BudgetExceededError) -> _Explanation:
    return _Explanation(
        _line(str(error)),
        f"raise it with `metis config set budget.{error.scope}_usd AMOUNT`",
        "/budget sets another",
    )


def _refused_choice(error: RefusedChoiceError) -> _Explanation:
    command_step, chat_step = _REFUSED_STEPS.get(error.reason, ("", "/model picks another"))
    return _Explanation(_line(str(error)), command_step, chat_step)


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


def _refused_swap(error: SwapRefusedError) -> _Explanation:
    # The text of the error class is required wording, and says that nothing was changed (M-247).
    if error.capability != "not_configured":
        return _Explanation(_line(str(error)))
    provider = error.model.partition(":")[0]
    step = f"run `metis keys set {provider}` or set its environment variable"
    active = f". Still using {error.active}" if error.active else ""
    return _Explanation(f"cannot switch to {error.model}: {_line(error.why)}; {step}{active}")


def _no_model(error: NoModelError) -> _Explanation:
    tried = "; ".join(f"{model}: {_line(reason)}" for model, reason in error.tried)
    problem = f"no model can be used ({tried or 'none is configured'})"
    return _Explanation(problem, "choose one with -m", "choose one with /model")


def _problems(error: ProblemsError) -> _Explanation:
    # The first problem often causes the others, and an error is one line.
    first = error.problems[0]
    more = len(error.problems) - 1
    rest = f" (and {more} more)" if more else ""
    return _Explanation(f"{error.subject}: {first.path}: {_line(first.text)}{rest}")


def _system(error: OSError) -> _Explanation:
    location = f"{error.filename}: " if error.filename else ""
    return _Explanation(f"{location}{error.strerror or type(error).__name__}")


def _provider(error: ProviderError) -> str:
    return error.provider or "the provider"


def _line(text: str) -> str:
    """Return a text as one line without its full stop."""
    return " ".join(text.split()).rstrip(".")


# How each kind of error is explained, subclasses before their bases; others have a full text.
_EXPLANATIONS: Mapping[type[BaseException], Callable[[Any], _Explanation]] = {
    UnknownModelError: _unknown_model,
    AmbiguousModelError: _ambiguous_model,
    UnknownAdapterError: _unknown_provider,
    UnknownSessionError: _unknown_session,
    AuthenticationError: _authentication,
    NetworkError: _network,
    RateLimitError: _rate_limit,
    ContextOverflowError: _context_overflow,
    ServerError: _server,
    ProviderError: _rejected_request,
    BudgetExceededError: _budget,
    RefusedChoiceError: _refused_choice,
    SwapRefusedError: _refused_swap,
    NoModelError: _no_model,
    ProblemsError: _problems,
    OSError: _system,
}
