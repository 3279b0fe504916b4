"""One exception family of the engine; each message says what failed, where, and what to do."""


class EngineError(Exception):
    """A failure that a user can act on.

    Args:
        what: the fact that failed, with the value at fault.
        where: file, tensor, field or option it was found in.
        fix: what to do about it.
    """

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(f"{where}: {what}; {fix}")
        self.what = what
        self.where = where
        self.fix = fix


class CheckpointError(EngineError):
    """A checkpoint is missing, truncated, ill-shaped, or holds non-finite numbers."""


class OptionError(EngineError):
    """An engine option is unknown, has a wrong type, or does not fit the other options."""


class RequestError(EngineError):
    """A request cannot be served; `where` names the request's field."""


class NumericError(EngineError):
    """Non-finite logits or scores appeared where only finite numbers may travel."""
