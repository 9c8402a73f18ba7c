"""Which of several models is the newest, told by their names alone; a server's own dates are often made up.

A name is taken apart into its date, its sizes and the numbers that are left, its version:

==================================  ===========  ==============  =======
name                                version      date            sizes
==================================  ===========  ==============  =======
``gpt-4.1-mini-2025-04-14``         4, 1         2025-04-14
``claude-3-5-haiku-20241022``       3, 5         2024-10-22
``llama-3.10-70b-instruct``         3, 10                        70
``kimi-k2-0905``                    2            0905, no year
==================================  ===========  ==============  =======

Newer is the higher version (3.6 < 3.10), then the later date. A name without a date counts as older than the same
with one: it is an alias that moves on by itself, while the snapshot says what it is. Then the larger size counts, and
last the shorter name, as the one with fewer odd words.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

_DATE: Final = re.compile(r"(?<![0-9])(20[0-9]{2})([-_.]?)(0[1-9]|1[0-2])\2(0[1-9]|[12][0-9]|3[01])(?![0-9])")
#: Month and day, or year and month, of a name without a whole date: ``-0905``, ``-2407``, ``-05-06`` at the end.
_STAMP: Final = re.compile(r"(?<=[-_])(?:([0-9]{4})(?![0-9a-z.])|([0-9]{2})-([0-9]{2})$)")
#: ``70b``, ``8x7b``, ``32k``: parameters or a context, no version.
_SIZE: Final = re.compile(r"(?<![0-9.])(?:[0-9]+x)?([0-9]+(?:\.[0-9]+)?)[bkm](?![a-z0-9])", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+")

Age = tuple[tuple[int, ...], int, tuple[float, ...], int, str]


def newest(pattern: str, names: Iterable[str]) -> str | None:
    """The newest of the names that the glob fits, whole and with its case; None if it fits none."""
    return max((name for name in names if fnmatchcase(name, pattern)), key=age, default=None)


def age(name: str) -> Age:
    """What names are compared by: the greatest is the newest."""
    rest, date = _take_date(name)
    sizes = tuple(float(size) for size in _SIZE.findall(rest))
    version = tuple(int(number) for number in _NUMBER.findall(_SIZE.sub("", rest)))
    return version, date, sizes, -len(name), name


def _take_date(name: str) -> tuple[str, int]:
    """The name without its date, and that as a number that grows; 0 without one, below 10,000 without a year."""
    if found := _DATE.search(name):
        year, _, month, day = found.groups()
        date = int(year + month + day)
    elif found := _STAMP.search(name):
        date = int("".join(filter(None, found.groups())))
    else:
        return name, 0
    return name[: found.start()] + name[found.end() :], date
