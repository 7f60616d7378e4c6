"""A tokenizer.json, opened with the library `tokenizers` (the extra "data"); nothing of it is executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradforensics.audit.known import Known
from gradforensics.errors import UsageError

_LARGEST_CONFIG = 16 << 20
_UNBOUNDED = 10**9  # what transformers writes where a tokenizer has no longest text


class Tokenizer:
    """The tokenizer of a file, and what the tokenizer_config.json beside it calls its special tokens."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Library  # noqa: PLC0415  optional, and loaded only where it is asked for
        except ImportError:
            text = "--tokenizer needs the library tokenizers: pip install 'gradforensics[data]'"
            raise UsageError(text) from None
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise UsageError(f"--tokenizer {path}: no such file; it wants a tokenizer.json")
        try:
            self._library = Library.from_file(str(path))
        except Exception as error:  # noqa: BLE001  the library raises the plain Exception for everything
            text = str(error).split("\n", 1)[0][:200]
            raise UsageError(f"--tokenizer {path}: no tokenizer that the library tokenizers reads ({text})") from None
        self._library.no_padding()
        self._library.no_truncation()
        self._config = _beside(path)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, with the special tokens that the tokenizer adds by itself."""
        return [one.ids for one in self._library.encode_batch_fast(list(texts))]

    def known(self, known: Known) -> Known:
        """What is known of the run, with what the tokenizer's files add."""
        longest = self._config.get("model_max_length")
        sane = isinstance(longest, int) and 0 < longest < _UNBOUNDED
        return known.with_tokenizer(
            self._library.get_vocab_size(with_added_tokens=True),
            self._special("pad_token"),
            self._special("eos_token"),
            longest if sane else None,
        )

    def _special(self, key: str) -> frozenset[int]:
        token = self._config.get(key)
        content = token.get("content") if isinstance(token, dict) else token
        found = self._library.token_to_id(content) if isinstance(content, str) else None
        return frozenset() if found is None else frozenset({found})


def _beside(path: Path) -> dict[str, Any]:
    """tokenizer_config.json and special_tokens_map.json, as far as they are there and can be read."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = path.with_name(name)
        try:
            if file.is_file() and file.stat().st_size <= _LARGEST_CONFIG:
                value = json.loads(file.read_text(encoding="utf-8", errors="replace"))
                found |= value if isinstance(value, dict) else {}
        except (OSError, ValueError, RecursionError):
            continue
    return found
