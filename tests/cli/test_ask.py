"""One prompt on the command line: outputs, exit codes, models and schemas."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import metis
from metis import store
from metis.cli.default_model import SIMULATED_MODEL, ModelChooser
from metis.cli.main import cli
from metis.cli.render import first_code
from metis.cli.startup import StartOptions, start_session
from metis.settings import UserPaths, load
from metis.transport.keys import Keys

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde"


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def set_servers(home: Path, **urls: str) -> None:
    """Make only these local servers discoverable."""
    dead = dict.fromkeys(("ollama", "lmstudio", "llamacpp"), "http://127.0.0.1:9")
    lines = "".join(f'{name} = "{url}"\n' for name, url in {**dead, **urls}.items())
    (home / "config.toml").write_text(f"[base_urls]\n{lines}")


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def test_words_that_are_not_a_command_are_a_prompt() -> None:
    done = run("say", "all", "is", "well")
    assert (done.exit_code, done.stdout) == (0, "all is well\n")
    assert "built-in simulator" in done.stderr
    assert run("ask", "say all is well").stdout == "all is well\n"


def test_piped_input_is_part_of_the_prompt() -> None:
    assert run("say", stdin=b"the owl hoots").stdout == "the owl hoots\n"
    assert run(stdin=b"count to 4").stdout == "1, 2, 3, 4\n"


def test_json_output_has_response_and_facts() -> None:
    done = run("-m", "sim", "--json", "count to 3")
    output = json.loads(done.stdout)
    assert output["text"] == "1, 2, 3"
    assert (output["model"], output["stop_reason"]) == (SIMULATED_MODEL, "end_turn")
    assert output["is_simulated"]
    assert output["session_id"] in run("sessions").stdout


def test_continue_uses_last_conversation_of_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    run("my name is Ada")
    assert "Ada" in run("-c", "what is my name?").stdout
    session = run("sessions").stdout.split()[0]
    assert "Ada" in run("-s", session[-8:], "what is my name?").stdout
    assert len(run("sessions").stdout.splitlines()) == 1
    monkeypatch.chdir("/")
    elsewhere = run("-c", "what is my name?")
    assert elsewhere.exit_code == 2
    assert "no conversation in this directory yet" in elsewhere.stderr


def test_tools_run_and_only_the_response_is_printed() -> None:
    Path("owl.txt").write_text("hoot hoot")
    done = run("read owl.txt")
    assert done.exit_code == 0
    assert "hoot hoot" in done.stdout
    assert "I will call" not in done.stdout
    assert "hoot" not in run("--no-tools", "read owl.txt").stdout


def test_tool_with_side_effects_runs_only_if_allowed() -> None:
    prompt = "write_file path new.txt content owl"
    run(prompt)
    assert not Path("new.txt").exists()
    run("--yes", prompt)
    assert Path("new.txt").exists()


def test_files_are_attached() -> None:
    Path("a.png").write_bytes(PNG)
    Path("a.txt").write_text("count to 3")
    assert run("-a", "a.png", "what is in the picture?").exit_code == 0
    assert run("-a", "a.txt", "do it").exit_code == 0
    assert run("what is this", stdin=PNG).exit_code == 0


def test_mistyped_command_is_reported() -> None:
    done = run("sesions")
    assert done.exit_code == 2
    assert "did you mean 'sessions'?" in done.stderr
    assert run("sesions", "of", "today").exit_code == 0


def test_incomplete_response_has_its_own_exit_code() -> None:
    refused = run("sim: refuse")
    assert refused.exit_code == 1
    assert "refused" in refused.stderr
    assert run("sim: empty").exit_code == 1


def test_empty_prompt_stores_nothing(home: Path) -> None:
    async def open_only() -> str:
        async with start_session(StartOptions()) as ready:
            return ready.session.id

    session_id = asyncio.run(open_only())
    assert session_id not in run("sessions").stdout


def test_model_can_be_named_in_several_ways(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert _chosen("gpt-5") == "openai:gpt-5"
    assert _chosen("openai") == "openai:gpt-5"
    assert _chosen("openai:made-up") == "openai:made-up"
    assert _chosen("sim:gpt-5") == "openai:gpt-5"
    assert _chosen(None) == "openai:gpt-5"
    monkeypatch.setenv("METIS_MODEL", "gpt-5-mini")
    assert _chosen(None) == "openai:gpt-5-mini"


def _chosen(name: str | None, *last: str) -> str | None:
    loaded = load({"model": name})
    chooser = ModelChooser(
        loaded, Keys(file=UserPaths.from_environment().keys), UserPaths.from_environment().local
    )
    return asyncio.run(chooser.choose(recent_models=last)).model


def test_last_used_model_is_default_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _chosen(None, "openai:gpt-5") == SIMULATED_MODEL
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    assert _chosen(None, "gemini:gemini-2.5-pro") == "gemini:gemini-2.5-pro"
    assert _chosen(None, SIMULATED_MODEL, "nobody:x", "nonsense") == "openai:gpt-5"


def test_aws_credentials_do_not_select_a_default_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS credentials serve many purposes; Bedrock must be named, or have its own key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE12345")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    assert _chosen(None) == SIMULATED_MODEL
    model = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    assert _chosen(model) == model
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "none")
    assert (_chosen(None) or "").startswith("bedrock:")


def test_key_of_key_file_is_used(home: Path) -> None:
    keys = home / "keys.toml"
    keys.write_text('[keys]\ngroq = "none"\n')
    keys.chmod(0o600)
    assert _chosen(None) == "groq:openai/gpt-oss-120b"


@asynccontextmanager
async def served(body: bytes, status: str = "200 OK") -> AsyncGenerator[str]:
    """Run a loopback server with one fixed response."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.0 {status}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("name", "body", "model"),
    [
        ("ollama", b'{"models":[{"name":"qwen3:4b"},{"name":"x"}]}', "ollama:qwen3:4b"),
        ("lmstudio", b'{"data":[{"id":"text-embed-1"},{"id":"phi"}]}', "lmstudio:phi"),
        ("llamacpp", b'{"object":"list","data":[{"id":"m.gguf"}]}', "llamacpp:m.gguf"),
        ("llamacpp", b"<html>some other program</html>", SIMULATED_MODEL),
        ("llamacpp", b'{"data":[]}', SIMULATED_MODEL),
    ],
)
def test_responding_local_server_is_used(home: Path, name: str, body: bytes, model: str) -> None:
    async def choose() -> str | None:
        async with served(body) as url:
            set_servers(home, **{name: url})
            choice = await ModelChooser(load(), Keys(), UserPaths.from_environment().local).choose()
            assert (choice.model == SIMULATED_MODEL) == choice.is_simulated
            return choice.model

    assert asyncio.run(choose()) == model


def test_session_of_simulator_continues_there(monkeypatch: pytest.MonkeyPatch) -> None:
    run("-m", "sim", "my name is Ada")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    done = run("-c", "what is my name?")
    assert "Ada" in done.stdout
    assert "held with the simulator" in done.stderr


def test_simulated_model_continues_in_simulator() -> None:
    run("-m", "sim:gpt-5", "my name is Ada")
    done = run("-c", "--json", "what is my name?")
    output = json.loads(done.stdout)
    assert "Ada" in output["text"]
    assert (output["model"], output["is_simulated"]) == ("openai:gpt-5", True)


def test_session_with_unavailable_model_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create() -> None:
        async with store.open(UserPaths.from_environment().store_url) as opened:
            await opened.create_session(
                workspace_path=Path.cwd(), active_model="anthropic:claude-sonnet-4-6"
            )

    asyncio.run(create())
    done = run("-c", "go on")
    assert done.exit_code == 3
    assert done.stderr == (
        "metis: this conversation was held with anthropic:claude-sonnet-4-6, but there is no API "
        "key for anthropic now: set ANTHROPIC_API_KEY, run `metis keys set anthropic`, "
        "or continue with another model: -m MODEL\n"
    )
    assert run("-c", "-m", "sim", "say on").stdout == "on\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\nx = 1\ny = 2\n```\nand\n```\nz\n```", "x = 1\ny = 2\n"),
        ("````\n```\n````", "```\n"),
        ("~~~sh\nls\n~~~", "ls\n"),
        ("```\ncut off", "cut off"),
        ("no code `here`", "no code `here`"),
    ],
)
def test_the_first_block_of_code_is_found(answer: str, code: str) -> None:
    assert first_code(answer) == code


def test_extract_prints_only_code() -> None:
    prompt = "say exactly: see\n```python\nx = 1\n```\nthat is all"
    assert run("-m", "sim", "--no-tools", "-x", prompt).stdout == "x = 1\n"
    assert run("-m", "sim", "-x", "say hello").stdout == "hello\n"
    assert "remove one" in run("-x", "--json", "hi").stderr


def test_response_matches_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    file = tmp_path / "place.json"
    file.write_text(json.dumps(schema))
    for given in (str(file), json.dumps(schema)):
        done = run("-m", "sim:gpt-5", "--no-tools", "--schema", given, "where is it?")
        assert set(json.loads(done.stdout)) == {"city"}
    done = run("-m", "sim:gpt-5", "--no-tools", "--schema", "{}", "where is it?")
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        ("nowhere.json", "cannot read the schema nowhere.json: No such file or directory"),
        ('{"type": ', "--schema is not valid JSON"),
        (__file__, "is not valid JSON"),
    ],
)
def test_invalid_schema_is_one_sentence(schema: str, output: str) -> None:
    done = run("-m", "sim", "--schema", schema, "hi")
    assert done.exit_code == 2
    assert done.stderr.startswith("metis: ")
    assert output in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_response_of_wrong_format_is_printed_with_error() -> None:
    """DeepSeek's reasoner only gets instructions, which the simulator ignores."""
    schema = '{"type":"array","items":{"type":"integer"}}'
    done = run("-m", "sim:deepseek-reasoner", "--no-tools", "--schema", schema, "say hello")
    assert done.exit_code == 1
    assert done.stdout
    assert done.stderr.splitlines()[-1].startswith("metis: the")


def test_the_last_conversation_has_a_name() -> None:
    run("-m", "sim", "say hello")
    run("-m", "sim", "say goodbye")
    assert "goodbye" in run("show").stdout
    assert "goodbye" in run("show", "last").stdout
    assert run("-s", "last", "say again").exit_code == 0
    assert "goodbye" in run("show").stdout


def test_events_are_traced_without_content(home: Path) -> None:
    run("say hush hush")
    data = b"".join(path.read_bytes() for path in home.glob("trace.db*"))
    assert b"llm.call_completed" in data
    assert b"hush" not in data


def test_prompt_is_stored_in_named_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    assert run("--store", url, "say hi").exit_code == 0

    async def messages() -> int:
        async with store.open(url) as opened:
            (record,) = await opened.sessions()
            return len(await opened.messages(record.id))

    assert asyncio.run(messages()) >= 2


def test_interrupt_ends_the_command_and_keeps_partial_text() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(metis.__file__).parents[1])}
    # A background shell ignores SIGINT for its jobs.
    code = (
        "import signal, sys\n"
        "from metis.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['metis', '-m', 'sim', '--no-tools', '200 words sim: slow 50']\n"
        "main()\n"
    )
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as prompt:
        assert prompt.stdout is not None
        assert prompt.stdout.read(4) == b"this"
        prompt.send_signal(signal.SIGINT)
        _, output = prompt.communicate()
    assert prompt.returncode == 130
    assert b"Traceback" not in output
    session = run("sessions").stdout.split()[0]
    assert "cancelled" in run("trace", session).stdout
    assert "\n  this" in run("show", session).stdout
