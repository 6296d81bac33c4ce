"""Reading of an endpoint's refusal: its words, and which parameter or fault they name.

Every judgement on a refusal is a table here, since no two endpoints use the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.io.http import read_json

RESPONSE_FORMAT = "response_format"
"""Parameter that holds the JSON schema of the answer."""
SYSTEM = "system"
"""Role of a message that some endpoints refuse. Learned like a parameter."""
Replacement = str | float | None
"""What is sent in place of a refused parameter: another name, another value, or nothing."""
PARAMETER_FALLBACKS: Mapping[str, str | None] = {
    "max_tokens": "max_completion_tokens",
    "top_p": None,
    "seed": None,
    "frequency_penalty": None,
    "temperature": None,
    "logprobs": None,
    "top_logprobs": None,
    "return_tokens_as_token_ids": None,
    "continue_final_message": None,
    "add_generation_prompt": None,
    RESPONSE_FORMAT: None,
}
"""Parameters that some endpoints do not support: the name to send in their place, or None to omit
them. Of two that exclude each other, the first one goes."""
LOGPROBS = ("logprobs", "top_logprobs")
"""Parameters that are refused together."""
OF_SAMPLING = ("temperature", "seed")
"""Parameters without which a verdict cannot be repeated."""

UNSUPPORTED = re.compile(
    r"\b(?:un(?:supported|recogni[sz]ed|known|expected)|deprecated|obsolete|disallowed|no longer"
    r"|extra_forbidden|additional propert(?:y|ies)|cannot find field|not implemented"
    r"|(?:extra|superfluous) (?:inputs?|fields?|parameters?|arguments?))"
    r"|\b(?:not|n't|cannot|never) (?:be )?(?:a )?(?:yet )?(?:currently )?"
    r"(?:supported?|permitted|allowed?|enabled|accept(?:ed)?|available|recogni[sz]ed|valid"
    r"|configurable|set|specified|modified|changed|used|customi[sz]ed)\b"
    r"|\binvalid (?:parameter|argument|field|property|key|option)\b"
    r"|\bis (?:fixed|ignored|read-only)\b",
    re.IGNORECASE,
)
"""Wording of a refusal that is about an unsupported parameter."""
EXCLUDE_EACH_OTHER = re.compile(
    r"\bcannot both\b|\bnot both\b|\bboth\b.{0,80}\b(?:not|cannot)\b|\bmutually exclusive\b"
    r"|\bat the same time\b|\bonly one of\b|\btogether with\b|\bin combination\b|\beither\b",
    re.IGNORECASE,
)
"""Wording of a refusal of two parameters that are accepted one at a time."""
ONLY_VALUE = re.compile(
    r"\bonly (?:supports? |accepts? |allows? )?(?:temperature |top_p )?(?:the )?(?:default )?"
    r"(?:value )?(?:of )?[=(`'\"]*(\d+(?:\.\d+)?)(?!\.?\d|\s*(?:to|and|-))"
    r"|\b(?:must|should|can|may|has to) (?:only )?be (?:set to |equal to |exactly |fixed to )*"
    r"[`'\"]?(\d+(?:\.\d+)?)(?!\.?\d|\s*(?:or|to|and|-|<))",
    re.IGNORECASE,
)
"""Wording of a refusal that names the only value of a parameter, with that number."""
OUT_OF_RANGE = re.compile(
    r"\bbetween\b|\brange\b|\b(?:less|greater|smaller|larger|more) than\b|\bat (?:most|least)\b"
    r"|\btoo (?:large|small|high|low|big|long)\b|\bmaximum\b|\bminimum\b|\bexceed|[<>]=?",
    re.IGNORECASE,
)
"""Wording of a refusal of a value that the user has to correct."""
NO_SCHEMA = re.compile(r"response[_ ]format|json[_ ]schema", re.IGNORECASE)
"""Wording of a refusal that is about the schema. The schema is this package's own, so no such
refusal is the user's to correct, whatever its other words are."""
UNNAMED = re.compile(
    r"\b(?:extra|un(?:known|supported|recogni[sz]ed|expected)) "
    r"(?:request )?(?:inputs?|fields?|parameters?|arguments?|propert(?:y|ies)|keys?)\b",
    re.IGNORECASE,
)
"""Wording of a refusal of a parameter that it does not name."""
NO_SYSTEM = re.compile(
    r"\b(?:system|developer) (?:role|message|prompt|instruction)s?\b.{0,60}"
    r"(?:\bnot\b|n't\b|\bun(?:supported|expected|known)\b)"
    r"|(?:\bnot\b|n't\b|\bun(?:supported|expected|known)\b|\binvalid\b).{0,40}"
    r"\b(?:system (?:role|message|prompt|instruction)|role[^a-z]{0,4}system|system['\"`] role)"
    r"|\brole[^a-z]{0,4}system\b.{0,40}(?:\bnot\b|n't\b|\bun(?:supported|expected|known)\b)"
    r"|\broles? must alternate\b|\bonly user(?:,| and) (?:assistant|model)\b"
    r"|\bfirst message\b.{0,40}\buser\b|\bmust (?:start|begin) with (?:a |the )?user\b"
    r"|['\"`]user['\"`](?:,| or| and) ['\"`](?:assistant|model)['\"`]",
    re.IGNORECASE,
)
"""Wording of a refusal of a system message."""
NO_CREDIT = re.compile(
    r"\binsufficient (?:account )?(?:balance|credits?|funds|quota)\b|\bcredit balance\b"
    r"|\b(?:no|out of|run out of|not enough) credits?\b|\brecharge\b|\btop up\b|\bin arrears\b"
    r"|\bpayment (?:is )?(?:required|overdue)\b|\bbilling (?:hard )?limit\b"
    r"|\bbudget has been exceeded\b|\bspending limit\b|\bused all (?:available )?credits?\b"
    r"|\bkey limit exceeded\b|\bfree tier\b.{0,60}\b(?:exhausted|used up)\b",
    re.IGNORECASE,
)
"""Wording of a refusal because the account is empty. It counts only if several inputs and two words
meet it, since a refusal may quote a text."""
OF_MEDIA = re.compile(
    r"\b(?:images?|pictures?|audio|videos?|vision|visual|multi-?modal(?:ity)?|media|files?"
    r"|(?:image|audio|video|file)_(?:url|input)s?)\b",
    re.IGNORECASE,
)
"""Wording of a refusal that is about pictures, sound or files."""
UNSUPPORTED_INPUT = re.compile(r"\bno endpoints found that support\b", re.IGNORECASE)
"""Wording of a router's refusal of what none of its endpoints takes."""
OUTPUT_LIMIT = re.compile(r"output limit|max_(?:completion_)?tokens|budget_tokens", re.IGNORECASE)
"""Wording of a refusal because there are too few tokens for the model's thinking."""

QUOTA, KEY, MODEL = "quota", "key", "model"
"""Parts of an account or a config that a permanent fault may be about."""
PERMANENT_CODES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "402",
            "accountoverdueerror",
            "allocationquota.freetieronly",
            "arrearage",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "budget_exceeded",
            "exceeded_current_quota_error",
            "insufficient_balance",
            "insufficient_credit",
            "insufficient_credits",
            "insufficient_funds",
            "insufficient_quota",
            "insufficient_user_quota",
            "payment_required",
        ),
        QUOTA,
    ),
    **dict.fromkeys(
        (
            "access_terminated",
            "account_deactivated",
            "account_suspended",
            "api_key_revoked",
            "expired_api_key",
            "incorrect_api_key",
            "invalid_api_key",
            "invalid_authentication_error",
            "invalidapikey",
            "key_revoked",
            "organization_deactivated",
        ),
        KEY,
    ),
    **dict.fromkeys(
        (
            "deploymentnotfound",
            "invalid_model",
            "invalidendpointormodel.notfound",
            "model_decommissioned",
            "model_deprecated",
            "model_not_available",
            "model_not_found",
            "modelnotfound",
            "modelnotopen",
            "unknown_model",
        ),
        MODEL,
    ),
}
"""Codes of faults that no retry mends, in small letters, with what is at fault. Words alone do not
count: an endpoint with limits per minute calls them a quota too, and a refusal may quote a text."""
PERMANENT_STATUSES: Mapping[int, str] = {401: KEY, 402: QUOTA}
"""Statuses that stand for such a fault, whatever the body says."""
EXPIRED_CODES = frozenset(
    {"expired_token", "expiredtoken", "expiredtokenexception", "token_expired"}
)
"""Codes of a key that was valid before, in small letters."""
REMEDIES: Mapping[str, str] = {
    QUOTA: "the quota or credit of the account is used up: top it up, or name another endpoint",
    KEY: "the endpoint refuses the key: put a valid one where api_key_env, api_key_file or "
    "api_key_command finds it",
    MODEL: "the endpoint has no such model: check model and base_url",
    "": "check base_url, model and api_key_env (or api_key_file, api_key_command)",
}
"""What the user can do, by what is at fault."""
UNTIMELY = (408, 409, 425)
"""Statuses that mostly pass. An input that meets them again and again fails alone."""
UNROUTED = (404, 424, *UNTIMELY)
"""Statuses that pass now and then, so that they are asked again before they count."""
REFUSED = frozenset(range(400, 500)) - {401, 402, 429}
"""Statuses that refuse a request, which may be the input's fault."""
OF_PARAMETERS = (400, 413, 422)
"""Statuses of REFUSED that may be the parameters' fault."""
BUSY = (408, 429, 503, 504, 529)
"""Statuses of a server that has more requests than it can answer."""

_INSIDE = ("error", "detail", "details", "errors", "metadata", "innererror")
_CODES = ("code", "type", "status", "error_code", "reason", "error_type")
_NAMES = ("param", "parameter", "field", "property")
_WORDS = ("message", "msg", "error", "detail", "title", "error_description", "error_msg")
MAX_NODES = 100
"""Parts of a refusal's JSON that are read."""
MAX_WORDS = 2000
"""Characters of a refusal that are searched."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request, in the endpoint's words."""

    status: int
    """HTTP status, or the one that an error with status 200 names; 0 if it names none."""
    words: str
    """Its message, or all of its text."""
    codes: frozenset[str] = frozenset()
    """Codes and types, in small letters."""
    names: tuple[str, ...] = ()
    """Fields of the request that it names apart from its message."""

    @property
    def cause(self) -> str:
        """What is at fault that no retry mends: a key of REMEDIES; "" if nothing is known."""
        for code in self.codes:
            if code in PERMANENT_CODES:
                return PERMANENT_CODES[code]
        return PERMANENT_STATUSES.get(self.status, "")

    @property
    def likely_cause(self) -> str:
        """The same, by words that count only if many requests meet them."""
        return self.cause or (QUOTA if NO_CREDIT.search(self.words[:MAX_WORDS]) else "")

    @property
    def is_of_media(self) -> bool:
        """Whether media are refused because they are not supported."""
        words = self.words[:MAX_WORDS]
        is_unsupported = UNSUPPORTED.search(words) or UNSUPPORTED_INPUT.search(words)
        return bool(is_unsupported and OF_MEDIA.search(words))

    @property
    def is_of_key(self) -> bool:
        """Whether the key is refused, so that a new one may help."""
        return self.status == 401 or bool(self.codes & EXPIRED_CODES)

    @property
    def gist(self) -> str:
        """Status and message without numbers and ids, which differ between equal refusals."""
        words = [word for word in self.words[:MAX_WORDS].split() if word.isalpha()]
        return f"{self.status} {' '.join(words)}"


def read_refusal(status: int, data: bytes) -> Refusal:
    """Read the body of a refusal, whatever its shape is."""
    text = data.decode("utf-8", "replace")
    try:
        body = read_json(data)
    except ValueError:
        return Refusal(status, text)
    return refusal_of(status, body, text)


def refusal_in(error: Any, status: int) -> Refusal:
    """Return the refusal that an error with status 200 is. status: the one that it names."""
    counts = status in REFUSED or status in PERMANENT_STATUSES
    return refusal_of(status if counts else 0, {"error": error}, "an error without words")


def refusal_of(status: int, body: Any, text: str) -> Refusal:
    """Return the refusal that a JSON value describes. text: its words if it has no message."""
    words: list[str] = []
    codes: set[str] = set()
    names: list[str] = []
    nodes = [body]
    # Only known fields are followed: others may hold the request, which untrusted text is part of.
    for node in nodes:
        if isinstance(node, list):
            nodes += node[: MAX_NODES - len(nodes)]
        if not isinstance(node, dict):
            continue
        words += [node[key] for key in _WORDS if isinstance(node.get(key), str)]
        codes |= {str(node[key]).lower() for key in _CODES if _is_code(node.get(key))}
        names += [node[key] for key in _NAMES if isinstance(node.get(key), str)]
        if isinstance(loc := node.get("loc"), list):
            names += [part for part in loc if isinstance(part, str)]
        inside = [node[key] for key in _INSIDE if isinstance(node.get(key), dict | list)]
        nodes += inside[: max(0, MAX_NODES - len(nodes))]
        if isinstance(message := node.get("message"), dict) and len(nodes) < MAX_NODES:
            nodes.append(message)
    return Refusal(status, "; ".join(words) or text, frozenset(codes), tuple(names))


def _is_code(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def find_replacement(
    refusal: Refusal, body: Mapping[str, Any], own_names: Sequence[str], tiny: bool
) -> tuple[str, Replacement] | None:
    """Return the parameter that a refusal is about, with what to send in its place.

    body: the request that was refused. own_names: its parameters that may be changed; others are
    the user's. tiny: whether the input is known to be acceptable. Returns None if the refusal is
    about something else.
    """
    words = refusal.words[:MAX_WORDS]
    if RESPONSE_FORMAT in own_names and (
        RESPONSE_FORMAT in refusal.names or NO_SCHEMA.search(words)
    ):
        return RESPONSE_FORMAT, None
    if has_system(body) and NO_SYSTEM.search(words):
        return SYSTEM, "user"
    stated = [name for name in refusal.names if name in own_names]
    named = stated or _list_mentioned(words, own_names)
    if not named:
        optional = [name for name in _FIRST_TO_GO if name in own_names and name in _OPTIONAL]
        return (optional[0], None) if tiny and optional and UNNAMED.search(words) else None
    if EXCLUDE_EACH_OTHER.search(words) and _mentions_another(words, named, body):
        return min(named, key=_FIRST_TO_GO.index), None
    for name in named:
        value = _read_only_value(words)
        if name in ("temperature", "top_p") and value is not None and value != body[name]:
            return name, value
    if UNSUPPORTED.search(words) or refusal.codes & _UNSUPPORTED_CODES:
        return named[0], PARAMETER_FALLBACKS.get(named[0])
    # The input of a tiny request is good, so what is named is at fault, whatever the words are. A
    # value out of its range is the user's to correct.
    is_users = OUT_OF_RANGE.search(words) and not _is_own_value(named[0], body)
    if tiny and named[0] in _OPTIONAL and not is_users:
        return named[0], None
    return None


def _is_own_value(name: str, body: Mapping[str, Any]) -> bool:
    """Return whether this package chose the value of a parameter: some endpoints take no 0."""
    return name == "seed" or (name == "temperature" and body[name] == 0)


_FIRST_TO_GO = [*PARAMETER_FALLBACKS, *filter(None, PARAMETER_FALLBACKS.values())]
_OPTIONAL = frozenset(name for name, fallback in PARAMETER_FALLBACKS.items() if fallback is None)
_UNSUPPORTED_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"}
)


def _list_mentioned(words: str, names: Sequence[str]) -> list[str]:
    """Return the names that a text mentions, in order."""
    places = {}
    for name in names:
        if match := re.search(rf"\b{re.escape(name)}\b", words, re.IGNORECASE):
            places[name] = match.start()
    return sorted(places, key=places.__getitem__)


def _mentions_another(words: str, named: Sequence[str], body: Mapping[str, Any]) -> bool:
    """Return whether a text mentions one more parameter of the request than the first of a list."""
    return len(_list_mentioned(words, [*body])) > 1 or len(named) > 1


def _read_only_value(words: str) -> float | None:
    match = ONLY_VALUE.search(words)
    return float(match[1] or match[2]) if match else None


def has_system(body: Mapping[str, Any]) -> bool:
    """Return whether a request begins with a system message."""
    messages = body.get("messages") or ()
    return any(message["role"] == SYSTEM for message in messages[:1])
