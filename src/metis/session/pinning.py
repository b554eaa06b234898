"""Pinning: the model that a user sets for a session, at once or when the turn that runs is over."""

from msgspec.structs import replace

from metis.canonical.errors import CatalogError, SwapRefusedError
from metis.canonical.ids import new_ulid
from metis.events import Actor
from metis.events.work import RouteConstraintFailed, SessionModelChanged
from metis.session.conversation import PINNED, Conversation
from metis.session.inherited import options_of, sticky
from metis.session.setup import Setup
from metis.session.swap import Preview, preview
from metis.session.told import Told
from metis.session.trace import Trace
from metis.store.entries import SidecarEntry, SwapEntry


class Pinning:
    """Sets the model of one session."""

    def __init__(self, setup: Setup, conversation: Conversation, told: Told, trace: Trace) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace
        self._queued: list[str | None] = []

    @property
    def model(self) -> str | None:
        """The model that the user set last; None leaves the choice to the rules."""
        return self._queued[-1] if self._queued else self._settled()

    def preview(self, model: str) -> Preview:
        """Whether another model can go on, and exactly what it would not see as it is."""
        served = self._setup.models.served(self._setup.models.resolve(model))
        options = options_of(self._setup, self._conversation, served.id)
        setup = replace(self._setup, options=options)
        return preview(setup, self._told.files.known(self._conversation.messages), served)

    async def swap(self, model: str | None, *, is_running: bool) -> Preview | None:
        """Set another model, or let it wait for the end of the turn that runs."""
        found = None if model is None else self.preview(model)
        if found is not None and not found.fits:
            raise self._refused(found)
        chosen = None if found is None else found.model
        changed = SessionModelChanged(
            old_model=self._settled(), new_model=chosen, is_queued=is_running
        )
        self._trace.emit(changed, actor=Actor.USER)
        if is_running:
            self._queued = [chosen]
        else:
            await self._pin(chosen)
        return found

    async def settle(self) -> None:
        """Set what had to wait."""
        if self._queued:
            chosen = self._queued.pop()
            self._queued.clear()
            await self._pin(chosen)

    def _settled(self) -> str | None:
        """The model of the session or of its thread, if there is such a model."""
        try:
            return sticky(self._setup, self._conversation)
        except CatalogError:
            return self._conversation.pinned

    def _refused(self, found: Preview) -> SwapRefusedError:
        capability, why = found.capability or "", found.why or ""
        active = self._settled()
        self._trace.emit(
            RouteConstraintFailed(
                model=found.model, active_model=active, capability=capability, reason=why
            ),
            actor=Actor.USER,
        )
        return SwapRefusedError(found.model, capability=capability, why=why, active=active)

    async def _pin(self, model: str | None) -> None:
        conversation, now = self._conversation, self._setup.now()
        before = self._settled()
        if model == before and conversation.pointer is None:
            return
        if model is None:
            await conversation.note(
                SidecarEntry(
                    id=new_ulid(), session_id=conversation.id, created_at=now, kind=PINNED, data={}
                )
            )
            return
        entry = SwapEntry(
            id=new_ulid(),
            session_id=conversation.id,
            created_at=now,
            from_model=before,
            to_model=model,
            reason="user swap",
        )
        await conversation.note(entry)
        self._told.swapped_from = before
