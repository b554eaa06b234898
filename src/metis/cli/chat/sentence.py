"""Sentences: every error as what happened and what to do, for people who did nothing wrong."""

import re

from metis.canonical.errors import (
    AmbiguousModelError,
    AuthenticationError,
    BudgetExceededError,
    ContextOverflowError,
    MetisError,
    NetworkError,
    NoModelError,
    ProviderError,
    RateLimitError,
    RefusedChoiceError,
    ServerError,
    UnknownModelError,
    UnknownSessionError,
)
from metis.cli.failure import explain

_FILE = re.compile(r"/|\.[A-Za-z]\w*$")
"""What the name of a file has, and that of a model hardly."""


def sentence(error: Exception) -> str:
    """What happened and what to do, in a sentence."""
    match error:
        case ProviderError():
            return _of_provider(error)
        case MetisError():
            return _of_metis(error)
        case OSError():
            return _ended(explain(error))
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
            return _unknown_model(error)
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
            return _ended(explain(error))


def _unknown_model(error: UnknownModelError) -> str:
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
