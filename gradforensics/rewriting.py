"""Rewriting every text inside of a nested value: dataclasses, tuples, lists, mappings; what is unchanged is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


def rewritten(value: T, text: Callable[[str], str], *, keep: frozenset[str] = frozenset()) -> T:
    """The value with `text` applied to every string in it; fields of dataclasses that `keep` names stay as they are."""
    return _rewritten(value, text, keep)  # type: ignore[no-any-return]  # every kind of value keeps its type


def _rewritten(value: Any, text: Callable[[str], str], keep: frozenset[str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, tuple):
        parts = [_rewritten(one, text, keep) for one in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_rewritten(one, text, keep) for one in value]
    if isinstance(value, Mapping):
        return {_rewritten(key, text, keep): _rewritten(one, text, keep) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed: dict[str, Any] = {}
        for one in fields(value):
            if one.name not in keep and one.init:
                old = getattr(value, one.name)
                new = _rewritten(old, text, keep)
                if new is not old:
                    changed[one.name] = new
        return replace(value, **changed) if changed else value
    return value


def texts_in(value: Any, *, keep: frozenset[str] = frozenset()) -> list[str]:
    """Every string inside of a value, as `rewritten` meets them."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _rewritten(value, note, keep)
    return found
