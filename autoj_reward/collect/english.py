"""Whether a text is English, by two counts that need no model.

Of its letters nine in ten must be those of English, and among its words the commonest ones of
English must not be outnumbered by those of another language in Latin script. Code and short texts
without such words pass. It is a filter for corpora: single short texts can be misjudged.
"""

from __future__ import annotations

import re

LETTERS = 0.9
COMMON = {
    "en": "the of and to in is that it for you was with on as are be this have from or not but "
    "what your can how will would about which do if they we my",
    "de": "der die das und ist nicht ein eine einen ich sie mit auf für dem den des von zu wie "
    "auch werden wird sich oder",
    "es": "el los las una por para con del que como más pero sobre este está son cómo qué y su",
    "fr": "le les des et est une pour dans que qui pas sur avec vous je ce sont plus au du nous",
    "it": "il che per una sono con non più gli della del come anche nel questo alla è dei e",
    "nl": "de het een van en niet dat voor met zijn op aan ook wordt hoe ik naar deze",
    "pl": "nie jest się na że jak do w z to przez oraz czy dla są",
    "pt": "o os uma para com não que mais como dos das por são você em um é e seu",
}
WORDS = {language: frozenset(text.split()) for language, text in COMMON.items()}


def is_english(text: str) -> bool:
    """True for English and for text without letters, code among it."""
    letters = [c for c in text if c.isalpha()]
    if not letters:
        return True
    if sum(c.isascii() for c in letters) < LETTERS * len(letters):
        return False
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {language: sum(word in common for word in words) for language, common in WORDS.items()}
    english = counts.pop("en")
    return english >= max(counts.values())
