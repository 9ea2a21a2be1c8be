"""What prompt do messages make, and which tool, if any, does the engine call?"""

from typing import Any

import msgspec

from sim.asked import Call, JsonObject, Wrong

_EXAMPLES = {"string": "word", "integer": 7, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}


def chat_prompt(messages: object, tools: object = None) -> bytes:
    """Tools first, then the turns, so that a longer talk has the shorter one as its prefix."""
    if not isinstance(messages, list) or not messages:
        raise Wrong(400, "messages must be a non-empty list", param="messages")
    parts = [b"<|tools|>" + msgspec.json.encode(tools)] if tools else []
    parts += [_turn(message) for message in messages]
    return b"".join(parts) + b"<|assistant|>"


def _turn(message: object) -> bytes:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Wrong(400, "each message must be an object with a role", param="messages")
    calls = message.get("tool_calls")
    called = msgspec.json.encode(calls) if calls else b""
    return b"<|%b|>%b%b\n" % (message["role"].encode(), text_content(message.get("content")).encode(), called)


def text_content(content: object) -> str:
    """The words of a message's content; parts that are not text stand as their JSON."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(_part(part) for part in content)
    raise Wrong(400, "content must be a string or a list of parts", param="messages")


def _part(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else msgspec.json.encode(part).decode()


def call_for(tools: list[tuple[str, Any]], choice: object, last_user: str) -> Call | None:
    """``tools``: names and parameter schemas. One is called when it must be, or when the user names it."""
    if not tools or choice == "none":
        return None
    named = next((t for t in tools if t[0] == _forced(choice)), None)
    named = named or next((t for t in tools if t[0] in last_user), None)
    if named is None and choice in ("required", "any"):
        named = tools[0]
    if named is None:
        return None
    return Call(named[0], _example(named[1]))


def _forced(choice: object) -> str | None:
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    return name if isinstance(name, str) else None


def _example(schema: object) -> Any:
    """A value that a JSON schema allows, for the schemas tools have."""
    if not isinstance(schema, dict):
        return {}
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    properties, kind = schema.get("properties"), schema.get("type", "object")
    if isinstance(properties, dict):
        needed = schema.get("required", list(properties))
        names = [name for name in needed if isinstance(name, str)] if isinstance(needed, list) else []
        return {name: _example(properties.get(name)) for name in names}
    first = kind[0] if isinstance(kind, list) and kind else kind
    return _EXAMPLES.get(first, {}) if isinstance(first, str) else {}


def tools_of(asked: JsonObject) -> list[Any]:
    tools = asked.get("tools") or []
    if not isinstance(tools, list):
        raise Wrong(400, "tools must be a list", param="tools")
    return tools


def openai_tools(asked: JsonObject) -> list[tuple[str, Any]]:
    """Names and schemas, from chat's nested or responses' flat form."""
    found = []
    for tool in tools_of(asked):
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            found.append((function["name"], function.get("parameters")))
    return found


def last_user_text(messages: list[Any]) -> str:
    """Nothing when the last turn is not the user's: a tool has answered."""
    last = messages[-1]
    if not isinstance(last, dict) or last.get("role") != "user":
        return ""
    return text_content(last.get("content"))
