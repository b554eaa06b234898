"""`metis sim`: the simulator on a port, until it is stopped."""

import asyncio
import signal

import click

from metis.sim import Settings, Simulator


def serve(*, port: int, is_strict: bool) -> None:
    """Serve until the process is told to end."""
    try:
        asyncio.run(_serve(port=port, is_strict=is_strict))
    except OSError as error:
        raise click.ClickException(f"cannot listen on port {port}: {error.strerror}") from None


async def _serve(*, port: int, is_strict: bool) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(ending, done.set)
    async with Simulator(port=port, settings=Settings(strict=is_strict)) as simulator:
        click.echo(_greeting(simulator.base_url))
        await done.wait()


def _greeting(url: str) -> str:
    return f"""\
The metis simulator listens at {url}. It answers by fixed rules; no model is behind it.

  anthropic      ANTHROPIC_BASE_URL={url}
  openai         OPENAI_BASE_URL={url}/v1
  google-genai   GOOGLE_GEMINI_BASE_URL={url}
  ollama         OLLAMA_HOST={url}
  boto3          AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url}

Any key will do. Write "sim: 429 2" into a prompt to see it misbehave. Stop it with Ctrl-C."""
