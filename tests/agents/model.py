"""A model server that is a script: it asks for one edit and one command, in the protocols agents speak, streaming.

By itself, `python3 model.py [PORT]` serves until it is interrupted.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EDIT = "sed -i s/a.-.b/a+b/ calc.py"
CHECK = "sh check.sh && echo it-passes"
DONE = "The test passes now."


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # an agent that was ended
            super().handle_error(request, client_address)


class Model:
    """Listens on loopback; `asked` is every path, `bodies` every request's JSON."""

    def __init__(self, port: int = 0) -> None:
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                body: dict[str, Any] = json.loads(raw) if raw[:1] == b"{" else {}
                model.asked.append(self.path)
                model.bodies.append(body)
                events = model.answer(self.path.split("?")[0], body)
                if events is None:
                    self.plain(404, {"error": {"message": "no such thing", "type": "not_found_error"}})
                    return
                if isinstance(events, dict):
                    self.plain(200, events)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for name, data in events:
                    text = data if isinstance(data, str) else json.dumps(data)
                    self.wfile.write((f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode())
                    self.wfile.flush()
                self.close_connection = True

            def do_GET(self) -> None:
                model.asked.append(self.path)
                self.plain(404, {"error": {"message": "no such thing"}})

            do_HEAD = do_GET

            def plain(self, status: int, document: dict[str, Any]) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> Iterator[tuple[str, Any]] | dict[str, Any] | None:
        if path.endswith("/responses"):
            return responses(body)
        if path.endswith("/messages/count_tokens"):
            return {"input_tokens": 10}
        if path.endswith("/messages"):
            return messages(body)
        if path.endswith(("generateContent", "GenerateContent")):
            return contents(path, body)
        if path.endswith("/chat/completions"):
            return completions(body)
        return None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def responses(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """OpenAI's Responses API: the next step after as many tool outputs as there are."""
    tools = {tool.get("name") or tool.get("type") for tool in body.get("tools", [])}
    turn = sum(1 for item in body.get("input", []) if item.get("type", "").endswith("_output"))
    yield "response.created", {"type": "response.created", "response": {"id": f"r{turn}"}}
    if turn < 2:
        command = (EDIT, CHECK)[turn]
        if "exec_command" in tools:
            name, arguments = "exec_command", {"cmd": command}
        elif "shell_command" in tools:
            name, arguments = "shell_command", {"command": command}
        else:
            name, arguments = "shell", {"command": ["sh", "-c", command]}
        call = {"type": "function_call", "id": f"f{turn}", "call_id": f"c{turn}", "name": name}
        item: dict[str, Any] = {**call, "arguments": json.dumps(arguments), "status": "completed"}
    else:
        content: list[dict[str, Any]] = [{"type": "output_text", "text": DONE, "annotations": []}]
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    yield "response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield "response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    done = {"id": f"r{turn}", "status": "completed", "output": [item], "usage": usage}
    yield "response.completed", {"type": "response.completed", "response": done}


def messages(body: dict[str, Any]) -> Iterator[tuple[str, Any]] | dict[str, Any]:
    """Anthropic's Messages API. A request without tools is one for a title or the like."""
    results = [
        block
        for message in body.get("messages", [])
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    turn = len(results)
    has_bash = any(tool.get("name") == "Bash" for tool in body.get("tools", []))
    if has_bash and turn < 2:
        block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Bash"}
        given = json.dumps({"command": (EDIT, CHECK)[turn], "description": "work"})
        delta, stop = {"type": "input_json_delta", "partial_json": given}, "tool_use"
        start: dict[str, Any] = {**block, "input": {}}
        full: dict[str, Any] = {**block, "input": json.loads(given)}
    else:
        delta, stop = {"type": "text_delta", "text": DONE}, "end_turn"
        start, full = {"type": "text", "text": ""}, {"type": "text", "text": DONE}
    head = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "model": body.get("model", "m")}
    usage = {"input_tokens": 1, "output_tokens": 1}
    if not body.get("stream"):
        return {**head, "content": [full], "stop_reason": stop, "stop_sequence": None, "usage": usage}
    return _message_events(head, usage, start, delta, stop)


def _message_events(
    head: dict[str, Any], usage: dict[str, int], start: dict[str, Any], delta: dict[str, Any], stop: str
) -> Iterator[tuple[str, Any]]:
    opening: dict[str, Any] = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield "message_start", {"type": "message_start", "message": opening}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": start}
    yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    ending = {"stop_reason": stop, "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}}
    yield "message_stop", {"type": "message_stop"}


def completions(body: dict[str, Any]) -> Iterator[tuple[str, Any]] | dict[str, Any]:
    """OpenAI's Chat Completions; agents without tools get the edit as a block of text they understand."""
    turn = sum(1 for message in body.get("messages", []) if message.get("role") == "tool")
    names = [tool["function"]["name"] for tool in body.get("tools", [])]
    shell = next((name for name in names if name in ("bash", "shell", "developer__shell")), None)
    if shell and turn < 2:
        given = json.dumps({"command": (EDIT, CHECK)[turn], "description": "work"})
        call = {"index": 0, "id": f"call_{turn}", "type": "function", "function": {"name": shell, "arguments": given}}
        delta: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls"
    else:
        blocks = "calc.py\n```\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a+b\n>>>>>>> REPLACE\n```\n"
        delta = {"role": "assistant", "content": DONE if names else blocks}
        reason = "stop"
    head = {"id": f"c{turn}", "created": 1, "model": body.get("model", "m")}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not body.get("stream"):
        choice = {"index": 0, "message": delta, "finish_reason": reason}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return _chunks({**head, "object": "chat.completion.chunk"}, delta, reason, usage)


def _chunks(
    head: dict[str, Any], delta: dict[str, Any], reason: str, usage: dict[str, int]
) -> Iterator[tuple[str, Any]]:
    yield "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield "", {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
    yield "", "[DONE]"


def contents(path: str, body: dict[str, Any]) -> Iterator[tuple[str, Any]] | dict[str, Any]:
    """Google's generateContent. A request without tools is one for a route or a summary."""
    declared = [one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]
    turn = sum(1 for content in body.get("contents", []) for part in content["parts"] if "functionResponse" in part)
    if any(one["name"] == "run_shell_command" for one in declared) and turn < 2:
        given = {"command": (EDIT, CHECK)[turn], "description": "work"}
        part: dict[str, Any] = {"functionCall": {"name": "run_shell_command", "args": given}}
    else:
        part = {"text": DONE}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer: dict[str, Any] = {"candidates": [candidate], "usageMetadata": usage}
    return iter([("", answer)]) if ":stream" in path else answer


def main() -> None:
    model = Model(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(f"a model that is a script: http://localhost:{model.port}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        model.close()


if __name__ == "__main__":
    main()
