"""All families of shell tasks, in the order of the crafts."""

from __future__ import annotations

from treadle.envs.shell import (
    archives,
    columns,
    comparing,
    counting,
    editing,
    finding,
    making,
    moving,
    permissions,
    reading,
    searching,
    sorting,
)
from treadle.envs.shell.family import Family

FAMILIES: tuple[Family, ...] = (
    *counting.FAMILIES,
    *reading.FAMILIES,
    *searching.FAMILIES,
    *finding.FAMILIES,
    *columns.FAMILIES,
    *sorting.FAMILIES,
    *making.FAMILIES,
    *moving.FAMILIES,
    *editing.FAMILIES,
    *archives.FAMILIES,
    *permissions.FAMILIES,
    *comparing.FAMILIES,
)
"""Every family once."""
