"""Pictures, sound and files in messages: where they stand, and which of them a judge is sent."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoj_reward.errors import BadMessages

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of content parts that are read, in chat completions and the Responses API."""
UNREAD_PARTS = re.compile("thinking|reasoning|summary|refusal|tool|function")
"""Types of content parts that are neither text nor media. They are left out."""
MEDIA_PARTS = re.compile("image|audio|video|file|screenshot")
"""Types of content parts that are media. A tool's type may name a picture, too."""
SENT_PARTS = re.compile(f"{MEDIA_PARTS.pattern}|document")
"""Types of content parts that an endpoint may be sent."""
UNSAFE = re.compile(r"[<>\[\]|]")
"""Characters of which control tokens are made. No content or address needs them, and an endpoint
may write a file's name into its prompt."""
MEDIA_KEYS = re.compile(
    "(?:input_)?(?:audio|image|video|file|attachment)s?(?:_urls?)?"
    "|pixel_values|experimental_attachments"
)
"""Keys of a message or a part that hold pictures, sound or files beside its text."""
DOCUMENT_KEYS = re.compile("documents?")
"""Keys of a message or a part that hold documents. Those of text stay unread; others are media."""
RECORDED = "media"
"""Key of a message under which `messages_of` writes its media."""
FILE_TYPES = ("base64", "url", "file")
"""Types of a document's source that are no text."""
DOCUMENT_TEXTS = ("text", "content", "snippet", "data")
"""Keys of a document that hold its text."""
MAX_DEPTH = 32
"""Maximum depth of content parts within content parts, such as those of a tool's result."""
MARKS = {"image|screenshot|pixel": "[image]", "audio": "[audio]", "video": "[video]"}
"""What stands for media in a text, by a pattern of their kind."""
OTHER_MARK = "[file]"
ADDRESSED = re.compile("(image|audio|video)s?(?:_urls?)?")
"""Keys beside a text whose addresses have a content part of their own in chat completions."""
NAMES = frozenset(
    {"cache_control", "detail", "filename", "format", "media_type", "mime_type", "mimetype"}
    | {"name", "title", "ttl", "type"}
)
"""Keys of a content part, in small letters, whose texts only describe it."""
ENCODED = frozenset({"data", "file_data"})
"""Keys of a content part that hold base64."""
DATA = "data:"
"""Beginning of an address that holds the content itself."""
OMITTED_FLAG = "media_omitted"
"""Flag of a judgement whose judge read a mark in place of media."""
WRITE_IT = "leave such rows out, or write in the text what the media shows"


@dataclass(frozen=True, slots=True)
class MediaRules:
    """Which media a judge is sent."""

    reads: bool = False
    """Whether it reads media at all."""
    fetches: bool = False
    """Whether addresses are passed on, so that its endpoint fetches what is there."""
    omits: bool = False
    """Whether a mark replaces media that it is not sent. Else their input is rejected."""


@dataclass(frozen=True, slots=True)
class Media:
    """A picture, a sound or a file in a message."""

    kind: str
    """Type of its content part, or the key under which it stands, such as `image_url`."""
    place: int = 0
    """Number of characters of the turn's text before it."""
    sha256: str = ""
    """Digest of the content, by which two pictures make two inputs."""
    part: str = field(default="", compare=False, repr=False)
    """Content part of chat completions, as JSON. Empty if there is none that is safe to send, and
    if only the digest is known, as from a journal."""
    elsewhere: bool = field(default=False, compare=False)
    """Whether the part holds an address, or anything else but the content."""

    @classmethod
    def of(cls, kind: str, place: int, part: Mapping[str, Any]) -> Media:
        """Return the media of a content part."""
        try:
            text = json.dumps(part, ensure_ascii=False, allow_nan=False, sort_keys=True)
            encoded = text.encode()
        except (TypeError, ValueError, RecursionError):
            return cls.without_part(kind, place, part)
        texts = [(key, inner) for key, inner in _list_texts(part) if key not in NAMES]
        is_media = SENT_PARTS.search(other_type(part))
        if not is_media or any(UNSAFE.search(inner) for _, inner in _list_texts(part)):
            return cls.without_part(kind, place, part)
        has_content = bool(texts) and all(_is_content(key, inner) for key, inner in texts)
        digest = hashlib.sha256(encoded).hexdigest()
        return cls(kind, place, digest, text, not has_content)

    @classmethod
    def without_part(cls, kind: str, place: int, value: Any) -> Media:
        """Return media that chat completions have no form for."""
        try:
            text = json.dumps(value, default=_digest_object, skipkeys=True, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
        return cls(kind, place, hashlib.sha256(text.encode()).hexdigest())

    @property
    def mark(self) -> str:
        """What stands for it in a text."""
        marks = (mark for pattern, mark in MARKS.items() if re.search(pattern, self.kind))
        return next(marks, OTHER_MARK)

    def explain_refusal(self, rules: MediaRules) -> str:
        """Return why a judge is not sent it; empty if it is."""
        if not rules.reads:
            return (
                f"and this judge reads text alone: {WRITE_IT}; judge.shows_media can omit them, "
                "and judge.reads_media says that an endpoint reads them"
            )
        if not self.part:
            return "which no endpoint takes: write each as a content part with a data: address"
        if self.elsewhere and not rules.fetches:
            return (
                "whose content is not in the message: only data: addresses are read, unless "
                "judge.fetches_media is true"
            )
        return ""

    def record(self, whole: bool = False) -> dict[str, Any]:
        """Return it as JSON data: its digest or, if `whole`, its content."""
        data = {"kind": self.kind, "place": self.place, "sha256": self.sha256}
        return data | ({"part": json.loads(self.part)} if whole and self.part else {})


def describe_media(media: Iterable[Media]) -> str:
    """Return the beginning of a reason that names the kinds of media; empty if there is none."""
    kinds = list(dict.fromkeys(found.kind for found in media))
    shown_kinds = ", ".join(f"{kind!r:.40}" for kind in kinds[:8])
    return f"messages hold media ({shown_kinds})" if kinds else ""


def explain_media(media: Iterable[Media], readers: str) -> str:
    """Return why those who read text alone cannot be given media; empty if there is none."""
    words = describe_media(media)
    return words and f"{words}, and {readers} read text alone: {WRITE_IT}"


def with_marks(text: str, media: Iterable[Media]) -> str:
    """Return a text with a mark in the place of each of its media."""
    return "".join(piece for piece, _ in split_at_media(text, media))


def split_at_media(text: str, media: Iterable[Media]) -> Iterator[tuple[str, Media | None]]:
    """Yield the pieces of a text in order, each with None, and between them the mark of each of its
    media with the media itself."""
    start = 0
    for found in media:
        yield text[start : found.place], None
        yield found.mark, found
        start = found.place
    yield text[start:], None


def find_media(message: Mapping[str, Any], where: str, most: int) -> tuple[Media, ...]:
    """Return the media of a message in order: parts of its content, and what keys beside it hold.

    A place counts the characters of the text parts before it, which a line break joins. Media
    beside the text stand at its beginning. most: characters of the message's text.
    """
    found = list(_read_keys(message, 0))
    content = message.get("content")
    inner: dict[int, tuple[Mapping[str, Any], int]] = {}
    texts = 0
    place = 0
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        for part in content:
            if not isinstance(part, Mapping):
                continue
            if not other_type(part):
                text = part.get("text")
                place += (len(text) if isinstance(text, str) else 0) + (texts > 0)
                texts += 1
            found += _read_part(part, place)
            inner |= {key: (within, place) for key, within in list_parts(part).items()}
    found += _find_inner(inner, where)
    found += _read_record(message.get(RECORDED), most)
    return tuple(sorted(found, key=lambda media: media.place))


def _find_inner(inner: dict[int, tuple[Mapping[str, Any], int]], where: str) -> Iterator[Media]:
    """Yield the media of parts within parts, such as those of a tool's result.

    inner: parts by their identity, each with the place of the part around it. One that stands in
    several places is looked at once, so that the work stays linear.
    """
    for _ in range(MAX_DEPTH):
        deeper: dict[int, tuple[Mapping[str, Any], int]] = {}
        for part, place in inner.values():
            yield from _read_part(part, place)
            deeper |= {key: (within, place) for key, within in list_parts(part).items()}
        inner = deeper
        if not inner:
            return
    reason = f"parts within parts, over {MAX_DEPTH} deep, or a part that holds itself"
    raise BadMessages(f"{where}.content", reason)


def _read_part(part: Mapping[str, Any], place: int) -> Iterator[Media]:
    """Yield the media that a content part is, or that stand under its keys."""
    kind = other_type(part)
    if kind and (MEDIA_PARTS.search(kind) or not UNREAD_PARTS.search(kind)):
        yield Media.of(kind, place, part)
    else:
        yield from _read_keys(part, place)


def _read_keys(fields: Mapping[str, Any], place: int) -> Iterator[Media]:
    """Yield the media under the keys of a message or a part."""
    for key, value in fields.items():
        if not isinstance(key, str) or is_empty(value):
            continue
        if MEDIA_KEYS.fullmatch(key):
            values = value if isinstance(value, list | tuple) else [value]
            for entry in values:
                yield _read_entry(key, entry, place)
        elif DOCUMENT_KEYS.fullmatch(key):
            documents = [value] if isinstance(value, str | bytes | Mapping) else value
            if not all(map(_is_text_document, documents)):
                yield Media.without_part(key, place, value)


def _read_entry(key: str, entry: Any, place: int) -> Media:
    """Return media that a key holds. An address becomes the content part that holds one."""
    address = entry.get("url") if isinstance(entry, Mapping) else entry
    kind = ADDRESSED.fullmatch(key)
    if kind is None or not isinstance(address, str):
        return Media.without_part(key, place, entry)
    name = f"{kind[1]}_url"
    return Media.of(key, place, {"type": name, name: {"url": address}})


def _read_record(value: Any, most: int) -> Iterator[Media]:
    """Yield media that `Media.record` wrote, here or in another process."""
    if is_empty(value):
        return
    for entry in value if isinstance(value, list) else [value]:
        fields = entry if isinstance(entry, Mapping) else {}
        kind = fields.get("kind")
        place = fields.get("place")
        if not isinstance(kind, str) or type(place) is not int or not 0 <= place <= most:
            yield Media.without_part(RECORDED, 0, entry)
        elif isinstance(fields.get("part"), Mapping):
            yield Media.of(kind, place, fields["part"])
        else:
            yield Media(kind, place, str(fields.get("sha256", "")))


def list_parts(fields: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the parts in the content of a message or a part, by their identity."""
    content = fields.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return {}
    return {id(part): part for part in content if isinstance(part, Mapping)}


def _list_texts(part: Any) -> Iterator[tuple[str, str]]:
    """Yield each text in a content part, after the key in small letters that it stands under."""
    values: list[tuple[str, Any]] = [("", part)]
    while values:
        key, value = values.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, Mapping):
            values += [(str(name).lower(), inner) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            values += [(key, inner) for inner in value]


def _is_content(key: str, text: str) -> bool:
    """Return whether a text in a content part is content: a data: address, or base64."""
    # Base64 has neither of the characters without which there is no address.
    is_base64 = key in ENCODED and ":" not in text and "." not in text
    return is_base64 or text.startswith(DATA)


def _digest_object(value: Any) -> str:
    """Return a digest of what JSON has no form for, such as bytes, arrays and pictures of PIL."""
    data = value if isinstance(value, bytes) else getattr(value, "tobytes", bytes)()
    return f"{type(value).__name__} {hashlib.sha256(data).hexdigest()}"


def _is_text_document(document: Any) -> bool:
    """Return whether a document is a text, or holds one beside nothing but names.

    Text stands under `text`, `content`, `snippet` or `data`, also within `source` or `data`.
    """
    if isinstance(document, str):
        return True
    if not isinstance(document, Mapping) or _is_file(document):
        return False
    for name in ("source", "data"):
        inner = document.get(name)
        if isinstance(inner, Mapping):
            return not _is_file(inner) and _has_text(inner)
    return _has_text(document)


def _has_text(document: Mapping[str, Any]) -> bool:
    return any(isinstance(document.get(name), str) for name in DOCUMENT_TEXTS)


def _is_file(document: Mapping[str, Any]) -> bool:
    """Return whether a document tells of a file, rather than of a text."""
    media_type = document.get("media_type") or document.get("mime_type") or "text/plain"
    if not str(media_type).startswith("text/") or document.get("type") in FILE_TYPES:
        return True
    if any(isinstance(value, bytes) for value in document.values()):
        return True
    keys = (key for key in document if isinstance(key, str) and MEDIA_KEYS.fullmatch(key))
    return any(not is_empty(document[key]) for key in keys)


def is_empty(value: Any) -> bool:
    """Return whether a value stands for nothing: null, false, or a list or array of no length."""
    try:
        return not len(value)
    except TypeError:
        return not value


def other_type(part: Any) -> str:
    """Return the type of a content part that is no text; "" for text, and without a type."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind in TEXT_PARTS:
        return ""
    return kind or "part without a type"
