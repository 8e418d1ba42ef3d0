"""Validators of transformations and predicates (org.apache.kafka.connect.transforms.util)."""

from __future__ import annotations

from mm2.config.configdef import ConfigException
from mm2.config.validators import Check, Validator


def non_empty_list() -> Check:
    """A list with at least one item; duplicates are kept."""

    def ensure(name: str, value: object) -> None:
        if not value:
            raise ConfigException(name, value, "Empty list")

    return Check(ensure, "non-empty list")


def non_null() -> Check:
    """Any value except null."""

    def ensure(name: str, value: object) -> None:
        if value is None:
            raise ConfigException(name, None, "entry must be non null")

    return Check(ensure, "non-null string")


def every(*validators: Validator) -> Check:
    """All of these validators in order (ConfigDef.CompositeValidator)."""

    def ensure(name: str, value: object) -> None:
        for validator in validators:
            validator.ensure_valid(name, value)

    return Check(ensure, ", ".join(map(str, validators)))
