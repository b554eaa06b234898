"""Templates: questions that are asked often, with variables, a system prompt, a model and a schema.

A template is a TOML file in the `templates` directory of the settings:

    prompt = "Review this change: $input"
    system = "You review code. Be brief."
    model = "sonnet"
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template as StringTemplate
from typing import Any, cast

import click
import msgspec
from msgspec import Struct

from metis.canonical.errors import SettingsError
from metis.cli.output import echo, echo_json
from metis.cli.text import escape_controls, style, visible_controls
from metis.plugins import TEMPLATES, Plugin, load_plugins
from metis.settings import UserPaths

INPUT = "input"
"""The variable that stands for the question."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_EXAMPLE = """\
# $input is the question of the command line; other variables are given with -p NAME=VALUE.
prompt = "$input"
# system = "Answer in one sentence."
# model = "sonnet"
# tools = false
# schema = "name, age int"
# extract = false
# [defaults]
# language = "English"
"""


class Template(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template as it is in its file."""

    prompt: str = "$input"
    system: str | None = None
    model: str | None = None
    thinking: str | None = None
    tools: bool | None = None
    schema: str | None = None
    extract: bool = False
    description: str = ""
    defaults: Mapping[str, str] = {}
    """The values of variables that are not given."""

    def variables(self) -> set[str]:
        """Return the names of the variables in its texts."""
        texts = (self.prompt, self.system or "")
        return {name for text in texts for name in StringTemplate(text).get_identifiers()}


def templates_directory(paths: UserPaths | None = None) -> Path:
    """Return the directory of templates."""
    return (paths or UserPaths.from_environment()).settings.parent / "templates"


def read_template(name: str) -> Template:
    """Return a template by its name, or by the path of its file.

    Raises:
        SettingsError: there is none, or its file is wrong.
    """
    path = _file_of(name)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if name in _added_templates():
            return _added_templates()[name]
        hint = f"templates: {', '.join(template_names()) or 'none yet'}"
        if path == _named_path(name):
            hint = f"{hint}; `metis templates edit {name}` creates one"
        raise SettingsError(f"there is no template {name!r}; {hint}", place="--template") from None
    except OSError as error:
        raise SettingsError(str(error.strerror), place=str(path)) from None
    try:
        template = msgspec.toml.decode(data, type=Template)
        template.variables()
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise SettingsError(str(error), place=str(path)) from None
    return template


def template_names() -> list[str]:
    """Return the names of all templates: those of files, and those of plugins."""
    directory = templates_directory()
    files = [path.stem for path in directory.glob("*.toml")] if directory.is_dir() else []
    return sorted({*files, *_added_templates()})


@cache
def _added_templates() -> Mapping[str, Template]:
    """Return the templates of plugins; a file of the user with the same name comes first."""
    return load_plugins(TEMPLATES, _read_added)


def _read_added(_plugin: Plugin, value: object) -> Template:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a table with the keys of a template file, got {value!r:.80}")
    template = msgspec.convert(cast("Mapping[str, object]", value), Template)
    template.variables()  # raises for a `$` that begins no variable
    return template


def _file_of(name: str) -> Path:
    """Return the file of a template: by its path, or by its name in the directory."""
    is_path = name.endswith(".toml") or os.sep in name
    return Path(name).expanduser() if is_path else _checked_path(name)


def _checked_path(name: str) -> Path:
    # The name may come from a script, and must not leave the templates directory.
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{name!r} is not a valid template name", place="--template")
    return _named_path(name)


def _named_path(name: str) -> Path:
    return templates_directory() / f"{name}.toml"


def apply_template(
    name: str | None,
    params: Sequence[str],
    words: Sequence[str],
    start: Mapping[str, Any],
    *,
    extract: bool,
) -> tuple[tuple[str, ...], dict[str, Any], bool]:
    """Return the question and the options with those of a template; explicit options win.

    Raises:
        SettingsError: a variable has no value, or one is given that the template does not have.
    """
    if name is None:
        raise click.UsageError("-p sets a variable of a template; add -t NAME")
    template = read_template(name)
    values = {**template.defaults, **_values(params), INPUT: " ".join(words)}
    unknown = sorted(set(_values(params)) - template.variables())
    if unknown:
        raise SettingsError(f"the template {name} has no variable {unknown[0]!r}", place="--param")
    missing = sorted(template.variables() - values.keys())
    if missing:
        hint = f"add -p {missing[0]}=VALUE"
        raise SettingsError(f"the template {name} needs {', '.join(missing)}; {hint}", place="-p")
    prompt = StringTemplate(template.prompt).substitute(values)
    if words and INPUT not in StringTemplate(template.prompt).get_identifiers():
        prompt = f"{prompt}\n\n{values[INPUT]}"
    options = dict(start)
    system = None if template.system is None else StringTemplate(template.system).substitute(values)
    is_new = not (options.get("is_continued") or options.get("session_id"))
    for option, value in (
        ("system", system if is_new else None),
        ("model", template.model),
        ("thinking", template.thinking),
        ("tools", template.tools),
        ("schema", template.schema),
    ):
        if options.get(option) is None:
            options[option] = value
    return (prompt.strip(),) if prompt.strip() else (), options, extract or template.extract


def _values(params: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name:
            raise click.UsageError(f"-p {param}: write NAME=VALUE")
        values[name] = value
    return values


def print_templates(*, as_json: bool) -> int:
    """Print the templates with their descriptions."""
    rows = [(name, read_template(name)) for name in template_names()]
    if as_json:
        echo_json(msgspec.json.encode([{"name": name, **_fields(row)} for name, row in rows]))
        return 0
    if not rows:
        echo("No templates yet; `metis templates edit NAME` creates one.", err=True)
    for name, template in rows:
        first = template.description or template.prompt.strip().partition("\n")[0]
        echo(f"{name}  {style(escape_controls(first), dim=True)}")
    return 0


def _fields(template: Template) -> dict[str, Any]:
    return msgspec.to_builtins(template)


def print_template(name: str) -> int:
    """Print a template as TOML: the text of its file, or that of a plugin's template."""
    template, path = read_template(name), _file_of(name)
    text = path.read_text(encoding="utf-8") if path.exists() else _as_toml(template)
    echo(visible_controls(text), nl=False)
    return 0


def _as_toml(template: Template) -> str:
    import tomlkit  # noqa: PLC0415 - loaded for the template of a plugin only

    unset = msgspec.to_builtins(Template())
    fields = msgspec.to_builtins(template)
    return tomlkit.dumps({name: fields[name] for name in fields if fields[name] != unset[name]})


def _new_text(name: str) -> str:
    added = _added_templates().get(name)
    return _EXAMPLE if added is None else _as_toml(added)


def edit_template(name: str) -> int:
    """Open a template in the user's editor; a new one starts with an example."""
    path = _checked_path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = path.read_text(encoding="utf-8") if path.exists() else _new_text(name)
    edited = click.edit(before, extension=".toml")
    if edited is None or edited == before:
        echo("Nothing was changed.", err=True)
        return 0
    try:
        msgspec.toml.decode(edited, type=Template)
    except msgspec.DecodeError as error:
        raise SettingsError(f"not saved: {error}", place=str(path)) from None
    path.write_text(edited, encoding="utf-8")
    echo(f"Saved {path}; use it with: metis -t {name}", err=True)
    return 0
