"""Which failures another model of the same server may not have.

==============================  ==========  =================================================================
failure                         other model  why
==============================  ==========  =================================================================
no connection                   no          it is the address, and the other model has the same one
hung up, broke off, silent      yes         often one model's worker died, hangs, or is being loaded
401, 407                        no          the key, or the proxy's, is wrong whatever is asked for
405, and below 400              no          the address is wrong
403, 404, 400, 422              yes         refused, unknown, or too long for this one
429, 5xx, any other             yes         full or broken for this one: limits are counted by model
nonsense                        yes         a template or a parser of this one
answered, and said nothing      no          that is an answer
no match, no list               yes         the fallback has a name, and needs no list; but see the first rows
==============================  ==========  =================================================================

A stop is in no row, since it is no ``ProviderError``: neither ours nor a 499.
"""

from typing import Final

from core.errors import ProviderError, ProviderRejected, ProviderSilent
from core.provider.failures import ModelListFailed, ServerUnreachable

_WHATEVER_IS_ASKED: Final = frozenset({401, 405, 407})


def may_another_answer(error: ProviderError) -> bool:
    """Whether it is worth asking another model. ``error`` is one that the retries could not mend."""
    if isinstance(error, ProviderSilent):
        return False
    if isinstance(error, ModelListFailed):
        # The fallback needs no list, so whatever else is wrong with it does not matter.
        return not isinstance(error.inner, ServerUnreachable | ProviderRejected) or may_another_answer(error.inner)
    if isinstance(error, ServerUnreachable):
        return error.is_connected
    if isinstance(error, ProviderRejected):
        return error.http_status >= 400 and error.http_status not in _WHATEVER_IS_ASKED
    return True
