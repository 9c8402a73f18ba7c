"""Whether every kind of model server takes a request of ours."""

from core.provider.anthropic_body import messages_body
from core.provider.openai_format import request_body
from core.provider.provider import ModelRequest
from core.provider.wire_names import tool_names
from de2generator import anthropic_strict, strict
from tests.support.vendor_types import check_anthropic_body, check_openai_body


def check_request(request: ModelRequest) -> None:
    """Every kind of provider takes it: a strict server of either form, and the vendors' own types."""
    assert (fault := strict.find_fault(request.messages)) is None, fault
    body = request_body(request, tool_names(request))
    assert (fault := strict.find_name_fault(body)) is None, fault
    check_openai_body(body)
    body = messages_body(request, tool_names(request))
    assert (fault := anthropic_strict.find_fault(body)) is None, fault
    check_anthropic_body(body)
