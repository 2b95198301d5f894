"""Every exception that forge_nb raises, drawn as one tree.

::

    ForgeError
    ├── UsageError (also ValueError)      your mistake: an argument, a name, a query
    │   ├── CursorError                   a page cursor that is not ours
    │   └── NotFoundError (also LookupError)
    ├── StoreError                        the world: a file, a lock, a schema
    │   ├── ForeignStoreError             the file is not a forge_nb store
    │   ├── SchemaVersionError            the store is newer than this code
    │   ├── StoreLockedError              another program holds the file
    │   └── ConflictError                 the write contradicts what is stored
    ├── ExchangeError                     a file from elsewhere that cannot be read
    ├── ProviderError                     the model's side
    │   ├── ProviderHTTPError
    │   ├── ContextOverflowError
    │   └── TapeError
    ├── ToolError                         a tool said no, or could not
    │   └── ToolRejectedError
    ├── RunError                          the run loop had to stop
    │   ├── SessionBusyError
    │   └── CompactionError
    └── SubscriptionClosedError           the peer went away

A message says what happened, the value with `repr`, and what to do next. The facts are also
fields, so that a caller never parses text; fields survive pickling.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CompactionError",
    "ConflictError",
    "ContextOverflowError",
    "CursorError",
    "ExchangeError",
    "ForeignStoreError",
    "ForgeError",
    "NotFoundError",
    "ProviderError",
    "ProviderHTTPError",
    "RunError",
    "SchemaVersionError",
    "SessionBusyError",
    "StoreError",
    "StoreLockedError",
    "SubscriptionClosedError",
    "TapeError",
    "ToolError",
    "ToolRejectedError",
    "UsageError",
]


class ForgeError(Exception):
    """The root of every error of this package.

    Parameters
    ----------
    message
        What happened, the value, and what to do.
    **fields
        The same facts as data; readable as `error.fields["name"]` and as attributes.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = fields

    def __getattr__(self, name: str) -> Any:
        """Read a field as an attribute."""
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the fields."""
        return (_rebuild, (type(self), str(self), self.fields))


def _rebuild(kind: type[ForgeError], message: str, fields: dict[str, Any]) -> ForgeError:
    return kind(message, **fields)


class UsageError(ForgeError, ValueError):
    """An argument, a name or a query that cannot be right."""


class CursorError(UsageError):
    """A page cursor that was cut, edited, or belongs to another session."""


class NotFoundError(UsageError, LookupError):
    """A session, message or part that the store does not hold."""


class StoreError(ForgeError):
    """The store cannot do what was asked; nothing was written."""


class ForeignStoreError(StoreError):
    """The file exists but is not a forge_nb store."""


class SchemaVersionError(StoreError):
    """The store was written by a newer forge_nb (`found`, `supported`)."""


class StoreLockedError(StoreError):
    """Another program holds the database (`path`)."""


class ConflictError(StoreError):
    """A write contradicts what is stored: the same id for something else."""


class ExchangeError(ForgeError):
    """A file from elsewhere that cannot be read (`path`, `place`)."""


class ProviderError(ForgeError):
    """The model's side failed (`model`)."""


class ProviderHTTPError(ProviderError):
    """The provider answered with an error (`status`, `retry_after_s`)."""


class ContextOverflowError(ProviderError):
    """The request does not fit the model's window."""


class TapeError(ProviderError):
    """An event tape that cannot be read, or has no answer left (`path`, `line`)."""


class ToolError(ForgeError):
    """A tool could not do its work; the text goes to the model."""


class ToolRejectedError(ToolError):
    """Permission for a tool call was refused."""


class RunError(ForgeError):
    """The run loop had to stop."""


class SessionBusyError(RunError):
    """Somebody else runs this session (`owner`)."""


class CompactionError(RunError):
    """Compaction did not make the context smaller (`before`, `after`)."""


class SubscriptionClosedError(ForgeError):
    """The bus subscription was closed."""
