"""Naming: the models and sessions whose names a shell may complete; loaded when one is asked."""

import click

_MOST = 50


def complete_models(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The names of models that begin so: aliases first, then ids, and the simulator."""
    from metis import adapters
    from metis.catalog.load import catalog

    known = catalog()
    names = ["local", "sim", *sorted(known.aliases), *adapters.names(), *sorted(known.entries)]
    return [name for name in dict.fromkeys(names) if name.startswith(begun)]


def complete_sessions(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The ids of sessions that begin so, newest first."""
    import asyncio

    from metis import store
    from metis.canonical.errors import MetisError
    from metis.settings import Places, load

    async def ids() -> list[str]:
        url = load().settings.store or Places.of().store_url
        async with store.open(url, recover=False) as keep:
            return [each.id for each in await keep.sessions(_MOST)]

    try:
        return [each for each in asyncio.run(ids()) if each.startswith(begun)]
    except (MetisError, OSError):
        return []
