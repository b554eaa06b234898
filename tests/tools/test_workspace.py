"""No path leaves a workspace, and every file inside is reachable."""

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import image, user
from metis import adapters
from metis.canonical import ImageBlock, ImageSource
from metis.tools import Workspace, WorkspaceError, embed

SECRET = b"the secret outside"
OPEN = Path("/proc/self/fd")


@pytest.fixture
def workspace_dir(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    inside = tmp_path / "inside"
    (inside / "folder").mkdir(parents=True)
    (inside / "a.txt").write_bytes(b"a")
    (inside / "folder" / "b.txt").write_bytes(b"b")
    return inside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def links(inside: Path) -> None:
    (inside / "to_file").symlink_to("../outside/secret")
    (inside / "to_folder").symlink_to("../outside")
    (inside / "absolute").symlink_to(inside.parent / "outside" / "secret")
    (inside / "twice").symlink_to("to_folder")
    (inside / "folder" / "up").symlink_to("../..")
    (inside / "loop").symlink_to("loop")


@pytest.mark.parametrize(
    "path",
    [
        *("../outside/secret", "folder/../../outside/secret", "..", "folder/../.."),
        *("/etc/passwd", "{root}/../outside/secret", "{root}x/secret", "//etc/passwd"),
        *("to_file", "to_folder/secret", "absolute", "twice/secret", "folder/up/outside/secret"),
        "a\0b",
    ],
)
def test_no_path_leaves_the_workspace(workspace_dir: Path, path: str) -> None:
    links(workspace_dir)
    workspace = Workspace(workspace_dir)
    path = path.format(root=workspace_dir)
    with pytest.raises(WorkspaceError) as refused:
        workspace.read_bytes(path, 100)
    assert refused.value.is_refused
    with pytest.raises(WorkspaceError) as refused:
        workspace.write_bytes(path, b"x")
    assert refused.value.is_refused
    assert (workspace_dir.parent / "outside" / "secret").read_bytes() == SECRET
    assert names(workspace_dir.parent / "outside") == ["secret"]


def test_errors_name_no_path_outside(workspace_dir: Path) -> None:
    links(workspace_dir)
    for path in ("to_file", "twice/secret", "absolute"):
        with pytest.raises(WorkspaceError) as refused:
            Workspace(workspace_dir).read_bytes(path, 100)
        assert "outside/" not in str(refused.value)


def test_links_inside_workspace_are_followed(workspace_dir: Path) -> None:
    (workspace_dir / "one").symlink_to("folder/b.txt")
    (workspace_dir / "folder" / "two").symlink_to("../a.txt")
    (workspace_dir / "three").symlink_to(workspace_dir / "folder")
    workspace = Workspace(workspace_dir)
    assert workspace.read_bytes("one", 10) == b"b"
    assert workspace.read_bytes("folder/two", 10) == b"a"
    assert workspace.read_bytes("three/b.txt", 10) == b"b"
    assert workspace.read_bytes(f"{workspace_dir}/folder/../a.txt", 10) == b"a"
    assert workspace.write_bytes("one", b"new") == "folder/b.txt"
    assert (workspace_dir / "folder" / "b.txt").read_bytes() == b"new"
    assert (workspace_dir / "one").is_symlink()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nothing", "does not exist"),
        ("folder", "is a directory"),
        (".", "is a directory"),
        ("a.txt/b", "is not a directory"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "too long"),
        ("loop", "more than 40 links"),
        ("deep/" * 200 + "a", "more than 100 directories"),
    ],
)
def test_unreadable_file_error_is_explained(workspace_dir: Path, path: str, reason: str) -> None:
    os.mkfifo(workspace_dir / "pipe")
    links(workspace_dir)
    (workspace_dir / "deep").mkdir()
    for _ in range(110):
        # A full path per level would exceed the system's limit.
        (workspace_dir / "deep").rename(workspace_dir / "inner")
        (workspace_dir / "deep").mkdir()
        (workspace_dir / "inner").rename(workspace_dir / "deep" / "deep")
    with pytest.raises(WorkspaceError, match=reason):
        Workspace(workspace_dir).read_bytes(path, 100)


def test_a_larger_file_is_refused(workspace_dir: Path) -> None:
    with pytest.raises(WorkspaceError, match="more than 0 bytes"):
        Workspace(workspace_dir).read_bytes("a.txt", 0)


def test_write_creates_directories_and_keeps_permissions(workspace_dir: Path) -> None:
    workspace = Workspace(workspace_dir)
    assert workspace.write_bytes("new/deep/c.txt", b"c") == "new/deep/c.txt"
    (workspace_dir / "a.txt").chmod(0o750)
    workspace.write_bytes("a.txt", b"other")
    assert (workspace_dir / "a.txt").stat().st_mode & 0o777 == 0o750
    assert names(workspace_dir) == ["a.txt", "folder", "new"]


def test_file_changed_by_others_is_not_overwritten(workspace_dir: Path) -> None:
    with pytest.raises(WorkspaceError, match="changed meanwhile"):
        Workspace(workspace_dir).write_bytes("a.txt", b"mine", expected=b"what was there")
    assert (workspace_dir / "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".GIT/config", "link/config"])
def test_git_directory_is_not_written(workspace_dir: Path, path: str) -> None:
    (workspace_dir / ".git").mkdir()
    (workspace_dir / "link").symlink_to(".git")
    with pytest.raises(WorkspaceError) as refused:
        Workspace(workspace_dir).write_bytes(path, b"#!/bin/sh")
    assert refused.value.is_refused
    assert names(workspace_dir / ".git") == []


def test_directory_replaced_by_link_does_not_lead_outside(workspace_dir: Path) -> None:
    """Another process repeatedly replaces a directory by a link to the outside."""
    workspace = Workspace(workspace_dir)
    (workspace_dir.parent / "outside" / "b.txt").write_bytes(SECRET)
    stop = threading.Event()

    def exchange() -> None:
        real, aside, link = (
            workspace_dir / "folder",
            workspace_dir / "aside",
            workspace_dir / "link",
        )
        while not stop.is_set():
            link.symlink_to("../outside")
            real.rename(aside)
            # The writer may recreate the directory before the link exists.
            with suppress(IsADirectoryError):
                link.rename(real)
            for path in (link, real):
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    path.unlink()
            while aside.exists():
                with suppress(OSError):
                    aside.rename(real)
                if aside.exists():
                    shutil.rmtree(real, ignore_errors=True)

    thread = threading.Thread(target=exchange)
    thread.start()
    read: list[bytes] = []
    try:
        for _ in range(3000):
            try:
                read.append(workspace.read_bytes("folder/b.txt", 100))
                workspace.write_bytes("folder/new", b"x")
            except WorkspaceError:
                continue
    finally:
        stop.set()
        thread.join()
    assert set(read) <= {b"b"}
    assert names(workspace_dir.parent / "outside") == ["b.txt", "secret"]


def test_file_replaced_by_link_after_check_is_not_followed(workspace_dir: Path) -> None:
    workspace = Workspace(workspace_dir)
    with workspace.resolve("a.txt") as resolved:
        (workspace_dir / "a.txt").unlink()
        (workspace_dir / "a.txt").symlink_to("../outside/secret")
        assert resolved.name is not None
        with pytest.raises(OSError, match="symbolic"):
            os.open(resolved.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=resolved.directory)


@given(st.lists(st.sampled_from(["..", ".", "", "folder", "up", "to_folder", "a.txt", "/"])))
def test_any_path_resolves_inside_or_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    top = tmp_path_factory.getbasetemp() / "walks"
    if not top.exists():
        (top / "inside" / "folder").mkdir(parents=True)
        (top / "secret").write_bytes(SECRET)
        (top / "inside" / "folder" / "up").symlink_to("..")
        (top / "inside" / "to_folder").symlink_to("../inside/folder")
        (top / "inside" / "a.txt").write_bytes(b"a")
    workspace = Workspace(top / "inside")
    try:
        with workspace.resolve("/".join(names)) as resolved:
            assert ".." not in resolved.names
    except WorkspaceError:
        pass
    workspace.close()


def test_closed_workspace_is_a_typed_error(workspace_dir: Path) -> None:
    workspace = Workspace(workspace_dir)
    workspace.close()
    with pytest.raises(WorkspaceError, match="closed"):
        workspace.read_bytes("a.txt", 10)


def test_no_descriptor_is_left_open(workspace_dir: Path) -> None:
    links(workspace_dir)
    workspace = Workspace(workspace_dir)
    before = len(names(OPEN)) if OPEN.exists() else 0
    for path in ("a.txt", "to_file", "folder/up/x", "nothing/at/all", "folder"):
        with suppress(WorkspaceError):
            workspace.read_bytes(path, 10)
        with suppress(WorkspaceError), workspace.open_directory(path):
            pass
    after = len(names(OPEN)) if before else 0
    assert after == before


@pytest.mark.row("M-051")
def test_file_reference_is_sent_as_bytes(workspace_dir: Path) -> None:
    links(workspace_dir)
    (workspace_dir / "folder" / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    workspace = Workspace(workspace_dir)

    def shown(path: str) -> ImageBlock:
        return ImageBlock(ImageSource(kind="file_ref", data=path), media_type="image/png")

    blocks = embed((shown("folder/p.png"), image()), workspace)
    body = adapters.get("anthropic").to_wire([user(*blocks)]).body
    assert b'"iVBORw0KGgo="' in body
    assert blocks[1] == image()
    for path in ("../outside/secret", "to_file"):
        with pytest.raises(WorkspaceError, match="leads out"):
            embed((shown(path),), workspace)
