"""`close`: the end of a direction on a written bound; nothing is measured."""

from specpilot.controller.contracts import CloseAnswer, CloseArguments


def close(arguments: CloseArguments) -> CloseAnswer:
    """What the journal keeps of it."""
    return CloseAnswer(reason=arguments.reason, bound=arguments.bound)
