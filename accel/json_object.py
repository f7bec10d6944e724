"""The type of a plain JSON object, as messages and files hold it."""

Json = dict[str, object]
