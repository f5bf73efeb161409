"""docs/reference/grpc.md: services, calls and messages, from the comments of the protos."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

from tidemill.rpc.status import STATUSES
from tidemill.testkit.reference.pages import code, first_line, head, paragraphs, table

_MESSAGE, _FIELD, _SERVICE, _METHOD, _NESTED, _ENUM, _VALUE = 4, 2, 6, 2, 3, 5, 2
"""Numbers of the parts of a file in the paths of its comments (descriptor.proto)."""
_PACKAGE = (2,)

Comments = Mapping[tuple[int, ...], str]


def described(root: Path) -> list[FileDescriptorProto]:
    """The protos of a checkout with their comments, in the order of their names."""
    protos = root / "protos"
    names = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "set"
        status = protoc.main(
            ["protoc", f"--proto_path={protos}", f"--proto_path={files('grpc_tools') / '_proto'}",
             f"--descriptor_set_out={made}", "--include_source_info", *names]
        )  # fmt: skip
        if status:
            raise RuntimeError(f"protoc ended with {status}")
        return list(FileDescriptorSet.FromString(made.read_bytes()).file)


def _comments(file: FileDescriptorProto) -> Comments:
    return {
        tuple(each.path): " ".join((each.leading_comments + each.trailing_comments).split())
        for each in file.source_code_info.location
    }


def _type(field: FieldDescriptorProto) -> str:
    kind = (
        field.type_name.removeprefix(".") or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    )
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {code(kind)}"
    return f"optional {code(kind)}" if field.proto3_optional else code(kind)


def _message(
    message: DescriptorProto, path: tuple[int, ...], comments: Comments, outer: str
) -> Iterator[str]:
    """A message with its fields, then those that are declared inside it."""
    name = f"{outer}{message.name}"
    yield from ("", f"### {name}")
    if comments.get(path):
        yield from paragraphs(comments[path])
    if message.field:
        yield ""
        yield from table(
            ("field", "type", "number", "meaning"),
            (
                (
                    code(field.name), _type(field), str(field.number),
                    f"{_choice(message, field)} {comments.get((*path, _FIELD, at), '')}".strip(),
                )
                for at, field in enumerate(message.field)
            ),
        )  # fmt: skip
    for at, inner in enumerate(message.nested_type):
        if not inner.options.map_entry:
            yield from _message(inner, (*path, _NESTED, at), comments, f"{name}.")


def _enum(enum: EnumDescriptorProto, path: tuple[int, ...], comments: Comments) -> Iterator[str]:
    yield from ("", f"### {enum.name}")
    if comments.get(path):
        yield from paragraphs(comments[path])
    yield ""
    yield from table(
        ("value", "number", "meaning"),
        (
            (code(value.name), str(value.number), comments.get((*path, _VALUE, at), ""))
            for at, value in enumerate(enum.value)
        ),
    )


def _choice(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Of which choice a field is one."""
    if field.proto3_optional or not field.HasField("oneof_index"):
        return ""
    return f"One of `{message.oneof_decl[field.oneof_index].name}`."


def page(root: Path) -> str:
    """The whole page, from the protos of a checkout."""
    lines = head(
        "gRPC",
        "Clients call these services at `grpc` of the [settings](settings.md). A process with "
        "`reflection` answers grpcurl. An error carries a `google.rpc.ErrorInfo` with a reason of "
        "the first table.",
    )
    lines += ["## Errors", ""]
    lines += table(
        ("reason", "code", "what the caller does next"),
        (
            (code(reason), code(status.name), first_line(error))
            for error, reason, status in STATUSES
        ),
    )
    for file in described(root):
        comments = _comments(file)
        lines += ["", f"## {file.package}"]
        if comments.get(_PACKAGE):
            lines += paragraphs(comments[_PACKAGE])
        for at, service in enumerate(file.service):
            lines += ["", f"### {service.name}"]
            if comments.get((_SERVICE, at)):
                lines += paragraphs(comments[_SERVICE, at])
            lines += [""]
            lines += table(
                ("call", "takes", "gives", "meaning"),
                (
                    (
                        code(call.name),
                        ("stream of " if call.client_streaming else "")
                        + code(call.input_type.rpartition(".")[2]),
                        ("stream of " if call.server_streaming else "")
                        + code(call.output_type.rpartition(".")[2]),
                        comments.get((_SERVICE, at, _METHOD, number), ""),
                    )
                    for number, call in enumerate(service.method)
                ),
            )
        for at, message in enumerate(file.message_type):
            lines += _message(message, (_MESSAGE, at), comments, "")
        for at, enum in enumerate(file.enum_type):
            lines += _enum(enum, (_ENUM, at), comments)
    return "\n".join(lines) + "\n"
