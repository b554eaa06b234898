"""A short, repeatable part of the fuzz runs, and every input that once was a fault."""

import logging
import random

import pytest

from corpus import needs_corpus
from fuzz.mutation import Mutator, Seed
from fuzz.run import REGRESSIONS, Campaign, fault_of, growth_of
from fuzz.seeds import PROTOCOLS, requests, responses, streams
from fuzz.session_targets import DATABASES
from fuzz.targets import TARGETS
from metis import adapters, interchange
from metis.canonical.errors import MetisError, ResponseLimitError
from metis.interchange.registry import session_formats
from metis.interchange.writers import WRITERS
from metis.streaming import StreamError

INPUTS = 20
RANDOM_INPUTS = 2_000
STORED = sorted(path for path in REGRESSIONS.glob("*/*") if path.name != "README")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def test_every_decoder_importer_and_writer_is_a_target() -> None:
    names = {f"{name}-{kind}" for name in PROTOCOLS for kind in ("request", "response", "stream")}
    names |= {f"import-{name}" for name in ("metis", *interchange.formats())}
    names |= {f"export-{name}" for name in (*WRITERS, *interchange.formats())}
    names |= {f"serve-{name}{kind}" for name in PROTOCOLS for kind in ("", "-stream")}
    names |= {f"session-{name}" for name in session_formats() if name not in DATABASES}
    assert names <= TARGETS.keys()
    covered_protocols = {adapters.get(name).profile.protocol for name in PROTOCOLS}
    assert covered_protocols == {adapters.get(name).profile.protocol for name in adapters.names()}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_decoded(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()[-20:]
    read = sum(_is_read(name, target.pack(data) if target.pack else data) for data in seeds)
    # Some recorded exchanges are errors, which are typed.
    assert read * 4 >= len(seeds)


def _is_read(name: str, data: bytes) -> bool:
    try:
        TARGETS[name].run(data)
    except MetisError:
        return False
    return True


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_give_a_value_or_a_typed_error(name: str) -> None:
    target = TARGETS[name]
    mutator = Mutator(target.seeds(), 14, target.pack)
    for _ in range(INPUTS):
        data = mutator.next()
        fault = fault_of(target.run, data)
        assert fault is None or fault.startswith("slow"), (fault, data[:2000])


DEEP = (
    b"[" * 480 + b"]" * 480,
    b'{"a":' * 480 + b"0" + b"}" * 480,
    b'{"a":' * 900 + b"{}" + b"}" * 900,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if "import-" not in name])
def test_deep_values_give_a_value_or_a_typed_error(name: str) -> None:
    # Deeper than Python calls functions, and not so deep that the reader of JSON refuses them.
    target = TARGETS[name]
    seeds = [seed for seed in map(Seed, target.seeds()[:12]) if seed.values]
    for seed in seeds:
        for start, end in seed.values[:: max(1, len(seed.values) // 8)]:
            for value in DEEP:
                data = seed.data[:start] + value + seed.data[end:]
                fault = fault_of(target.run, target.pack(data) if target.pack else data)
                assert fault is None or fault.startswith("slow"), (fault, data[:500])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
def test_random_inputs_give_a_value_or_a_typed_error(name: str) -> None:
    campaign = Campaign(
        name,
        seed=random.randrange(1 << 32),  # noqa: S311 - not for security
    )
    while campaign.count < RANDOM_INPUTS:
        campaign.step()
    assert campaign.faults == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_former_faults_give_a_value_or_a_typed_error(path: object) -> None:
    assert isinstance(path, type(REGRESSIONS))
    fault = growth_of(TARGETS[path.parent.name].run, path.read_bytes())
    assert fault is None, fault


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"\n", b"x\n", b'"', b"<", b"&", b"`", b"```\n", b"\xe4\xb8\x96"])
@pytest.mark.parametrize("name", WRITERS)
def test_memory_of_exports_is_proportional_to_size(name: str, text: bytes) -> None:
    run = TARGETS[f"export-{name}"].run
    run(b"x")
    fault = growth_of(run, text * (500_000 // len(text)))
    assert fault is None, fault


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_recorded_exchange_meets_a_limit(name: str) -> None:
    adapter, protocol = adapters.get(name), PROTOCOLS[name]
    limit = ResponseLimitError.__name__
    for data in streams(protocol):
        decoder = adapter.stream_decoder()
        events = [*decoder.feed(data), *decoder.finish()]
        assert not [e for e in events if isinstance(e, StreamError) and e.error_class == limit]
    for read, bodies in (
        (adapter.from_wire_response, responses(protocol)),
        (adapter.from_wire_request, requests(protocol)),
    ):
        for body in bodies:
            try:
                read(body)
            except ResponseLimitError:
                raise
            except MetisError:
                pass  # a recorded error
