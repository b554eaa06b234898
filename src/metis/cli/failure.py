"""Failure: what went wrong in one sentence with what to do, and the exit code that says so."""

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
    UnknownModelError,
)

NOT_WHOLE = 1
"""It was done, and the result is not what was hoped for: nothing found, cut off, refused."""
WRONG = 2
"""What was asked cannot be done: an option, a name, a file, a setting, the store."""
NO_KEY = 3
"""A key is missing, wrong or not allowed."""
UNREACHED = 4
"""The provider failed or was not reached; the same may succeed later."""
SPENT = 5
"""A budget is spent."""
INTERRUPTED = 130
"""Ctrl-C."""

P = ParamSpec("P")
_CANDIDATES = 4
_OWN_WORDS = frozenset({"local", "the package index"})
"""Who is no provider, and says by itself what to do."""
_LOCAL_SERVERS = frozenset({"ollama", "ollama-openai", "lmstudio", "llamacpp", "vllm"})


def guarded(work: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
    """Run a command; whatever fails is one sentence on standard error and an exit code."""
    try:
        return partial(work, *args, **kwargs)()
    except BrokenPipeError:
        # Whoever read the output has enough of it, as `head` does: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_WHOLE
    except (MetisError, OSError) as error:
        click.echo(f"metis: {explain(error)}", err=True)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    match error:
        case AuthenticationError():
            return NO_KEY
        case BudgetExceededError():
            return SPENT
        case ProviderError():
            return UNREACHED
        case InvalidAnswerError():
            return NOT_WHOLE
        case _:
            return WRONG


def explain(error: BaseException) -> str:
    """What happened and what to do about it, in one line."""
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return words(error)
    return _line(str(error))


def _unknown_model(error: UnknownModelError) -> str:
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


_WORDS: tuple[tuple[type[BaseException], Callable[[Any], str]], ...] = (
    (UnknownModelError, _unknown_model),
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
