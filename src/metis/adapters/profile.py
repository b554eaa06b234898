"""Profile: what differs between providers that speak one protocol, as data."""

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError
from metis.canonical.schema.fit import ToolSchemaRule
from metis.canonical.schema.fit_output import ANY_OUTPUT, OutputSchemaRule
from metis.catalog.models import AdapterCapabilities
from metis.projection.target import Target
from metis.wire.tool_ids import IdRule

_PLACE = re.compile(r"projects/[a-z0-9.:-]{1,64}/locations/(?P<region>[a-z0-9-]{1,32})")
_MEDIA = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})


class Auth(Struct, frozen=True, kw_only=True):
    """How a provider is shown a key, and where keys are looked for by habit."""

    header: str = "authorization"
    scheme: str = "Bearer"
    """The word before the key; empty if the key stands alone."""
    variable: str | None = None
    """The environment variable that by custom holds the key; None where none is needed."""
    aws_service: str | None = None
    """The service of AWS for which requests are signed if the key is an id with its secret."""

    def headers(self, key: str) -> dict[str, str]:
        """The header that shows a key."""
        return {self.header: f"{self.scheme} {key}" if self.scheme else key}


class Profile(Struct, frozen=True, kw_only=True):
    """One provider: where it is, how it is called, and what it takes."""

    name: str
    protocol: str
    base_url: str
    path: str
    """Where requests go; `{model}` and `{place}` stand for what differs from call to call."""
    stream_path: str = ""
    """Where requests for a stream go, if it is another path."""
    place: str = ""
    """What the path names before the model, such as a project and its location."""
    auth: Auth = Auth()
    headers: Mapping[str, str] = {}
    default_model: str
    defaults: AdapterCapabilities
    """What is assumed of a model that the catalogue does not know."""
    told_by_path: frozenset[str] = frozenset()
    """What the path says and the body does not: `model`, `stream`."""
    body_keys: Mapping[str, Any] = {}
    """Keys that every body has here."""
    framed: bool = False
    """Whether a stream comes in the frames of AWS and not as lines."""
    known_models: str = ""
    """A pattern that finds the name by which the catalogue knows a model in what it is called here.

    Its groups are put together with hyphens.
    """
    catalogued: str | None = None
    """The provider under which the catalogue knows its models, if not under its own name."""
    mixed_models: bool = False
    """Whether it has models of others beside those that the catalogue knows by that pattern."""
    free_names: bool = False
    """Whether whoever runs it names the models, so that any name may be right."""
    issuers: frozenset[str] = frozenset()
    """Other names under which its sealed parts are known."""
    makers: str = ""
    """A pattern that finds the maker of a model in its name, where models of several are served."""
    scope: str = ""
    """Where its sealed parts count, if not wherever it is called by its name."""
    usual_host: str = ""
    """The host that it has left for the one in `base_url`."""

    # Options.
    refused_options: frozenset[str] = frozenset()
    """Shared options that the provider's API does not take any more; a client's own go through."""
    unknown_keys: frozenset[str] = frozenset()
    """Keys which the hosts of the protocol share, but which this one does not know."""
    renamed_keys: Mapping[str, str] = {}
    """Keys which the hosts of the protocol share, but which are called otherwise here."""
    temperatures: tuple[float, float] | None = None
    """The lowest and the highest temperature, where a request with another is refused."""
    refuses_empties: bool = False
    """Whether a limit of zero and a stop without letters are refused."""
    length_key: str | None = None
    """What the limit of an answer is called here, where the protocol has two names (T182)."""
    default_length: int | None = None
    """What an answer may be long where the provider wants a limit and nobody states one (T181)."""
    named_cache: str | None = None
    """The key that names a kept prefix, which holds instructions and tools already (T178)."""
    must_call: str | None = None
    """The word for a model that must call a tool, if it is not the protocol's (T113)."""
    names_tools: bool = True
    """Whether a model can be told which tool to call."""
    forbids_calls: bool = True
    """Whether a model can be told of tools and not to call them."""
    own_tools: frozenset[str] | None = None
    """The kinds of tools that its API knows, where it knows no others; else None."""
    search: Mapping[str, Any] | None = None
    """What a request says so that the provider searches by itself; None if it cannot."""
    search_beside_tools: Mapping[str, Any] = {}
    """What it says more if there are tools of the client."""
    strict_tools: bool = False
    """Whether the definition of a tool may ask for arguments that keep to the schema."""
    schemas: ToolSchemaRule = ToolSchemaRule()
    """What of JSON Schema it takes in the definition of a tool."""
    answers: OutputSchemaRule = ANY_OUTPUT
    """What of JSON Schema it takes for an answer."""
    strict_answers: OutputSchemaRule | None = None
    """The same for an answer that must keep to its schema, where that is said with a flag."""
    wants_descriptions: bool = False
    """Whether a tool without a description may be refused; it is told by its name then (T112)."""
    needs_definitions: bool = False
    """Whether a history with calls is refused if no tool is defined (T36)."""
    asks_for_usage: bool = False
    """Whether a stream tells its usage only if asked with `stream_options`."""

    # Messages.
    hides_ids: bool = False
    """Whether models see our ids of calls, or hashes of them; the provider's own are its own."""
    ids: IdRule | None = None
    """The ids of calls that it takes."""
    documents: bool = False
    text_documents: bool = True
    document_context: bool = True
    document_media_types: frozenset[str] | None = None
    names_documents: bool = False
    audio_media_types: frozenset[str] = frozenset()
    audio_models: str = ""
    """A pattern of the models that hear, where not all do."""
    video: bool = False
    video_models: str = ""
    """A pattern of the models that watch films, where not all do."""
    url_blocks: frozenset[str] = frozenset()
    address_schemes: frozenset[str] = frozenset({"http", "https"})
    citation_kinds: frozenset[str] = frozenset()
    result_blocks: frozenset[str] = frozenset({"text"})
    result_models: str = ""
    """A pattern of the models that take more than text in results, where not all do."""
    takes_thinking: bool = False
    needs_signatures: bool = True
    unsigned_models: str = ""
    """A pattern of the models that take thoughts without a signature, where others do not."""
    reasoning: str | None = None
    """The key under which thoughts go back to it."""
    wants_reasoning: bool = False
    """Whether every answer has to come back with that key, be it empty (T49, T50)."""
    tags_thoughts: bool = False
    """Whether thoughts may stand in the text of its answers, between tags (T70)."""
    pairs_thoughts: bool = False
    """Whether a thought is refused without what it led to."""
    keeps_answers: bool = False
    """Whether the provider keeps its answers, so that the ids in them say something to it."""
    takes_artifacts: Literal["none", "own", "any"] = "none"
    takes_foreign_citations: bool = True
    developer_role: bool = False
    developer_origins: frozenset[str] = frozenset()
    system_first: bool = False
    takes_blank_text: bool = True
    alternates: bool = False
    joins_text: bool = False
    user_after_tool: bool = True
    prefill: Literal["any", "begun", "none"] = "any"
    prefill_key: str | None = None
    """The key that marks an answer which the model shall go on with (T81)."""
    max_image_chars: int | None = None
    max_image_side: int | None = None
    crowd: tuple[int, int] | None = None
    """How many images are many, and how long the sides of each may be then (T90)."""
    starts_with_user: bool = False
    takes_blank_end: bool = True
    call_signature: str = ""
    """What the provider takes for the signature of a call that another model made."""
    older_models: tuple[str, ...] = ()
    """How models begin that need no such signature, and take only text in results."""
    single_calls: bool = False
    """Whether each call has to stand in an answer of its own, followed by its result (T18)."""
    wordless_calls: frozenset[str] = frozenset()
    """The tools of its own making whose results have no place for words."""
    raw_arguments: bool = False
    """Whether arguments that are no JSON may go back to it as they came."""
    tool_name_length: int = 64
    cache_marks: int = 0
    """How many cache marks a request may hold, for models that cache prompts."""
    marks_calls: bool = True
    """Whether a call can be marked, and not only what is said and shown."""
    unmarked_blocks: frozenset[str] = frozenset()

    def at_location(self, place: str) -> "Profile":
        """The same provider at a place; a region has a host of its own."""
        if "{place}" not in self.path:
            raise InvalidValueError(f"{self.name} has no places", path="$.place")
        found = _PLACE.fullmatch(place)
        if found is None:
            raise InvalidValueError("a place is projects/<id>/locations/<id>", path="$.place")
        region = found["region"]
        host = self.base_url.removeprefix("https://")
        base_url = self.base_url if region == "global" else f"https://{region}-{host}"
        return replace(self, place=f"{place}/", base_url=base_url, scope=place)

    @property
    def issuer(self) -> str:
        """The name under which its sealed parts are kept."""
        return f"{self.name}@{self.scope}" if self.scope else self.name

    def with_address(self, base_url: str | None, account: str | None = None) -> "Profile":
        """The same provider at another address, or for an account that has a name (T203).

        The port says nothing: whoever runs a server may start it at another one tomorrow.
        """
        usual = urlsplit(self.base_url).hostname or ""
        host = usual if base_url is None else urlsplit(base_url).hostname or ""
        parts = (self.scope, "" if host == usual else host, account)
        return replace(
            self,
            base_url=self.base_url if base_url is None else base_url,
            scope="/".join(filter(None, parts)),
            usual_host=usual,
        )

    def request_path(self, model: str, *, is_stream: bool = False) -> str:
        """The path of a request; the name of a model is a name and leads nowhere else."""
        path = (is_stream and self.stream_path) or self.path
        if "{model}" not in path:
            return path
        if not model or not all(model.split("/")) or {".", ".."} & set(model.split("/")):
            raise InvalidValueError(f"{model!r} is no name of a model", path="$.model")
        if self.known_models:
            named = quote(model, safe=":@")
        else:
            named = quote(model if "/" in model else f"models/{model}", safe="/@")
        return path.replace("{place}", self.place).replace("{model}", named)

    def parse_path(self, path: str) -> tuple[str, bool] | None:
        """The model that a path names, and whether it asks for a stream; None for other paths."""
        for template, is_stream in ((self.stream_path, True), (self.path, False)):
            head, mark, tail = template.partition("{model}")
            place, _, after = head.rpartition("{place}")
            pattern = (
                f"{re.escape(place)}(?:.*/)?{re.escape(after)}(?P<model>[^/]+){re.escape(tail)}"
            )
            found = re.fullmatch(pattern, path) if mark else None
            if found is not None:
                return unquote(found["model"]), is_stream
        return None

    def catalog_id(self, model: str) -> str:
        """The canonical id under which the catalogue knows a model, or would know it."""
        found = re.fullmatch(self.known_models, model) if self.known_models else None
        if found is None and self.mixed_models:
            return f"{self.name}:{model}"
        name = model if found is None else "-".join(part for part in found.groups() if part)
        return f"{self.catalogued or self.name}:{name}"

    def target(
        self, capabilities: AdapterCapabilities, model: str, refused: frozenset[str] = frozenset()
    ) -> Target:
        """What a model of this provider can carry."""
        taken = self._user_blocks(capabilities, model)
        is_older = model.removeprefix("models/").startswith(self.older_models)
        takes_media = capabilities.supports_images and not is_older
        if not takes_media or not _fits(self.result_models, model):
            results = frozenset({"text"})
        else:
            results = self.result_blocks & taken
        in_list = capabilities.supports_system_messages_in_list and not self.system_first
        return Target(
            adapter=self.name,
            model=model,
            issuers=frozenset({self.name, *self.issuers}),
            makers=self.makers,
            user_blocks=taken,
            result_blocks=results,
            image_media_types=frozenset(capabilities.accepted_image_media_types),
            document_media_types=self.document_media_types,
            audio_media_types=self.audio_media_types,
            names_documents=self.names_documents,
            url_blocks=self.url_blocks,
            address_schemes=self.address_schemes,
            citation_kinds=self.citation_kinds,
            takes_tools=capabilities.supports_tools,
            takes_thinking=self.takes_thinking and capabilities.supports_thinking,
            needs_signatures=self._wants_signatures(model),
            knows_ids=self.keeps_answers,
            pairs_thoughts=self.pairs_thoughts,
            takes_artifacts=self.takes_artifacts,
            takes_foreign_citations=self.takes_foreign_citations,
            developer_role=self.developer_role,
            developer_origins=self.developer_origins,
            system="anywhere" if in_list else "first",
            takes_blank_text=self.takes_blank_text,
            alternates=self.alternates,
            joins_text=self.joins_text,
            user_after_tool=self.user_after_tool,
            prefill="none" if "prefill" in refused else self.prefill,
            max_image_chars=self.max_image_chars,
            max_image_side=self.max_image_side,
            large_image_side=None if self.crowd is None else self.crowd[1],
            starts_with_user=self.starts_with_user,
            takes_blank_end=self.takes_blank_end,
            takes_text_documents=self.text_documents,
            takes_document_context=self.document_context,
            takes_raw_arguments=self.raw_arguments,
            call_signature="" if is_older else self.call_signature,
            wordless_calls=self.wordless_calls,
            tool_name_length=self.tool_name_length,
            cache_marks=self.cache_marks if capabilities.supports_prompt_caching else 0,
            marks_calls=self.marks_calls,
            unmarked_blocks=self.unmarked_blocks,
        )

    def _wants_signatures(self, model: str) -> bool:
        is_free = bool(self.unsigned_models) and _fits(self.unsigned_models, model)
        return self.needs_signatures and not is_free

    def _user_blocks(self, capabilities: AdapterCapabilities, model: str) -> frozenset[str]:
        """What a user may show a model."""
        is_taken = {
            "text": True,
            "image": capabilities.supports_images,
            "document": self.documents,
            "audio": bool(self.audio_media_types) and _fits(self.audio_models, model),
            "video": self.video and _fits(self.video_models, model),
        }
        return frozenset(tag for tag, is_so in is_taken.items() if is_so)


def _fits(pattern: str, model: str) -> bool:
    """Whether a model is one of those that a pattern is for; without one it is for all."""
    return not pattern or re.search(pattern, model) is not None


def assumed_capabilities(
    *, context_tokens: int, output_tokens: int, thinking: bool, images: bool, system_in_list: bool
) -> AdapterCapabilities:
    """Capabilities to assume of a provider's models, where nothing better is known."""
    return AdapterCapabilities(
        supports_thinking=thinking,
        supports_images=images,
        supports_tools=True,
        supports_system_prompt=True,
        supports_structured_output=False,
        supports_streaming=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
        supports_prompt_caching=False,
        supports_system_messages_in_list=system_in_list,
        max_context_tokens=context_tokens,
        max_output_tokens=output_tokens,
        accepted_image_media_types=tuple(sorted(_MEDIA)) if images else (),
    )
