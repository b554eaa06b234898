"""Plans of exchanges: what was sent and answered is read, priced, and placed in its session.

A plan needs nothing but memory, and may be made in a thread: a response of sixteen megabytes takes
as long as a thousand answers.
"""

import logging
import time
from collections.abc import Sequence

from msgspec import Struct

from metis import adapters
from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import MetisError
from metis.canonical.message import Message
from metis.gateway.client_sessions import Join, Joiner, tenant_key
from metis.gateway.exchange import Exchange
from metis.gateway.exchange_queue import Waiting
from metis.gateway.placement import PlannedExchange, Planner, resolve
from metis.gateway.stored_exchange import (
    Priced,
    decoded_response,
    exchange_record,
    priced_response,
    resolved_model,
)
from metis.session.models import Models, ResolvedModel
from metis.wire.call import CanonicalRequest, RequestContext

log = logging.getLogger("metis.gateway")

READ_SESSION = "sess_gateway"
"""The session id under which requests are read: ids of calls must not depend on the session,
so that equal histories have equal upstream bytes. Stored messages have the ids of their session."""


class Draft(Struct):
    """An exchange on its way to a plan, with what each step adds."""

    waiting: Waiting
    exchange: Exchange
    model: ResolvedModel | None = None
    response: Message | None = None
    priced: Priced = Priced(None, None)
    record: bytes = b""
    planned: PlannedExchange | None = None
    is_failed: bool = False


class ExchangePlans:
    """Reads, prices and plans exchanges."""

    def __init__(self, models: Models, reader: RequestReader, joiner: Joiner) -> None:
        self._models = models
        self._reader = reader
        self._joiner = joiner
        self.planner = Planner(joiner)
        self.undecoded = 0
        """How many responses could not be read."""

    def prepare(self, exchange: Exchange) -> None:
        """Read the request of an exchange, and the digests of its history."""
        if exchange.kind == "other":
            return
        if exchange.request is None and exchange.request_body:
            exchange.request = self.read_request(exchange)
        if exchange.request is not None:
            self._joiner.chain(exchange.request.messages)

    def prepare_response(self, exchange: Exchange) -> None:
        """Read and price the response of an exchange."""
        if exchange.kind == "chat":
            exchange.facts = {**exchange.facts, "priced": self.priced(exchange)}

    def read_request(self, exchange: Exchange) -> CanonicalRequest | None:
        """Return the request of an exchange; None if it is none of its protocol."""
        adapter = adapters.get(exchange.request_adapter or exchange.client_adapter)
        context = RequestContext(session_id=READ_SESSION, path=exchange.path)
        try:
            tenant = tenant_key(exchange.tenant)
            return self._reader.read(adapter, tenant, exchange.request_body, context)
        except MetisError:
            return None  # the provider reports what is wrong with it

    def make(self, batch: Sequence[Draft]) -> None:
        """Plan exchanges step by step: a step that runs for many in a row takes half the time.

        All of it does not fit into the caches of a processor, beside what answers need.
        """
        for step in (self._read_request, self._decode_response, self._price, self._plan):
            for draft in batch:
                if draft.is_failed:
                    continue
                try:
                    step(draft)
                except Exception:  # one exchange must not lose those behind it
                    log.exception("exchange %s could not be recorded", draft.exchange.id)
                    draft.is_failed = True

    def _read_request(self, draft: Draft) -> None:
        exchange = draft.exchange
        if exchange.kind == "chat" and exchange.request is None and exchange.request_body:
            exchange.request = self.read_request(exchange)

    def _decode_response(self, draft: Draft) -> None:
        if "priced" not in draft.exchange.facts:
            draft.model, draft.response = self._decoded(draft.exchange)

    def _price(self, draft: Draft) -> None:
        prepared: Priced | None = draft.exchange.facts.get("priced")
        draft.priced = prepared or self._priced(draft.exchange, draft.model, draft.response)
        draft.record = exchange_record(draft.exchange, draft.priced.usage)

    def _plan(self, draft: Draft) -> None:
        exchange = draft.exchange
        if exchange.request is not None and "join" not in exchange.facts:
            self._join(exchange, exchange.request)
        exchange.facts = {**exchange.facts, "record": draft.record}
        draft.planned = self.planner.plan(exchange, draft.priced, draft.record)

    def _join(self, exchange: Exchange, request: CanonicalRequest) -> None:
        placing = exchange.placing
        if placing is None:
            resolve(exchange, request, self._joiner, now_s=time.monotonic(), is_final=True)
            return
        chain = self._joiner.chain(request.messages)
        join = Join(
            placing.scope, exchange.session_id, chain, placing.kind, placing.parent_session_id
        )
        exchange.facts = {**exchange.facts, "join": join}

    def priced(self, exchange: Exchange) -> Priced:
        """Return the response of an exchange with its cost."""
        prepared: Priced | None = exchange.facts.get("priced")
        return prepared or self._priced(exchange, *self._decoded(exchange))

    def _decoded(self, exchange: Exchange) -> tuple[ResolvedModel | None, Message | None]:
        """Return the model that answered, and its response."""
        # What passed calls used is read beside them.
        model = None if exchange.kind == "other" else resolved_model(exchange, self._models)
        if model is None:
            return None, None
        try:
            return model, decoded_response(exchange, model)
        except MetisError as error:
            self.undecoded += 1
            log.warning("the response of %s could not be read: %s", exchange.id, error)
            return model, None

    def _priced(
        self, exchange: Exchange, model: ResolvedModel | None, response: Message | None
    ) -> Priced:
        if model is None or response is None:
            return Priced(None, exchange.usage)
        return priced_response(exchange, response, self._models, model)
