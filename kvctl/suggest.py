"""Suggestions for a misspelled name: "Did you mean ...?". [pure]"""

from collections.abc import Iterable

CUTOFF = 0.75
"""Minimum similarity of two words, from 0 to 1: less similar words are usually other words."""
SHORTEST = 3
"""Minimum length in characters of a word that suggests by its beginning, or by one wrong letter."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` probably means, in any case, or None."""
    from difflib import get_close_matches

    folded = {name.lower(): name for name in known}
    wanted = word.lower()
    close = [wanted] if wanted in folded else get_close_matches(wanted, folded, n=1, cutoff=CUTOFF)
    if not close and len(wanted) >= SHORTEST:
        begun = [name for name in folded if name.startswith(wanted)]
        close = begun if len(begun) == 1 else [name for name in folded if _one_slip(wanted, name)]
    return folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], then: str = "", *, otherwise: str | None = None) -> str:
    """Return a hint: "Did you mean `NEAREST`?" and `then`; if no word is near, `otherwise` or, without it, `then`."""
    near = nearest(word, known)
    if near is None:
        return then if otherwise is None else otherwise
    return f"Did you mean `{near}`? {then}".rstrip()


def _one_slip(word: str, name: str) -> bool:
    """Return True if the words differ in one letter but the first, or in two swapped neighbours."""
    if len(word) != len(name):
        return False
    wrong = [at for at, (one, other) in enumerate(zip(word, name, strict=True)) if one != other]
    if len(wrong) == 2:
        first, second = wrong
        return second == first + 1 and word[first] == name[second] and word[second] == name[first]
    return len(wrong) == 1 and wrong[0] > 0
