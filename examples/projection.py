"""Fit messages to a target, and list what it does not receive."""

from datetime import UTC, datetime

from metis import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    adapters,
    new_tool_use_id,
    new_ulid,
    projection,
)
from metis.projection import (
    Boundary,
    Change,
    Loss,
    LossRecorder,
    Media,
    MessageRules,
    Projection,
    Section,
    Target,
    call_as_text,
    project,
    system_message,
)

NOW = datetime(2026, 5, 8, tzinfo=UTC)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
    "gg=="
)


def message(role: Role, *content: object, **metadata: object) -> Message:
    """Return a message of one session."""
    return Message(
        id=new_ulid(),
        session_id="sess_example",
        role=role,
        content=content,  # pyright: ignore[reportArgumentType] - any blocks
        created_at=NOW,
        metadata=MessageMetadata(**metadata),  # pyright: ignore[reportArgumentType] - any field
    )


# The rules of a host with the limits of a model are a target.
profile = adapters.profile_of("openai")
rules: MessageRules = profile
capabilities = adapters.get("openai").capabilities("gpt-5")
target: Target = profile.target(capabilities, "gpt-5")
assert rules.tool_name_length == target.tool_name_length

# Instructions in sections; a boundary marks the end of a reusable prefix.
instructions = system_message(
    [Section(text="You are a librarian.", ends=Boundary.SYSTEM_END, ttl=projection.LONG_TTL)],
    "sess_example",
    NOW,
)
call = ToolUseBlock(id=new_tool_use_id(), name="read_file", input={"path": "a.txt"})
thinking = ThinkingBlock("Read it first.", signature="sealed", issuer="anthropic")
image: Media = ImageBlock(ImageSource("base64", PIXEL), "image/png")
question = message(Role.USER, TextBlock("What is in a.txt?"), image)
response = message(Role.ASSISTANT, thinking, call)
result = message(
    Role.TOOL, ToolResultBlock(call.id, (TextBlock("Owls."),)), parent_tool_use_id=call.id
)
history = [instructions, question, response, result]

projected: Projection = project(history, target)
losses: list[Loss] = projected.losses
assert (losses[0].block_type, losses[0].change) == ("thinking", Change.DROPPED)
print(losses[0].reason)
assert projection.thinking_refusal(thinking, response, target) is not None

# Messages that follow can be projected alone, unless they refer to what came before.
more = [message(Role.USER, TextBlock("And b.txt?"))]
appended = projection.project_appended(more, target, {call.id})
assert appended is not None
assert projection.are_identical(appended.messages, more)

# Images: their size, their type, and a budget for all of them.
assert projection.image_size(PIXEL) == (1, 1)
assert projection.sniff_media_type(PIXEL) == "image/png"
assert projection.is_base64(PIXEL)
assert projection.count_images(history) == 1
recorder = LossRecorder(target)
newest = projection.keep_newest_images(history, projection.IMAGE_BUDGET, recorder)
assert newest == history

# Calls and results: found, described as text, and named for a target.
assert projection.calls_of(response) == [call]
assert projection.result_of(result) is not None
print(call_as_text(call).text)
flat = projection.flatten_exchanges(history, recorder)
assert [each.role for each in flat][-2:] == [Role.ASSISTANT, Role.USER]
print(projection.wire_tool_name("files/read me"))

# A response that was cut off can be continued by another model.
partial = message(Role.ASSISTANT, TextBlock("Once upon"), status=MessageStatus.CANCELLED)
assert projection.is_unfinished(partial)

# What projection adds where a target needs it: a result for a call without one, a text beside a
# document. Gemini signs other parts than thinking; such a signature precedes its block.
assert projection.NO_RESULT in str(project([question, response], target).messages)
converse = adapters.profile_of("bedrock-converse")
claude = adapters.get("bedrock-converse").capabilities("anthropic.claude-sonnet-4-6")
paper = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", name="paper")
sent = project([message(Role.USER, paper)], converse.target(claude, "claude-sonnet-4-6"))
assert sent.messages[0].content[0] == TextBlock(projection.DOCUMENT_TEXT)
signature = ThinkingBlock("", signature="sealed", format=projection.SIGNATURE_ON_NEXT)
assert project([message(Role.ASSISTANT, signature, TextBlock("Owls."))], target).losses
