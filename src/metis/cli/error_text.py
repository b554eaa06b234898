"""Errors as one line with the next step, for the command line and the chat.

And their exit codes.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec

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
    UnknownModelError,
    UnknownSessionError,
)

INCOMPLETE = 1
"""It was done, and the result is not what was hoped for: nothing found, cut off, refused."""
INVALID = 2
"""What was asked cannot be done: an option, a name, a file, a setting, the store."""
NO_KEY = 3
"""A key is missing, wrong or not allowed."""
PROVIDER_FAILED = 4
"""The provider failed or was not reached; the same may succeed later."""
BUDGET_SPENT = 5
"""A budget is spent."""
INTERRUPTED = 130
"""Ctrl-C."""

P = ParamSpec("P")
_CANDIDATES = 4
_OWN_WORDS = frozenset({"local", "the package index"})
"""Who is no provider, and says by itself what to do."""
_LOCAL_SERVERS = frozenset({"ollama", "ollama-openai", "lmstudio", "llamacpp", "vllm"})


def run_guarded(work: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
    """Run a command; whatever fails is one sentence on standard error and an exit code."""
    try:
        return partial(work, *args, **kwargs)()
    except BrokenPipeError:
        # Whoever read the output has enough of it, as `head` does: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INCOMPLETE
    except (MetisError, OSError) as error:
        click.echo(f"metis: {error_line(error)}", err=True)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
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
    """What happened and what to do about it, in one line."""
    for kind, words in _LINES:
        if isinstance(error, kind):
            return words(error)
    return _line(str(error))


def _unknown_model_line(error: UnknownModelError) -> str:
    near = re.match(r"did you mean (.+?)\?", error.hint)
    hint = f"did you mean {near[1]}? " if near else ""
    return f"no model is called {error.model!r}; {hint}`metis models` lists all"


def _ambiguous(error: AmbiguousModelError) -> str:
    some = ", ".join(error.candidates[:_CANDIDATES])
    more = len(error.candidates) - _CANDIDATES
    rest = f" and {more} more" if more > 0 else ""
    return f"{error.name!r} fits several models: {some}{rest}; write the whole id"


def _too_often(error: RateLimitError) -> str:
    wait = f" in {error.retry_after_s:g} s" if error.retry_after_s else " later"
    return f"{_who(error)} takes no more for now: {_line(error.text)}; try again{wait}"


def _too_long(error: ContextOverflowError) -> str:
    return f"{_line(str(error))}; sum it up with /compact, or take a larger model"


def _spent(error: BudgetExceededError) -> str:
    return f"{error}; `metis config set budget.{error.scope}_usd AMOUNT` raises it"


def _refused(error: RefusedChoiceError) -> str:
    hint = "; `metis doctor` says what is missing" if error.reason == "not_configured" else ""
    return f"{_line(str(error))}{hint}"


def _system(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or type(error).__name__}"


def _key(error: AuthenticationError) -> str:
    if error.status is None:
        return error.text
    hint = "check the key; `metis doctor` says where it comes from"
    return f"{_who(error)} does not take the key: {_line(error.text)}; {hint}"


def _unreached(error: NetworkError) -> str:
    if error.provider in _OWN_WORDS:
        return _line(error.text)
    is_local = error.provider in _LOCAL_SERVERS
    hint = (
        "start the server, or name another model with -m"
        if is_local
        else "is there a network? `metis -m sim` works without one"
    )
    return f"{_who(error)} was not reached: {_line(error.text)}; {hint}"


def _no_model(error: NoModelError) -> str:
    tried = "; ".join(f"{model}: {reason}" for model, reason in error.tried)
    return f"no model can take this turn ({tried or 'none is named'}); name one with -m"


def _problems(error: ProblemsError) -> str:
    first = error.problems[0]
    more = len(error.problems) - 1
    rest = f" (and {more} more)" if more else ""
    return f"{error.subject}: {first.path}: {_line(first.text)}{rest}"


def _who(error: ProviderError) -> str:
    return error.provider or "the provider"


def _line(text: str) -> str:
    """A text as one line."""
    return " ".join(text.split()).rstrip(".")


_LINES: tuple[tuple[type[BaseException], Callable[[Any], str]], ...] = (
    (UnknownModelError, _unknown_model_line),
    (AmbiguousModelError, _ambiguous),
    (AuthenticationError, _key),
    (NetworkError, _unreached),
    (RateLimitError, _too_often),
    (ContextOverflowError, _too_long),
    (BudgetExceededError, _spent),
    (RefusedChoiceError, _refused),
    (NoModelError, _no_model),
    (ProblemsError, _problems),
    (OSError, _system),
)
"""What is said about each kind of error; others speak for themselves."""


_FILE = re.compile(r"/|\.[A-Za-z]\w*$")
"""What the name of a file has, and that of a model hardly."""


def chat_error_text(error: Exception) -> str:
    """What happened and what to do, in a sentence."""
    match error:
        case ProviderError():
            return _of_provider(error)
        case MetisError():
            return _of_metis(error)
        case OSError():
            return _ended(error_line(error))
        case _:
            return (
                f"Something broke inside of metis ({type(error).__name__}); what was said is kept, "
                "/retry, or take another model with /model."
            )


def _of_provider(error: ProviderError) -> str:
    who, text = error.provider or "The provider", _bare(error.text)
    match error:
        case AuthenticationError():
            return (
                f"{who} does not take the key ({text}); `metis doctor` says where it is from: "
                "mend it and /retry, or take another model with /model."
            )
        case RateLimitError():
            wait = "a little" if error.retry_after_s is None else f"{error.retry_after_s:.0f} s"
            return f"{who} asks to wait ({text}); /retry in {wait}, or take another /model."
        case NetworkError():
            return (
                f"{who} was not reached ({text}); look at the network and /retry, "
                "or take another model with /model."
            )
        case ContextOverflowError():
            return f"This is more than the model takes ({text}); /compact sums up what is old."
        case ServerError():
            return f"{who} failed ({text}); /retry, or take another model with /model."
        case _:
            return f"{who} refused ({text}); say it otherwise, or take another /model."


def _of_metis(error: MetisError) -> str:  # noqa: PLR0911 - one short case a kind
    match error:
        case UnknownModelError():
            return _unknown_model_text(error)
        case UnknownSessionError():
            return f"No session has {error.session_id!r} in its id or title; /sessions lists all."
        case AmbiguousModelError():
            return f"{error.name!r} fits several; name one of {', '.join(error.candidates)}."
        case NoModelError():
            model, reason = error.tried[0] if error.tried else ("nobody", "is named")
            return f"No model can take this turn ({model} {_bare(reason)}); /model chooses one."
        case RefusedChoiceError():
            other = ", or start with --no-tools" if error.reason == "no_tool_support" else ""
            return f"{_bare(str(error))}; /model chooses another{other}."
        case BudgetExceededError():
            return f"{_bare(str(error)).capitalize()}; /budget sets another."
        case _:
            return _ended(error_line(error))


def _unknown_model_text(error: UnknownModelError) -> str:
    near = re.match(r"did you mean .+?\?", error.hint)
    hint = near[0] if near else "/models lists all."
    what = "file and no model" if _FILE.search(error.model) else "model"
    return f"There is no {what} {error.model!r}; {hint}"


def _bare(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _ended(text: str) -> str:
    """A whole sentence; a file at its start is still called as it is."""
    is_word = text.partition(" ")[0].isalpha()
    whole = text[:1].upper() + text[1:] if is_word else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
