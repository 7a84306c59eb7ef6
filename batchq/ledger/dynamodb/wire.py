"""Values, conditions and single writes as DynamoDB spells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "Condition",
    "Key",
    "Wire",
    "absent",
    "equal",
    "from_wire",
    "present",
    "to_wire",
    "write",
]

Key = tuple[str, str]
Wire = dict[str, Any]
Condition = tuple[str, str, Any]
"""How, which attribute, and with which value (none for `absent` and `present`)."""


def equal(name: str, value: object) -> Condition:
    return "=", name, value


def absent(name: str = "pk") -> Condition:
    return "attribute_not_exists", name, None


def present(name: str = "pk") -> Condition:
    return "attribute_exists", name, None


def to_wire(value: object) -> Wire:
    """One value with its type."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, str):
        # Errors may quote bytes that are no text.
        return {"S": value.encode(errors="replace").decode()}
    if isinstance(value, frozenset):
        return {"BS": sorted(value)}
    raise TypeError(f"no attribute can hold a {type(value).__name__}")


def from_wire(item: Mapping[str, Wire]) -> dict[str, Any]:
    """The attributes of a row."""
    return {name: _value(wire) for name, wire in item.items()}


def _value(wire: Wire) -> Any:
    [(kind, value)] = wire.items()
    if kind == "N":
        return int(value)
    if kind == "BS":
        return frozenset(bytes(one) for one in value)
    return value


class _Names:
    """Placeholders: most plain words are reserved in expressions."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Wire] = {}

    def name(self, name: str) -> str:
        place = f"#{name}"
        self.names[place] = name
        return place

    def value(self, value: object) -> str:
        place = f":v{len(self.values)}"
        self.values[place] = to_wire(value)
        return place

    def condition(self, condition: Condition) -> str:
        how, name, value = condition
        if how == "=":
            return f"{self.name(name)} = {self.value(value)}"
        return f"{how}({self.name(name)})"


def write(
    table: str,
    key: Key,
    *,
    put: Mapping[str, object] | None = None,
    delete: bool = False,
    set: Mapping[str, object] | None = None,
    add: Mapping[str, int] | None = None,
    remove: Iterable[str] = (),
    only_if: Iterable[Condition] = (),
) -> dict[str, Wire]:
    """One write as an action of a transaction: `{"Put": …}`, `{"Update": …}` and so on.

    `put` is a whole row without its key.
    """
    names = _Names()
    place = {"pk": to_wire(key[0]), "sk": to_wire(key[1])}
    request: Wire = {"TableName": table}
    conditions = [names.condition(condition) for condition in only_if]
    changes = []
    if set:
        changes.append(
            "SET " + ", ".join(f"{names.name(n)} = {names.value(v)}" for n, v in set.items())
        )
    if add:
        changes.append(
            "ADD " + ", ".join(f"{names.name(n)} {names.value(v)}" for n, v in add.items())
        )
    if remove := list(remove):
        changes.append("REMOVE " + ", ".join(names.name(n) for n in remove))
    if put is not None:
        kind = "Put"
        request["Item"] = {**place, **{name: to_wire(value) for name, value in put.items()}}
    else:
        request["Key"] = place
        kind = "Delete" if delete else "Update"
    if changes:
        request["UpdateExpression"] = " ".join(changes)
    if conditions:
        request["ConditionExpression"] = " AND ".join(conditions)
    if names.names:
        request["ExpressionAttributeNames"] = names.names
    if names.values:
        request["ExpressionAttributeValues"] = names.values
    return {kind: request}
