"""What an MCP tool answered, as text for the model."""

from __future__ import annotations

import json

from mcp import types

from core.surrogates import whole_text
from core.tool.output import shorten
from core.tool.tool import ToolResult


def result_of(answer: types.CallToolResult) -> ToolResult:
    """Its texts, one below the other; what is no text is described. Structured content if there is nothing else."""
    parts = [_text_of(block) for block in answer.content]
    if not any(parts) and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    return ToolResult(shorten(whole_text("\n".join(parts))), is_error=bool(answer.is_error))


def _text_of(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return f"[an image, {block.mime_type}, {_size_of(block.data)} bytes]"
        case types.AudioContent():
            return f"[a sound, {block.mime_type}, {_size_of(block.data)} bytes]"
        case types.ResourceLink():
            return f"[a resource: {block.name}, {block.uri}]"
        case types.EmbeddedResource():
            return _resource(block.resource)
    return f"[content of the kind {block.type}]"


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    kind = resource.mime_type or "of no named kind"
    return f"[a file, {resource.uri}, {kind}, {_size_of(resource.blob)} bytes]"


def _size_of(base64_text: str) -> int:
    return len(base64_text.rstrip("=")) * 3 // 4
