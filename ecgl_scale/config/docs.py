"""The generated part of docs/configuration.md: a row for each key, and what the presets set."""

from __future__ import annotations

import json
from pathlib import Path

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.config.messages import Schema, describe_values, keys_of
from ecgl_scale.config.presets import PRESETS
from ecgl_scale.config.schema import config_class
from ecgl_scale.errors import UsageError

BEGIN, END = "<!-- generated from the schema: begin -->", "<!-- generated from the schema: end -->"


def configuration_table() -> str:
    """Markdown: a table for each section with a row for each key, and one of the keys that presets set."""
    schema = config_class().model_json_schema()
    parts = []
    for section, keys in keys_of(schema).items():
        parts.append(f"## {section}\n\n{_summary(schema, section)}" if section else "## Top")
        parts.append("\n".join(_rows(section, keys)))
    parts += ["## Presets", "What each sets; a key that you give yourself wins.", "\n".join(_preset_rows())]
    return "\n\n".join(parts)


def update_page(path: Path) -> None:
    """Put the tables between the two marks of a page."""
    page = path.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise UsageError("the page does not say where the tables go", where=path, expected=f"{BEGIN} ... {END}")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    write_atomically(path, f"{before}{BEGIN}\n\n{configuration_table()}\n\n{END}{after}")


def _summary(schema: Schema, section: str) -> str:
    name = schema["properties"][section]["$ref"].rpartition("/")[2]
    return str(schema["$defs"][name]["description"])


def _rows(section: str, keys: dict[str, Schema]) -> list[str]:
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for key, described in keys.items():
        name = f"{section}.{key}" if section else key
        default = f"`{_shown(described['default'])}`" if "default" in described else "required"
        rows.append(f"| `{name}` | {describe_values(described, mark='`')} | {default} | {described['description']} |")
    return rows


def _preset_rows() -> list[str]:
    columns = [*PRESETS]
    rows = [f"| key | {' | '.join(f'`{name}`' for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    names = dict.fromkeys(
        (section, key) for preset in PRESETS.values() for section in preset for key in preset[section]
    )
    for section, key in names:
        cells = [f"`{_shown(PRESETS[name][section][key])}`" for name in columns]
        rows.append(f"| `{section}.{key}` | {' | '.join(cells)} |")
    return rows


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
