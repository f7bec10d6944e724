"""Files as strangers change them: bytes, values of documents, members of archives, tensors; from a seeded generator."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import onnx
import tomlkit
import torch
from google.protobuf import json_format
from safetensors.torch import save as save_tensors
from torch import Tensor

Mutation = Callable[[Random], bytes]
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**40, 1.5, -0.0, 1e308, "nan", "inf", "", "x", "\x1b[2J", "\ud800", "../x"),
    *([], {}, [[]], [0], [-1], [2**40] * 4, ["x"], {"a": 1}, {"": None}, "9" * 5000, "mlp:999999x99", "int8+" * 50),
)
"""What a value of a document may become."""


def damage(content: bytes, rng: Random) -> bytes:
    """Flipped bits, cut ends, removed, doubled and foreign pieces; never the content itself."""
    while True:
        start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        changed = bytearray(content)
        match rng.randrange(6):
            case 0:
                for _ in range(rng.randint(1, 4)):
                    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            case 1:
                del changed[start:]
            case 2:
                del changed[start : end + 1]
            case 3:
                changed[end:end] = changed[start:end]
            case 4:
                changed[start:start] = rng.randbytes(rng.randint(1, 40))
            case _:
                changed[start:end] = rng.randbytes(end - start)
        if changed and bytes(changed) != content:
            return bytes(changed)


def places(value: Any) -> list[tuple[Any, ...]]:
    """Paths of everything in a document but the whole of it."""
    if not isinstance(value, dict | list) or not value:
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path for key, item in items for path in ((key,), *((key, *rest) for rest in places(item)))]


def changes(document: Any) -> Callable[[Random], Any]:
    """Documents of which one to three values are others, or are gone."""
    text, paths = json.dumps(document), places(document)  # to read a text is far faster than deepcopy

    def change(rng: Random) -> Any:
        copy = json.loads(text)
        for *outer, last in rng.choices(paths, k=rng.randint(1, 3)) if paths else ():
            with suppress(LookupError, TypeError):  # of a place in what the change before has replaced
                part = copy
                for key in outer:
                    part = part[key]
                if rng.randrange(6):
                    part[last] = deepcopy(rng.choice(HOSTILE))
                else:
                    del part[last]
        return copy

    return change


def as_json(value: object) -> bytes:
    """As Python writes it, lone surrogates included."""
    return json.dumps(value).encode(errors="surrogatepass")


def damaged(content: bytes) -> Mutation:
    """Its bytes."""
    return lambda rng: damage(content, rng)


def changed_values(document: object, write: Callable[[Any], bytes]) -> Mutation:
    """A document's values, as far as its format holds them."""
    change = changes(document)

    def mutate(rng: Random) -> bytes:
        while True:
            try:
                return write(change(rng))
            except Exception:  # noqa: BLE001 - the errors of those who write formats share no base
                continue

    return mutate


def changed_json(content: bytes, write: Callable[[object], bytes] = as_json) -> Mutation:
    """One of its values."""
    return changed_values(json.loads(content), write)


def changed_toml(content: bytes) -> Mutation:
    """One of its values."""
    return changed_values(tomllib.loads(content.decode()), lambda values: tomlkit.dumps(values).encode())


def changed_lines(content: bytes) -> Mutation:
    """A value in one of its lines of JSON."""
    lines = content.splitlines()
    change = [changes(json.loads(line)) for line in lines]

    def mutate(rng: Random) -> bytes:
        place = rng.randrange(len(lines))
        return b"\n".join([*lines[:place], as_json(change[place](rng)), *lines[place + 1 :], b""])

    return mutate


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def damaged_member(content: bytes) -> Mutation:
    """One member of an archive, whose checksums are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    documents = {name: changed_json(member) for name, member in members.items() if member[:1] == b"{"}

    def mutate(rng: Random) -> bytes:
        name = rng.choice([name for name, member in members.items() if member])
        new = documents[name](rng) if name in documents and rng.randrange(2) else damage(members[name], rng)
        return zipped({**members, name: new})

    return mutate


def changed_header(content: bytes) -> Mutation:
    """The header of a file of safetensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    change = changes(json.loads(content[8:end]))

    def mutate(rng: Random) -> bytes:
        header = as_json(change(rng))
        return struct.pack("<Q", len(header)) + header + content[end:]

    return mutate


def changed_tensors(
    tensors: Mapping[str, Tensor], write: Callable[[dict[str, Tensor]], bytes] = save_tensors
) -> Mutation:
    """One of them: gone, renamed, or of another type, shape or value."""

    def mutate(rng: Random) -> bytes:
        rest = dict(tensors)
        tensor = rest.pop(name := rng.choice(sorted(rest)))
        others = [
            *(tensor.reshape(-1), tensor[:0] if tensor.dim() else tensor.reshape(1, 1), tensor * torch.nan),
            *(tensor.long(), tensor.to(torch.complex64), tensor.double() * 1e300),
            *(torch.tensor(1.0), torch.tensor(True)),
        ]
        match rng.randrange(len(others) + 2):
            case 0:
                pass
            case 1:
                rest[f"q_net.{name}"] = tensor
            case kind:
                rest[name] = others[kind - 2].clone()
        return write(rest)

    return mutate


def changed_model(content: bytes) -> Mutation:
    """A value somewhere in an ONNX model."""
    document = json_format.MessageToDict(onnx.load_from_string(content), preserving_proto_field_name=True)
    return changed_values(
        document, lambda values: bytes(json_format.ParseDict(values, onnx.ModelProto()).SerializeToString())
    )


def compressed(mutation: Mutation) -> Mutation:
    """What is compressed then, or is damaged afterwards."""

    def mutate(rng: Random) -> bytes:
        content = gzip.compress(mutation(rng))
        return content if rng.randrange(4) else damage(content, rng)

    return mutate
