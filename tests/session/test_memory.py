"""Memory and skills: what models may store, and what they load on demand."""

from itertools import pairwise
from pathlib import Path

import pytest

from metis.canonical import SideEffects, ToolResultBlock, ToolUseBlock, new_tool_use_id
from metis.events import Bus, Event
from metis.events.event import encode_json
from metis.events.system_events import MemoryEviction, MemoryUpdated, SkillLoaded
from metis.session import Metis, Session, text_of
from metis.session.prompt import MEMORY_FILES
from metis.tools import Confirmation, Registry, Rule
from session.fake import Fake, Say, say, serving
from session.helpers import ReadFile, options
from session.test_bus_events import WriteFile

pytestmark = pytest.mark.anyio
ALLOW = Confirmation(rules={SideEffects.WRITE: Rule.AUTO})


def calling(tool: str, /, **arguments: str) -> list[Say]:
    block = ToolUseBlock(new_tool_use_id(), tool, arguments)
    return [say(block), say("done")]


def last_result(session: Session) -> tuple[str, bool]:
    results = [b for m in session.messages for b in m.content if isinstance(b, ToolResultBlock)]
    return text_of(results[-1].content), results[-1].is_error


async def test_models_add_replace_and_consolidate_memory_within_limits(
    url: str, tmp_path: Path
) -> None:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    soft, hard = MEMORY_FILES["MEMORY.md"].soft, MEMORY_FILES["MEMORY.md"].hard
    script = [
        *calling("memory_add", file="MEMORY.md", text="Likes tea."),
        *calling("memory_add", file="MEMORY.md", text="Uses tabs."),
        *calling("memory_replace", file="MEMORY.md", old="tea", new="coffee"),
        *calling("memory_replace", file="MEMORY.md", old="nothing", new="x"),
        *calling("memory_add", file="MEMORY.md", text="x" * (soft + 1)),
        *calling("memory_add", file="MEMORY.md", text="y" * hard),
        *calling("memory_consolidate", file="MEMORY.md", text="Likes coffee, uses tabs."),
        *calling("memory_add", file="../escape.md", text="no"),
    ]
    home = tmp_path / "home"
    given = {"home": home, "confirmation": ALLOW, "bus": bus}
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, **given)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.ask("two")
        await session.ask("three")
        assert (home / "MEMORY.md").read_text() == "Likes coffee.\nUses tabs.\n"
        assert (home / "MEMORY.md").stat().st_mode & 0o777 == 0o600
        await session.ask("four")
        assert last_result(session) == ("The text occurs 0 times in MEMORY.md.", True)
        await session.ask("five")
        assert "nearly full" in last_result(session)[0]
        before = (home / "MEMORY.md").read_bytes()
        await session.ask("six")
        assert last_result(session)[1]
        assert (home / "MEMORY.md").read_bytes() == before
        await session.ask("seven")
        assert (home / "MEMORY.md").read_text() == "Likes coffee, uses tabs.\n"
        await session.ask("eight")
        assert last_result(session)[1]
        other = await m.session(model="sonnet")
        assert "Likes coffee, uses tabs." in text_of(other.messages[0].content)
    assert sorted(each.name for each in home.iterdir()) == ["MEMORY.md"]
    payloads = [each.payload for each in bus_events if isinstance(each.payload, MemoryUpdated)]
    assert [each.operation for each in payloads] == ["add", "add", "replace", "add", "consolidate"]
    assert all(a.hash_after == b.hash_before for a, b in pairwise(payloads))
    assert len([each for each in bus_events if isinstance(each.payload, MemoryEviction)]) == 1
    assert b"coffee" not in b"".join(map(encode_json, bus_events))


async def test_a_skill_is_listed_and_its_text_is_loaded_by_a_tool(url: str, tmp_path: Path) -> None:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    work, home = tmp_path / "work", tmp_path / "home"
    for place, text in ((home, "Ship it by hand."), (work / ".metis", "Ship it by mail.")):
        folder = place / "skills" / "deploy"
        folder.mkdir(parents=True)
        head = '---\nname: deploy\ndescription: "ships it"\n---\n'
        (folder / "SKILL.md").write_text(f"{head}\n{text}\n")
    script = [*calling("load_skill", name="deploy"), *calling("load_skill", name="nothing")]
    given = {"workspace": work, "home": home, "bus": bus}
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, **given)) as m:
        session = await m.session(model="sonnet")
        assert "- deploy: ships it" in text_of(session.messages[0].content)
        assert "mail" not in text_of(session.messages[0].content)
        await session.ask("deploy it")
        assert last_result(session) == ("Ship it by mail.", False)
        await session.ask("more")
        assert last_result(session)[1]
    (payloads,) = [each.payload for each in bus_events if isinstance(each.payload, SkillLoaded)]
    assert (payloads.skill_id, payloads.source, payloads.load_reason) == (
        "deploy",
        "workspace",
        "on_demand",
    )
    assert payloads.load_size_tokens > 0
    names = [tool["name"] for tool in fake.bodies[0]["tools"]]
    assert names == [
        "read_file",
        "memory_add",
        "memory_replace",
        "memory_consolidate",
        "load_skill",
    ]


async def test_skill_rule_applies_to_message_that_names_a_skill(url: str, tmp_path: Path) -> None:
    folder = tmp_path / ".metis" / "skills" / "web-search"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: web-search\ndescription: finds\n---\nFind.")
    (tmp_path / ".metis" / "routing.toml").write_text(
        'schema_version = 1\nglobal_default = "sonnet"\n[[rules]]\nname = "find"\n'
        'when = { skills_matching_message_includes = ["web-search"] }\nuse = "haiku"\n'
    )
    async with serving(Fake()) as fake, Metis(url, options(fake, workspace=tmp_path)) as m:
        session = await m.session()
        await session.ask("do a search on the Web")
        await session.ask("do it again")
        models = [each.metadata.model for each in session.messages if each.metadata.model]
    assert models == ["anthropic:claude-haiku-4-5", "anthropic:claude-sonnet-4-6"]


async def test_tool_registered_later_is_offered_with_built_in_tools(
    url: str, tmp_path: Path
) -> None:
    registry = Registry(ReadFile)
    chosen = {"tools": registry, "home": tmp_path, "confirmation": ALLOW}
    script = [say("one"), *calling("write_file", path="a"), *calling("memory_ad", file="x")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, **chosen)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        registry.register(WriteFile)
        await session.ask("two")
        assert last_result(session) == ("contents of a", False)
        await session.ask("three")
        assert "Did you mean memory_add" in last_result(session)[0]
    house = ["memory_add", "memory_replace", "memory_consolidate"]
    names = [[tool["name"] for tool in body["tools"]] for body in fake.bodies[:2]]
    assert names == [["read_file", *house], ["read_file", "write_file", *house]]
