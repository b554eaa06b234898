"""A short and repeatable share of the fuzz runs, and every input that once was a fault."""

import logging

import pytest

from corpus import needs_corpus
from fuzz.run import REGRESSIONS, Mutator, fault_of, growth_of
from fuzz.targets import PROTOCOLS, TARGETS, seeds
from metis import adapters
from metis.canonical.errors import ResponseLimitError
from metis.streaming import StreamError

INPUTS = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_give_a_value_or_a_typed_error(name: str) -> None:
    mutator = Mutator(seeds(name), seed=14)
    for _ in range(INPUTS):
        data = mutator.next()
        fault = fault_of(TARGETS[name], data)
        assert fault is None or fault.endswith("seconds"), (fault, data[:2000])


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_once_were_a_fault(name: str) -> None:
    for path in sorted((REGRESSIONS / name).glob("*")):
        fault = growth_of(TARGETS[name], path.read_bytes())
        assert fault is None, (fault, path.name)


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_recorded_exchange_meets_a_limit(name: str) -> None:
    adapter = adapters.get(name)
    for data in seeds(f"{name}-stream"):
        decoder = adapter.stream_decoder()
        events = [*decoder.feed(data), *decoder.finish()]
        limit = ResponseLimitError.__name__
        assert not [e for e in events if isinstance(e, StreamError) and e.error_class == limit]
