"""Projection: fitting a canonical history to what a target accepts, and the resulting losses."""

from metis.projection.blocks import SIGNATURE_ON_NEXT, thinking_refusal
from metis.projection.cache_marks import LONG_TTL, Boundary, Section, system_message
from metis.projection.content import are_identical, calls_of, result_of
from metis.projection.images import IMAGE_BUDGET, count_images, image_size, keep_newest_images
from metis.projection.loss import Change, Loss, LossRecorder, Projection
from metis.projection.media import DOCUMENT_TEXT, Media, is_base64, sniff_media_type
from metis.projection.message_order import is_unfinished
from metis.projection.pipeline import project, project_appended
from metis.projection.target import MessageRules, Target
from metis.projection.tool_calls import (
    NO_RESULT,
    call_as_text,
    flatten_exchanges,
    wire_tool_name,
)

__all__ = [
    "DOCUMENT_TEXT",
    "IMAGE_BUDGET",
    "LONG_TTL",
    "NO_RESULT",
    "SIGNATURE_ON_NEXT",
    "Boundary",
    "Change",
    "Loss",
    "LossRecorder",
    "Media",
    "MessageRules",
    "Projection",
    "Section",
    "Target",
    "are_identical",
    "call_as_text",
    "calls_of",
    "count_images",
    "flatten_exchanges",
    "image_size",
    "is_base64",
    "is_unfinished",
    "keep_newest_images",
    "project",
    "project_appended",
    "result_of",
    "sniff_media_type",
    "system_message",
    "thinking_refusal",
    "wire_tool_name",
]
