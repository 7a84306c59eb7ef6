"""What a policy of IAM allows, as far as batchq's own policies go.

A request is denied unless a statement allows it and none denies it. An operator this
module does not know is an error, so that no test passes on a condition nobody looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["allows"]


def allows(policy: Mapping[str, Any], action: str, resource: str, **context: str) -> bool:
    """Whether `policy` lets `action` (`s3:GetObject`) act on the ARN `resource`.

    `context` holds the request's condition keys, `:` and `-` written as `_`.
    """
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if _matches(statement["Action"], action)
        and _matches(statement["Resource"], resource)
        and _holds(statement.get("Condition", {}), context)
    }
    return effects == {"Allow"}


def _matches(patterns: str | list[str], value: str) -> bool:
    patterns = [patterns] if isinstance(patterns, str) else patterns
    # Brackets mean themselves in a policy.
    return any(fnmatchcase(value, pattern.replace("[", "[[]")) for pattern in patterns)


def _holds(condition: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    return all(
        _compare(operator, context.get(key.replace(":", "_").replace("-", "_")), expected)
        for operator, keys in condition.items()
        for key, expected in keys.items()
    )


def _compare(operator: str, value: str | None, expected: Any) -> bool:
    if operator == "Null":
        return (value is None) is (expected == "true")
    if value is None:
        return operator.endswith("IfExists")
    match operator.removesuffix("IfExists"):
        case "StringLike":
            return _matches(expected, value)
        case "Bool":
            return value == str(expected)
    raise ValueError(f"no test knows the operator {operator}")
